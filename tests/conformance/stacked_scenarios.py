"""Our pool over and under CuPy's own; run in a process of its own, on the stand-in.

Each function that begins with ``scenario_`` is a test; `test_cupy_stacked_pools` reports it.
"""

import json
import random
import sys
import traceback

import pytest

MIB = 2**20
UNIT = 512


def new_sim(capacity="1GiB"):
    from cachepool import SimDevice

    return SimDevice(capacity)


def scenario_the_stand_in_runs_cupys_own_pool():
    from conformity import Rising, cupy

    pool = cupy.cuda.MemoryPool(Rising(new_sim()))
    p = pool.malloc(1)
    assert (type(p.mem).__name__, pool.used_bytes()) == ("PooledMemory", UNIT)


def scenario_under_cupys_pool_our_books_are_those_of_its_segments():
    from conformity import cupy

    from cachepool import CachePool

    pool = CachePool(new_sim())
    above = cupy.cuda.MemoryPool(pool.malloc)
    p = above.malloc(1000)
    assert above.total_bytes() == pool.used_bytes() == 1024
    del p
    assert pool.used_bytes() == 1024
    above.free_all_blocks()
    assert pool.used_bytes() == 0


def scenario_under_cupys_pool_our_error_makes_it_flush_and_retry():
    from conformity import cupy

    from cachepool import CachePool

    pool = CachePool(new_sim("8MiB"))
    above = cupy.cuda.MemoryPool(pool.malloc)
    above.malloc(6 * MIB)
    p = above.malloc(8 * MIB)
    assert above.total_bytes() == pool.used_bytes() == 8 * MIB
    del p


def scenario_under_cupys_pool_that_finds_nothing_the_error_is_cupys_own():
    from conformity import cupy, memory

    import cachepool

    pool = cachepool.CachePool(new_sim("8MiB"))
    above = cupy.cuda.MemoryPool(pool.malloc)
    held = above.malloc(6 * MIB)
    with pytest.raises(memory.OutOfMemoryError) as caught:
        above.malloc(4 * MIB)
    assert caught.type is memory.OutOfMemoryError
    assert above.total_bytes() == pool.used_bytes() == 6 * MIB
    pool.check()
    del held


def scenario_over_cupys_pool_its_books_are_those_of_our_segments():
    from conformity import Rising, cupy

    from cachepool import CachePool

    sim = new_sim()
    base = cupy.cuda.MemoryPool(Rising(sim))
    pool = CachePool(sim, backing=base.malloc)
    p = pool.malloc(1000)
    assert base.used_bytes() == pool.total_bytes() == 1024
    del p
    pool.free_all_blocks()
    assert (base.used_bytes(), base.free_bytes(), pool.total_bytes()) == (0, 1024, 0)


def scenario_over_cupys_pool_its_out_of_memory_makes_ours_give_back_and_retry():
    from conformity import Rising, cupy

    import cachepool

    sim = new_sim()
    base = cupy.cuda.MemoryPool(Rising(sim))
    base.set_limit(size=8 * UNIT)
    pool = cachepool.CachePool(sim, backing=base.malloc)
    pool.malloc(6 * UNIT)
    p = pool.malloc(8 * UNIT)
    assert pool.used_bytes() == 8 * UNIT
    with pytest.raises(cachepool.OutOfMemoryError):
        pool.malloc(1)
    pool.check()
    del p


def scenario_over_a_python_function_allocator_both_functions_are_called():
    from conformity import memory

    from cachepool import CachePool

    sim = new_sim()
    calls = []

    def malloc(size, device):
        calls.append(("malloc", size, device))
        return sim.reserve(size, device)

    def free(ptr, device):
        calls.append(("free", ptr, device))

    pool = CachePool(sim, backing=memory.PythonFunctionAllocator(malloc, free).malloc)
    p = pool.malloc(1)
    ptr = p.ptr
    assert p.mem.identity == "PythonFunctionAllocatorMemory"
    del p
    assert calls == [("malloc", UNIT, 0)]
    pool.free_all_blocks()
    assert calls == [("malloc", UNIT, 0), ("free", ptr, 0)]


def scenario_hooks_hear_the_same_from_both_pools():
    from conformity import Recorder, Rising, cupy

    from cachepool import CachePool

    def story(pool):
        hook = Recorder()
        with hook:
            held = [pool.malloc(n) for n in (1, 5000, 0, 3 * MIB)]
            del held[1]
            held.append(pool.malloc(4000))
            held[-1].mem.free()
            held.clear()
        facts = ("size", "mem_size", "device_id")
        return [
            (name, {k: v for k, v in keywords.items() if k in facts}, set(keywords))
            for name, keywords in hook.calls
        ]

    sim = new_sim()
    ours, cupys = CachePool(sim, backing=Rising(sim)), cupy.cuda.MemoryPool(Rising(sim))
    assert story(ours) == story(cupys)


def scenario_large_requests_lie_where_cupys_own_pool_puts_them():
    """Over 1 MiB both are exact best fits over exact segments: the same addresses, always."""
    from conformity import Rising, cupy

    from cachepool import CachePool

    for seed in range(5):
        choose = random.Random(seed)
        sims = new_sim(None), new_sim(None)
        pools = (
            CachePool(sims[0], backing=Rising(sims[0])),
            cupy.cuda.MemoryPool(Rising(sims[1])),
        )
        live = []
        for step in range(600):
            what = choose.random()
            if what < 0.01:
                for pool in pools:
                    pool.free_all_blocks()
            elif live and what < 0.5:
                live.pop(choose.randrange(len(live)))
            else:
                nbytes = choose.randint(MIB + 1, 64 * MIB)
                live.append([pool.malloc(nbytes) for pool in pools])
                ours, cupys = live[-1]
                assert (ours.ptr, ours.mem.size) == (cupys.ptr, cupys.mem.size), (seed, step)
            for figure in ("used_bytes", "total_bytes", "free_bytes", "n_free_blocks"):
                ours, cupys = (getattr(pool, figure)() for pool in pools)
                assert ours == cupys, (seed, step, figure)
        assert sims[0].calls["reserve"] == sims[1].calls["reserve"] > 20


def names():
    """Return the names of the scenarios."""
    return [name for name in globals() if name.startswith("scenario_")]


def main():
    """Run every scenario on the stand-in; print what each came to: "" or a traceback."""
    import stand_in

    stand_in.install()
    outcomes = {}
    for name in names():
        try:
            globals()[name]()
        except Exception:
            outcomes[name] = traceback.format_exc()
        else:
            outcomes[name] = ""
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
