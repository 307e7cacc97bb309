"""The stand-in HIP runtime as tests see it: its clock, its books, its faults."""

import ctypes

MIB = 2**20
COUNTS = (
    "now",
    "used",
    "count",
    "live",
    "pending",
    "live_streams",
    "freed_under_pending",
)


def find_rig():
    """Return the rig under the CuPy that is installed, or the reason why there is none."""
    try:
        import cupy
    except ImportError as error:
        return f"the rig needs CuPy's ROCm wheel: {error}"
    if not cupy.cuda.runtime.is_hip:
        return "the rig needs CuPy's ROCm wheel; the CuPy here is the CUDA one"
    library = ctypes.CDLL("libamdhip64.so.7")
    if not hasattr(library, "hiprig_now"):
        return "CuPy runs on AMD's own HIP runtime, not on the stand-in"
    if cupy.cuda.runtime.getDeviceCount() < 2:
        return "the rig needs two devices: set HIPRIG_DEVICES=2"
    return Rig(library)


def peek(ptr, nbytes=1):
    """Read device memory as it is now, past every queue: on the rig it is host memory."""
    return ctypes.string_at(ptr, nbytes)


class Rig:
    """Control of the stand-in runtime; times in virtual nanoseconds, sizes in bytes."""

    def __init__(self, library):
        for name in COUNTS:
            getattr(library, f"hiprig_{name}").restype = ctypes.c_uint64
        library.hiprig_count.argtypes = [ctypes.c_char_p]
        library.hiprig_stream_work.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        library.hiprig_set_capacity.argtypes = [ctypes.c_int, ctypes.c_size_t]
        library.hiprig_fail_malloc.argtypes = [ctypes.c_long]
        library.hiprig_advance.argtypes = [ctypes.c_uint64]
        self.library = library
        self.now = library.hiprig_now
        self.pending = library.hiprig_pending
        self.advance = library.hiprig_advance
        self.live_streams = library.hiprig_live_streams
        self.freed_under_pending = library.hiprig_freed_under_pending
        self.fail_malloc = library.hiprig_fail_malloc

    def used(self, device=0):
        """Return the bytes that are taken from a device."""
        return self.library.hiprig_used(device)

    def live_managed(self):
        """Return the number of managed allocations."""
        return self.library.hiprig_live(3)

    def calls(self, name):
        """Return how often a HIP function was called."""
        return self.library.hiprig_count(name.encode())

    def leave_room(self, nbytes, device=0):
        """Let a device have so much memory free from now on."""
        self.library.hiprig_set_capacity(device, self.used(device) + nbytes)

    def capacity(self, nbytes, device=0):
        """Let a device have so much memory in all."""
        self.library.hiprig_set_capacity(device, nbytes)

    def work(self, stream, nanoseconds):
        """Keep a stream busy, as a kernel of that length would."""
        assert self.library.hiprig_stream_work(stream.ptr, nanoseconds) == 0

    def write_late(self, stream, pointer, value, nbytes):
        """Have a stream write, a virtual second from now."""
        self.work(stream, 10**9)
        with stream:
            pointer.memset_async(value, nbytes)
