cimport cython
from libc.stdint cimport intptr_t, uint32_t

cdef enum:
    UNIT_BITS = 9
    SMALL_UNITS = 2048
    LIVE = -1
    KEPT = -2

cdef class Segment

cdef class Block:
    cdef readonly intptr_t ptr
    cdef readonly size_t n
    cdef public size_t requested
    cdef readonly int bin
    cdef readonly int cache
    cdef readonly uint32_t rank
    cdef readonly Block prev
    cdef readonly Block next
    cdef readonly Block left
    cdef readonly Block right
    cdef readonly Block over
    cdef readonly Segment segment
    @cython.locals(rest=Block, after=Block)
    cdef Block split(self, size_t n)
    @cython.locals(after=Block)
    cdef int absorb(self, Block q) except -1

cdef class Segment:
    cdef readonly intptr_t ptr
    cdef readonly size_t n
    cdef readonly int cache
    cdef readonly bint small
    cdef readonly Py_ssize_t tiles
    cdef readonly Py_ssize_t live
    cdef readonly Block first
    cdef readonly object held
    @cython.locals(b=Block, after=Block)
    cdef int dissolve(self) except -1

@cython.locals(b=Block)
cdef Block new_block()
