cimport cython
from libc.stdint cimport intptr_t

from .blocks cimport UNIT_BITS, Block
from .heap cimport Heap

cdef class Allocation:
    cdef Heap heap
    cdef Block block
    cdef readonly intptr_t ptr
    cdef readonly size_t size, requested
    cdef readonly intptr_t stream
    cdef readonly int device
    @cython.locals(b=Block, h=Heap)
    cpdef release(self)

@cython.locals(a=Allocation, b=Block)
cpdef Allocation lease(Heap heap, size_t size, intptr_t key)
