cimport cython
from libc.stdint cimport intptr_t, uint32_t, uint64_t

from .bins cimport BinIndex
from .blocks cimport LIVE, Block

cdef int LARGE_BINS
cdef uint64_t WORD, MIX_A, MIX_B

cdef class LargeIndex(BinIndex):
    @cython.locals(t=Block, best=Block)
    cdef Block fit(self, int b, size_t n)
    @cython.locals(b=int, t=Block)
    cdef int push(self, Block c) except -1
    @cython.locals(left=bint, p=Block)
    cdef int insert(self, int b, Block t, Block c) except -1
    @cython.locals(lo=Block, hi=Block, lo_left=bint, hi_left=bint)
    cdef int part(self, int b, Block t, Block c) except -1
    @cython.locals(b=int, left=bint, p=Block, x=Block, y=Block)
    cdef int unlink(self, Block c) except -1
    cdef int hang(self, int b, Block p, bint left, Block t) except -1

@cython.locals(x=uint64_t)
cdef uint32_t rank_of(intptr_t ptr) noexcept
