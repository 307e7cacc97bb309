cimport cython
from libc.stdint cimport uint32_t

from .bins cimport BinIndex, ctz
from .blocks cimport KEPT, LIVE, Block

cdef int SIZES, SMALL_BINS, KEEP, SCAN

cdef class SmallIndex(BinIndex):
    cdef readonly list kept
    cdef readonly uint32_t[65] sizes
    @cython.locals(c=Block)
    cdef Block get(self, size_t n)
    @cython.locals(n=int, one=uint32_t, head=Block)
    cdef int put(self, Block c) except -1
    @cython.locals(i=int, n=int, m=uint32_t, c=Block, found=bint)
    cdef bint flush(self) except -1
    @cython.locals(k=int, c=Block)
    cdef Block fit(self, int b, size_t n)
    @cython.locals(b=int, head=Block)
    cdef int push(self, Block c) except -1
    @cython.locals(p=Block, q=Block)
    cdef int unlink(self, Block c) except -1
