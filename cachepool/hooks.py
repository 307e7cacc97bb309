"""Calling CuPy's memory hooks as CuPy's own pool does: same calls, keywords and order.

Hooks belong to a thread and are arbitrary Python: they are called with nothing held.  An
exception of a hook never loses memory, not even in a destructor.

To ask CuPy whether this thread has hooks takes as long as a third of a cache hit, and twice
a block's life; so `watch` waits for the first hook of the process to be entered.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachepool.engine.blocks import Block
    from cachepool.engine.heap import Heap


def installed() -> list[Any]:
    """Return the calling thread's hooks, in order of registration."""
    memory_hook = sys.modules.get("cupy.cuda.memory_hook")
    if memory_hook is None or not memory_hook._has_memory_hooks():
        return []
    return list(memory_hook.get_memory_hooks().values())


def watch(notice: Callable[[], None]) -> bool:
    """Have `notice` called when a hook is entered; return whether there may be one already.

    Wraps ``MemoryHook.__enter__``, the one way in.  Of hooks entered before, only this
    thread's can be seen: with other threads running, the answer is yes.
    """
    from cupy.cuda import memory_hook

    enter = memory_hook.MemoryHook.__enter__

    @functools.wraps(enter)
    def noticed(self: Any) -> Any:
        notice()
        return enter(self)

    memory_hook.MemoryHook.__enter__ = noticed
    return bool(memory_hook._has_memory_hooks()) or threading.active_count() > 1


def malloc(serve: Callable[[int], Any], device_id: int, size: int) -> Any:
    """Serve a request of `size` bytes between the hooks' malloc calls."""
    mem_size = -(-size // 512) * 512
    hooks = installed()
    for hook in hooks:
        hook.malloc_preprocess(device_id=device_id, size=size, mem_size=mem_size)
    mem_ptr = pmem_id = 0
    try:
        pointer = serve(size)
        mem_ptr = pointer.ptr
        pmem_id = id(pointer.mem)
    finally:
        for hook in hooks:
            hook.malloc_postprocess(
                device_id=device_id, size=size, mem_size=mem_size, mem_ptr=mem_ptr, pmem_id=pmem_id
            )
    return pointer


def reserve(
    take: Callable[[int], Any], give_back: Callable[[Any], None], device_id: int, mem_size: int
) -> Any:
    """Take `mem_size` bytes from upstream between the hooks' alloc calls.

    What was taken is given back if a hook raises then: nobody else would know of it.
    """
    hooks = installed()
    for hook in hooks:
        hook.alloc_preprocess(device_id=device_id, mem_size=mem_size)
    held = None
    try:
        try:
            held = take(mem_size)
        finally:
            mem_ptr = 0 if held is None else held.ptr
            for hook in hooks:
                hook.alloc_postprocess(device_id=device_id, mem_size=mem_size, mem_ptr=mem_ptr)
    except BaseException:
        if held is not None:
            give_back(held)
        raise
    return held


def release(
    heap: Heap, block: Block, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int
) -> None:
    """Release a block between the hooks' free calls; it goes home whatever they raise."""
    facts = {"device_id": device_id, "mem_size": mem_size, "mem_ptr": mem_ptr, "pmem_id": pmem_id}
    hooks = installed()
    try:
        for hook in hooks:
            hook.free_preprocess(**facts)
    finally:
        heap.release(block)
        for hook in hooks:
            hook.free_postprocess(**facts)
