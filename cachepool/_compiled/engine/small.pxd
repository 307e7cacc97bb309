cimport cython
from libc.stdint cimport uint16_t, uint32_t

from .bins cimport BinIndex, ctz
from .blocks cimport KEPT, LIVE, Block, Segment
from .counters cimport Counters

cdef int SIZES, SMALL_BINS, KEEP, SCAN

cdef class SmallIndex(BinIndex):
    cdef readonly list kept
    cdef readonly uint16_t[2049] kept_of
    cdef readonly Py_ssize_t n_kept
    cdef readonly uint32_t[65] sizes
    cdef Block get(self, size_t n)
    @cython.locals(n=int, one=uint32_t)
    cdef int put(self, Block c) except -1
    @cython.locals(c=Block, one=uint32_t)
    cdef Block unkeep(self, int n)
    @cython.locals(i=int, c=Block, s=Segment)
    cdef int flush(self, Counters counters) except -1
    @cython.locals(k=int, c=Block)
    cdef Block fit(self, int b, size_t n)
    @cython.locals(b=int, head=Block)
    cdef int push(self, Block c) except -1
    @cython.locals(p=Block, q=Block)
    cdef int unlink(self, Block c) except -1
