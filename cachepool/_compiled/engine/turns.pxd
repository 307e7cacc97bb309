cimport cython

from .blocks cimport Block
from .cache cimport Cache

cdef class Turns:
    cdef readonly bint busy
    cdef readonly object lock
    cdef readonly object pending, arrived
    cpdef bint enter(self, bint wait) except -1
    cpdef leave(self)
    @cython.locals(entered=bint)
    cpdef object reading(self, object function)
    @cython.locals(b=Block, cache=Cache)
    cdef drain(self)
    cpdef settle(self)
    cdef int admit(self, Cache cache, Block b) except -1
    cdef int put(self, Block b) except -1
