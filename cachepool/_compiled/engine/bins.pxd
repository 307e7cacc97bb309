cimport cython
from libc.stdint cimport uint32_t, uint64_t

from .blocks cimport Block
from .counters cimport Counters

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static __forceinline int cp_ctz(unsigned long long x)
    { unsigned long i; _BitScanForward64(&i, x); return (int)i; }
    static __forceinline int cp_bitlen(unsigned long long x)
    { unsigned long i; return _BitScanReverse64(&i, x) ? (int)i + 1 : 0; }
    #else
    #define cp_ctz(x) __builtin_ctzll(x)
    #define cp_bitlen(x) (64 - __builtin_clzll(x))
    #endif
    """
    int ctz "cp_ctz"(uint64_t) noexcept nogil
    int bitlen "cp_bitlen"(uint64_t) noexcept nogil

@cython.no_gc
cdef class BinIndex:
    cdef Counters counters
    cdef readonly uint64_t top
    cdef readonly uint32_t[64] words
    cdef readonly list heads
    cdef readonly Py_ssize_t n_free
    @cython.locals(b=int, c=Block)
    cdef Block take(self, size_t n)
    @cython.locals(p=Block, q=Block)
    cdef int give(self, Block c) except -1
    cdef Block fit(self, int b, size_t n)
    cdef int push(self, Block c) except -1
    cdef int unlink(self, Block c) except -1
    @cython.locals(s=int)
    cdef int bin_of(self, size_t n) noexcept
    @cython.locals(one=uint64_t)
    cdef int mark(self, int b) except -1
    @cython.locals(one=uint64_t)
    cdef int clear(self, int b) except -1
    @cython.locals(i=int, m=uint32_t, f=uint64_t)
    cdef int after(self, int b) noexcept
