cimport cython
from libc.stdint cimport int64_t, intptr_t

from .blocks cimport SMALL_UNITS, UNIT_BITS, Block, Segment
from .cache cimport Cache
from .counters cimport RESERVED, Counters
from .turns cimport Turns

cdef class Heap(Turns):
    cdef readonly int device
    cdef readonly object upstream, growth, out_of_memory
    cdef public int64_t limit
    cdef readonly int64_t promised
    cdef readonly list caches
    cdef readonly dict by_key
    cdef readonly Cache last
    cdef readonly Counters counters
    cdef Py_ssize_t alone
    cdef readonly dict segments, limbo
    cdef public int64_t retries, ooms, rejections, syncs, device_allocs, device_frees
    @cython.locals(n=size_t, b=Block, cache=Cache)
    cpdef Block allocate(self, size_t size, intptr_t key)
    cpdef int release(self, Block b) except -1
    cdef Block obtain(self, Cache cache, size_t n, size_t size)
    @cython.locals(b=Block)
    cdef Block pick(self, Cache cache, size_t n, size_t size)
    @cython.locals(cache=Cache, s=Segment, n=int64_t, requested=int64_t, tiles=Py_ssize_t)
    cdef int put(self, Block b) except -1
    @cython.locals(b=Block)
    cdef Block miss(self, Cache cache, size_t n, size_t size)
    cdef object refuse(self, size_t size)
    cdef Block again(self, Cache cache, size_t n, size_t size)
    cdef Block grow(self, Cache cache, size_t n, size_t size)
    cdef int64_t room(self) except -2
    cdef bint promise(self, int64_t nbytes) except -1
    cdef withdraw(self, int64_t nbytes)
    @cython.locals(b=Block, s=Segment)
    cdef Block arrive(self, Cache cache, object held, size_t nbytes, size_t n, size_t size)
    @cython.locals(rest=Block, s=Segment)
    cdef int admit(self, Cache cache, Block b) except -1
    @cython.locals(s=Segment, given=int64_t)
    cpdef int64_t trim(self, Cache only, object faults) except -1
    @cython.locals(s=Segment, c=Cache, cache=Cache)
    cdef list detach(self, Cache only)
    @cython.locals(s=Segment)
    cdef attach(self, list segments)
    @cython.locals(entered=bint)
    cdef drop(self, Segment s)
    @cython.locals(c=Cache, new=Cache)
    cpdef Cache cache_of(self, intptr_t key)
    @cython.locals(c=Cache)
    cdef Cache cache_at(self, int number)
    @cython.locals(c=Cache)
    cdef forget_streams(self)
    cdef Py_ssize_t holders(self, Cache c) except -1
    @cython.locals(s=Segment, b=Block, largest=size_t, total=size_t, runs=size_t, whole=size_t, run=size_t, entered=bint)
    cpdef tuple free_space(self)
