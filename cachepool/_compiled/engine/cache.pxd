cimport cython
from libc.stdint cimport int64_t, intptr_t

from .blocks cimport Block
from .large cimport LargeIndex
from .small cimport SmallIndex

cdef class Cache:
    cdef readonly intptr_t key
    cdef readonly int number
    cdef public object owner
    cdef readonly SmallIndex small
    cdef readonly LargeIndex large
    cdef readonly int64_t count, peak_count, ever_count
    cdef readonly int64_t nbytes, peak_bytes, ever_bytes
    cdef readonly int64_t reserved, peak_reserved, ever_reserved
    cdef int link(self, Block b) except -1
    cdef int unlink(self, Block b) except -1
    @cython.locals(c=int64_t)
    cdef int taken(self, int64_t nbytes) noexcept
    cdef int grown(self, int64_t nbytes) noexcept
    cpdef tuple read(self)
    cpdef int reset_peaks(self) except -1
