"""CuPy's tests of limits: set_limit, get_limit, CUPY_GPU_MEMORY_LIMIT."""

import numpy as np
import pytest
from conformity import UNIT, memory

from cachepool import CachePool, SimDevice

GIB = 2**30


def units(pool, n):
    return pool.malloc(n * UNIT)


class TestWhatALimitDoes:
    def test_requests_fit_up_to_the_limit_and_no_further(self, pool):
        pool.set_limit(size=6 * UNIT)
        p1, p2 = units(pool, 5), units(pool, 1)
        with pytest.raises(memory.OutOfMemoryError):
            units(pool, 1)
        pool.set_limit(size=7 * UNIT)
        p3 = units(pool, 1)
        assert pool.total_bytes() == 7 * UNIT
        del p1, p2, p3

    def test_cached_memory_makes_room_under_the_limit(self, pool):
        pool.set_limit(size=6 * UNIT)
        units(pool, 5)
        p = units(pool, 6)
        assert pool.total_bytes() == 6 * UNIT
        del p

    def test_a_request_over_the_limit_flushes_nothing(self, pool, sim):
        pool.set_limit(size=6 * UNIT)
        units(pool, 5)
        with pytest.raises(memory.OutOfMemoryError):
            units(pool, 7)
        assert pool.total_bytes() == 5 * UNIT

    def test_garbage_in_a_cycle_makes_room_under_the_limit(self, pool):
        pool.set_limit(size=6 * UNIT)
        ring = [units(pool, 5)]
        ring.append(ring)
        del ring
        p = units(pool, 6)
        assert pool.used_bytes() == 6 * UNIT
        del p

    def test_lowering_the_limit_below_the_total_takes_nothing_away(self, exact):
        p = units(exact, 8)
        exact.set_limit(size=4 * UNIT)
        assert exact.total_bytes() == 8 * UNIT
        del p
        p = units(exact, 8)  # cached memory is not new memory
        assert exact.total_bytes() == 8 * UNIT
        del p

    def test_a_limit_is_of_the_current_device_alone(self, pool, sim):
        with sim.use(1):
            pool.set_limit(size=UNIT)
            with pytest.raises(memory.OutOfMemoryError):
                units(pool, 2)
        assert pool.get_limit() == 0
        p = units(pool, 2)
        assert pool.used_bytes() == 2 * UNIT
        del p


class TestSettingALimit:
    def test_there_is_none_at_first(self, pool):
        assert pool.get_limit() == 0

    @pytest.mark.parametrize("size", [1024, 2**33, np.int64(1024)])
    def test_a_size_is_read_back(self, pool, size):
        pool.set_limit(size=size)
        assert pool.get_limit() == size

    @pytest.mark.parametrize("how", [{"size": 0}, {}, {"fraction": 0}])
    def test_0_or_nothing_is_no_limit(self, pool, how):
        pool.set_limit(size=1024)
        pool.set_limit(**how)
        assert pool.get_limit() == 0

    @pytest.mark.parametrize(("fraction", "limit"), [(0.5, GIB // 2), (1.0, GIB), (1, GIB)])
    def test_a_fraction_is_of_the_devices_memory(self, pool, fraction, limit):
        pool.set_limit(fraction=fraction)
        assert pool.get_limit() == limit

    @pytest.mark.parametrize(
        "how",
        [
            {"size": -1},
            {"fraction": -1},
            {"fraction": 1.1},
            {"fraction": float("nan")},
            {"size": 0, "fraction": 0.5},
            {"size": 1024, "fraction": 0.5},
        ],
    )
    def test_what_is_out_of_range_or_said_twice_changes_nothing(self, pool, how):
        pool.set_limit(size=2048)
        with pytest.raises(ValueError, match=r"size|fraction"):
            pool.set_limit(**how)
        assert pool.get_limit() == 2048

    def test_a_size_may_be_text_which_cupy_does_not_take(self, pool):
        pool.set_limit("512MiB")
        assert pool.get_limit() == 512 * 2**20


class TestTheEnvironmentVariable:
    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("0", 0),
            ("1073741824", GIB),
            ("0%", 0),
            ("40%", int(2 * GIB * 0.4)),
            ("70.5%", int(2 * GIB * 0.705)),
            ("100%", 2 * GIB),
        ],
    )
    def test_what_cupy_reads_is_read_as_by_cupy(self, monkeypatch, text, limit):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
        cupys = memory._parse_limit_string(text)
        assert limit == (cupys["size"] or int((cupys["fraction"] or 0) * 2 * GIB))
        assert CachePool(SimDevice("2GiB")).get_limit() == limit

    @pytest.mark.parametrize("text", ["-1", "101%", "-1%", "half", "%"])
    def test_what_cupy_refuses_is_a_value_error(self, monkeypatch, text):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
        with pytest.raises(ValueError, match="CUPY_GPU_MEMORY_LIMIT"):
            CachePool(SimDevice("2GiB"))

    def test_set_limit_supersedes_it(self, monkeypatch):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "50%")
        pool = CachePool(SimDevice("2GiB"))
        pool.set_limit(size=4096)
        assert pool.get_limit() == 4096

    def test_it_holds_for_every_device(self, monkeypatch):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "25%")
        sim = SimDevice("2GiB", devices=2)
        pool = CachePool(sim)
        with sim.use(1):
            assert pool.get_limit() == GIB // 2
        assert pool.get_limit() == GIB // 2
