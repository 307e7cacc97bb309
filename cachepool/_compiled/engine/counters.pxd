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
    LARGE = 8

cdef class Counters:
    cdef int64_t cur[16]
    cdef int64_t peak[16]
    cdef int64_t ever[16]
    cdef int64_t top[8]
    @cython.locals(i=int, s=Segment, c=int64_t, v=int64_t, cur="int64_t *", ever="int64_t *",
                   peak="int64_t *", top="int64_t *")
    cdef int taken(self, Block b) noexcept
    @cython.locals(i=int, cur="int64_t *")
    cdef int given(self, Segment s, int64_t n, int64_t requested, bint merged) noexcept
    @cython.locals(i=int)
    cdef int pin(self, Segment s, int64_t n) noexcept
    @cython.locals(i=int)
    cdef int unpin(self, Segment s, int64_t n) noexcept
    cdef int tiled(self, Segment s, int v) noexcept
    @cython.locals(j=int, c=int64_t, cur="int64_t *")
    cdef int crest(self, int i) noexcept
    @cython.locals(c=int64_t, cur="int64_t *")
    cdef int rise(self, int i, int64_t v) noexcept
    @cython.locals(i=int)
    cdef int grown(self, Segment s, int sign) noexcept
    @cython.locals(c=int64_t, figure=int)
    cdef int64_t current(self, int i) noexcept
    @cython.locals(c=int64_t, figure=int)
    cdef int64_t in_all(self, int i) noexcept
    cpdef int64_t total(self, int figure)
    @cython.locals(a=int, b=int)
    cpdef tuple read(self, int figure, int pool)
    @cython.locals(i=int)
    cpdef int reset_peaks(self) except -1
