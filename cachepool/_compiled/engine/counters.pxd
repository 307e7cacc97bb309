cimport cython
from libc.stdint cimport int64_t

from .blocks cimport SMALL_UNITS, UNIT_BITS, Block, Segment

cdef enum:
    COUNT
    ALLOCATED
    REQUESTED
    INACTIVE
    INACTIVE_BYTES
    SEGMENTS
    RESERVED
    LARGE

cdef class Counters:
    cdef int64_t cur[14]
    cdef int64_t peak[14]
    cdef int64_t ever[14]
    cdef int64_t top[7]
    @cython.locals(i=int, c=int64_t)
    cdef int add(self, int row, int figure, int64_t v) noexcept
    @cython.locals(row=int, s=Segment)
    cdef int taken(self, Block b) noexcept
    @cython.locals(row=int, s=Segment)
    cdef int given(self, Block b) noexcept
    @cython.locals(row=int, count=int64_t, units=int64_t)
    cdef int settle(self, Segment s) noexcept
    @cython.locals(row=int)
    cdef int grown(self, Segment s, int sign) noexcept
    cpdef int64_t total(self, int figure)
    @cython.locals(a=int, b=int)
    cpdef tuple read(self, int figure, int pool)
    @cython.locals(i=int)
    cpdef int reset_peaks(self) except -1
