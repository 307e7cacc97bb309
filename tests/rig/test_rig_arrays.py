"""Real array work on the pool, compared with numpy's."""

import logging
import os

import numpy as np
import pytest
from rigging import MIB

import cachepool
from cachepool import _form

cupy = pytest.importorskip("cupy")

HOST = np.random.default_rng(20).standard_normal((300, 70))


def ring(xp):
    x = xp.asarray(HOST)
    x[1:-1] = x[:-2] + x[2:]
    return x


OPERATIONS = {
    "asarray": lambda xp: xp.asarray(HOST),
    "arange": lambda xp: xp.arange(5000, dtype="f8"),
    "zeros": lambda xp: xp.zeros((100, 200)),
    "full": lambda xp: xp.full(1000, 2.5),
    "add": lambda xp: xp.asarray(HOST) + xp.asarray(HOST[0]),
    "multiply and add": lambda xp: xp.asarray(HOST) * 3 + xp.asarray(HOST),
    "sum": lambda xp: xp.asarray(HOST).sum(),
    "sum of columns": lambda xp: xp.asarray(HOST).sum(axis=0),
    "maximum": lambda xp: xp.asarray(HOST).max(),
    "transpose": lambda xp: xp.ascontiguousarray(xp.asarray(HOST).T),
    "steps": lambda xp: xp.asarray(HOST)[::3, 1:].copy(),
    "concatenate": lambda xp: xp.concatenate([xp.asarray(HOST), xp.asarray(HOST)]),
    "assign to a slice": ring,
    "empty shape": lambda xp: xp.zeros((0, 5)),
}


class TestEnable:
    def test_it_takes_the_device_that_cupy_sees_and_says_nothing_of_simulation(self, rig, caplog):
        caplog.set_level(logging.DEBUG)
        with cachepool.enable() as pool:
            assert pool.device.name == "cuda"
            assert pool.device.count() == cupy.cuda.runtime.getDeviceCount()
        assert caplog.text == ""

    def test_the_handles_have_the_form_of_the_engine(self):
        wish = os.environ.get("CACHEPOOL_FORM", "auto")
        compiled = _form.handle().__name__ == "cachepool._compiled.handle"
        assert compiled is cachepool.__compiled__
        assert wish in ("auto", "compiled" if compiled else "pure")

    def test_cupys_default_pool_is_the_pool_until_it_is_disabled(self, rig):
        before = cupy.get_default_memory_pool()
        with cachepool.enable() as pool:
            x = cupy.empty(3 * MIB, "u1")
            assert cupy.get_default_memory_pool() is pool
            assert cupy.get_default_memory_pool().used_bytes() == 3 * MIB
            del x
            cupy.get_default_memory_pool().free_all_blocks()
            assert pool.memory_reserved() == 0
        assert cupy.get_default_memory_pool() is before

    def test_an_array_outlives_the_pool_that_served_it(self, rig):
        used = rig.used()
        with cachepool.enable():
            x = cupy.asarray(HOST)
        assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc
        assert (cupy.asnumpy(x) == HOST).all()
        assert rig.used() > used


class TestValues:
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_results_are_numpys(self, pool, name):
        operation = OPERATIONS[name]
        result = cupy.asnumpy(operation(cupy))
        np.testing.assert_allclose(result, operation(np), rtol=1e-12)

    @pytest.mark.parametrize("nbytes", [1, 511, 513, MIB, MIB + 1, 9 * MIB])
    def test_a_round_trip_returns_every_byte(self, pool, nbytes):
        host = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1")
        device = cupy.asarray(host)
        assert pool.memory_allocated() == -(-nbytes // 512) * 512
        assert (cupy.asnumpy(device) == host).all()

    def test_a_long_loop_of_mixed_sizes_keeps_every_live_array_intact(self, pool):
        rng = np.random.default_rng(7)
        live = []
        for _ in range(300):
            host = rng.standard_normal(int(2 ** rng.uniform(0, 18)))
            live.append((host, cupy.asarray(host) * 3 + cupy.asarray(host)))
            if len(live) > 12:
                expected, array = live.pop(int(rng.integers(len(live))))
                np.testing.assert_allclose(cupy.asnumpy(array), expected * 4, rtol=1e-12)
        for expected, array in live:
            np.testing.assert_allclose(cupy.asnumpy(array), expected * 4, rtol=1e-12)
        pool.check()

    def test_two_streams_joined_by_an_event_compute_what_one_would(self, pool, rig):
        a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with a:
            x = cupy.asarray(HOST)
            rig.work(a, 10**9)
            y = x * 3 + x
            ready = a.record()
        b.wait_event(ready)
        with b:
            z = y.sum(axis=0)
            assert not ready.done
            total = z.get(stream=b)
        b.synchronize()
        np.testing.assert_allclose(total, (HOST * 4).sum(axis=0), rtol=1e-12)

    def test_streams_that_work_side_by_side_do_not_mix_their_temporaries(self, pool, rig):
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        sums = [None] * 3
        for turn in range(20):
            for i, stream in enumerate(streams):
                with stream:
                    rig.work(stream, 10_000 * ((i + turn) % 3))
                    x = cupy.full(1000, float(i + 1))
                    y = x * 3 + x
                    sums[i] = y if sums[i] is None else sums[i] + y
        for i, stream in enumerate(streams):
            stream.synchronize()
            assert (sums[i].get(stream=stream) == 20 * 4.0 * (i + 1)).all()


class TestSeedExample:
    def test_released_memory_is_cached_and_empty_cache_gives_it_back(self, pool, rig):
        used = rig.used()
        x = cupy.empty((1000, 1000), "f4")
        assert cachepool.memory_allocated() == 4_000_256
        assert cachepool.memory_reserved() == rig.used() - used == 4 * MIB
        del x
        assert cachepool.memory_allocated() == 0
        assert cachepool.memory_reserved() == rig.used() - used == 4 * MIB
        assert cachepool.empty_cache() == 4 * MIB
        assert cachepool.memory_reserved() == rig.used() - used == 0

    def test_a_loop_asks_the_device_once(self, pool, rig):
        calls = rig.calls("hipMalloc")
        for _ in range(50):
            x = cupy.empty(5 * MIB, "u1")
            del x
        assert rig.calls("hipMalloc") == calls + 1
