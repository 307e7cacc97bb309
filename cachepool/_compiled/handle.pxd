cimport cython
from libc.stdint cimport intptr_t

from cupy.cuda.memory cimport BaseMemory, MemoryPointer

from .engine.blocks cimport UNIT_BITS, Block
from .engine.heap cimport Heap

cdef extern from *:
    """
    typedef intptr_t (*cp_current_fn)(void);
    typedef intptr_t (*cp_stream_fn)(int);
    typedef int (*cp_flag_fn)(int);
    """
    ctypedef intptr_t (*cp_current_fn)() except? -1
    ctypedef intptr_t (*cp_stream_fn)(int) except? -1
    ctypedef int (*cp_flag_fn)(int) except? -1

cdef extern from "Python.h":
    void *PyCapsule_GetPointer(object, const char *) except NULL
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef cp_current_fn _current_fn
cdef cp_stream_fn _stream_fn
cdef cp_flag_fn _device_fn
cdef cp_flag_fn _hooks_fn

cdef bint hooked

cdef inline bint bind(stream_mod, device_mod, hook_mod) except -1:
    global _current_fn, _stream_fn, _device_fn, _hooks_fn
    streams = stream_mod.__pyx_capi__
    _current_fn = <cp_current_fn>PyCapsule_GetPointer(
        streams["get_current_stream_ptr"], b"intptr_t (void)")
    _stream_fn = NULL
    if "get_stream_ptr" in streams:  # since 14: saves asking for the device again
        _stream_fn = <cp_stream_fn>PyCapsule_GetPointer(
            streams["get_stream_ptr"], b"intptr_t (int)")
    _device_fn = <cp_flag_fn>PyCapsule_GetPointer(
        device_mod.__pyx_capi__["get_device_id"], b"int (int __pyx_skip_dispatch)")
    _hooks_fn = <cp_flag_fn>PyCapsule_GetPointer(
        hook_mod.__pyx_capi__["_has_memory_hooks"], b"int (int __pyx_skip_dispatch)")
    return True

cdef inline intptr_t cur_stream(int device) except? -1:
    if _stream_fn != NULL:
        return _stream_fn(device)
    return _current_fn()

cdef inline int cur_device(int skip) except? -1:
    return _device_fn(0)

cdef inline bint has_hooks() except -1:
    return _hooks_fn(0) != 0

cdef inline long long plain_size(object size) except? -1:
    cdef int overflow = 0
    cdef long long n
    if type(size) is not int:
        return -1
    n = PyLong_AsLongLongAndOverflow(size, &overflow)
    return -1 if overflow or n > (<long long>1 << 47) else n

cdef inline MemoryPointer make_pointer(Handle h):
    cdef MemoryPointer p = MemoryPointer.__new__(MemoryPointer)
    p.ptr = h.ptr
    p.device_id = h.device_id
    p.mem = h
    return p

cdef class Handle(BaseMemory):
    cdef Heap heap
    cdef Block block
    @cython.locals(b=Block, h=Heap)
    cpdef free(self)

cdef class Allocator:
    cdef object __weakref__
    cdef object heap_of, check_size, device, handed_out
    cdef bint native
    cdef Heap last
    @cython.locals(n="long long")
    cpdef MemoryPointer malloc(self, object size)
    @cython.locals(device=int, key=intptr_t, heap=Heap, b=Block, h=Handle)
    cpdef MemoryPointer serve(self, size_t n)
    cpdef int device_id(self) except -1
    cpdef forget(self)

@cython.locals(h=Handle, p=object, mem=object)
cdef _self_test()
