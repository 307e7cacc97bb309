"""Input that is none: a clear error or the documented behaviour, and the pool unchanged."""

from __future__ import annotations

import copy
import pickle
import types

import cupy
import numpy as np
import pytest

import cachepool
from cachepool import CachePool, OptionError, SimDevice
from cachepool.devices import cuda, cupy_edge, find
from cachepool.errors import DeviceError

MIB = 1 << 20


@pytest.fixture
def pool():
    """A pool with something live and something cached, which must be unchanged at the end."""
    pool = CachePool(SimDevice("1GiB", devices=2))
    live, cached = pool.allocate(700), pool.allocate(3 * MIB)
    cached.release()
    kept = ("allocation.all.current", "requested_bytes.all.current", "reserved_bytes.all.current")
    before = {key: pool.memory_stats()[key] for key in kept}
    yield pool
    assert {key: pool.memory_stats()[key] for key in kept} == before
    pool.check()
    live.release()


class TestSizes:
    @pytest.mark.parametrize("size", [1.0, 512.5, "512", None, True, np.float64(8), [8], b"8"])
    def test_what_is_no_integer_is_a_type_error_that_names_it(self, pool, size):
        for request in (pool.malloc, pool.allocate):
            with pytest.raises(TypeError, match="whole number of bytes"):
                request(size)

    @pytest.mark.parametrize("size", [-1, -(2**63), -(2**70), np.int64(-5)])
    def test_a_negative_size_is_a_value_error(self, pool, size):
        for request in (pool.malloc, pool.allocate):
            with pytest.raises(ValueError, match="negative"):
                request(size)

    @pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.uint64])
    def test_numpys_integers_are_sizes(self, pool, kind):
        pointer = pool.malloc(kind(100))
        assert pointer.mem.size == 512
        assert pool.allocate(kind(100)).requested == 100

    @pytest.mark.parametrize("size", [2**47 + 1, 2**62, 2**63, 2**64, 2**100, np.uint64(2**63)])
    def test_beyond_the_address_space_it_is_out_of_memory_at_once(self, pool, size):
        calls = pool.device.calls["reserve"]
        for request in (pool.malloc, pool.allocate):
            with pytest.raises(cachepool.OutOfMemoryError) as caught:
                request(size)
            assert caught.value.report.asked == size
            assert pickle.loads(pickle.dumps(caught.value)).report == caught.value.report
        assert pool.device.calls["reserve"] == calls

    def test_cupys_own_wrapped_sizes_reach_the_pool_as_cupy_wraps_them(self, pool):
        with cachepool.enable(pool):
            with pytest.raises(cachepool.OutOfMemoryError):
                cupy.empty(2**62, "i1")
            wrapped = cupy.empty((2**31, 2**31), "f8")  # 2**65 bytes: CuPy asks for 0
            assert (wrapped.data.ptr, wrapped.data.mem.size) == (0, 0)
            with pytest.raises(ValueError, match="negative"):
                cupy.cuda.alloc(-1)

    def test_nothing_asked_is_a_null_pointer_that_costs_nothing(self, pool):
        pointer, allocation = pool.malloc(0), pool.allocate(0)
        assert (pointer.ptr, pointer.mem.size, allocation.ptr, allocation.size) == (0, 0, 0, 0)


class TestDevices:
    @pytest.mark.parametrize("device", [-1, 2, 99])
    def test_an_ordinal_out_of_range_is_a_value_error_that_names_the_range(self, pool, device):
        for call in (pool.memory_allocated, pool.memory_stats, pool.mem_get_info, pool.empty_cache):
            with pytest.raises(ValueError, match="from 0 to 1"):
                call(device)
        with pytest.raises(ValueError, match="from 0 to 1"):
            pool.allocate(100, device=device)

    @pytest.mark.parametrize("device", ["cuda:0", 1.0, True, [0]])
    def test_what_is_no_ordinal_is_a_type_error(self, pool, device):
        with pytest.raises(TypeError, match="ordinal"):
            pool.memory_reserved(device)

    def test_numpys_integers_are_ordinals(self, pool):
        assert pool.memory_allocated(np.int32(1)) == 0

    @pytest.mark.parametrize("device", ["gpu", "cudo", "sim-8GiB", "", "cuda:0"])
    def test_an_unknown_device_names_the_known_ones(self, device):
        with pytest.raises(OptionError, match="unknown device"):
            CachePool(device)

    @pytest.mark.parametrize("device", [5, None, object()])
    def test_an_object_that_is_no_device_is_refused(self, device):
        with pytest.raises(OptionError, match="Device"):
            CachePool(device)

    def test_a_stream_that_is_none_or_of_another_machine_is_refused(self, pool):
        for stream in ("s", 1.5, SimDevice().stream()):
            with pytest.raises((TypeError, ValueError)):
                pool.allocate(100, stream=stream)


class TestCapacity:
    @pytest.mark.parametrize(
        ("text", "nbytes"),
        [("8GiB", 8 << 30), ("8 GB", 8 << 30), ("1.5mib", 3 << 19), ("4096", 4096), (2**20, MIB)],
    )
    def test_sizes_as_people_write_them(self, text, nbytes):
        assert CachePool("sim", capacity=text).mem_get_info()[1] == nbytes

    def test_it_may_stand_in_the_device_string(self):
        assert CachePool("sim:2GiB").mem_get_info() == (2 << 30, 2 << 30)

    @pytest.mark.parametrize("text", ["nonsense", "8 apples", "GiB", "-1GiB", "1e9", -5, 1.5, True])
    def test_nonsense_is_an_option_error_that_shows_it(self, text):
        with pytest.raises(OptionError, match="capacity"):
            CachePool("sim", capacity=text)

    def test_twice_is_an_option_error(self):
        with pytest.raises(OptionError, match="once"):
            CachePool("sim:2GiB", capacity="1GiB")

    def test_for_another_device_it_is_an_option_error(self):
        with pytest.raises(OptionError, match="capacity"):
            CachePool(SimDevice(), capacity="1GiB")

    def test_on_cuda_the_error_names_limit(self):
        with pytest.raises(OptionError, match="limit"):
            CachePool("cuda", capacity="1GiB")


class TestOptions:
    def test_an_unknown_name_suggests_the_nearest(self):
        with pytest.raises(OptionError, match=r"'limt'.*did you mean 'limit'"):
            CachePool("sim", limt=5)

    def test_far_from_all_names_it_lists_them(self):
        with pytest.raises(OptionError, match=r"known: backing, limit"):
            CachePool("sim", colour="red")

    @pytest.mark.parametrize("limit", ["lots", -1, 1.5, -0.1, True, [5], "150%"])
    def test_a_limit_that_is_none_is_refused(self, limit):
        with pytest.raises(OptionError, match="limit"):
            CachePool("sim", limit=limit)

    @pytest.mark.parametrize("backing", ["vmm", 5, None])
    def test_a_backing_that_is_none_is_refused(self, backing):
        with pytest.raises(OptionError, match="backing"):
            CachePool("sim", backing=backing)

    @pytest.mark.parametrize("returned", [None, 5, "x"])
    def test_a_backing_that_returns_no_pointer_is_a_type_error(self, returned):
        pool = CachePool("sim", backing=lambda nbytes: returned)
        with pytest.raises(TypeError, match="MemoryPointer"):
            pool.malloc(100)
        assert (pool.memory_reserved(), pool.memory_allocated()) == (0, 0)
        pool.check()

    @pytest.mark.parametrize("fraction", [1, "0.5", None, True])
    def test_a_fraction_that_is_no_float_is_a_type_error_as_in_torch(self, pool, fraction):
        with pytest.raises(TypeError, match="float"):
            pool.set_per_process_memory_fraction(fraction)

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
    def test_a_fraction_out_of_range_is_a_value_error(self, pool, fraction):
        with pytest.raises(ValueError, match="from 0 to 1"):
            pool.set_per_process_memory_fraction(fraction)
        assert pool.get_per_process_memory_fraction() == 1.0

    def test_cupys_set_limit_refuses_as_cupys_does(self, pool):
        for wrong in (
            {"size": -1},
            {"fraction": -1},
            {"fraction": 1.1},
            {"size": 1, "fraction": 1},
        ):
            with pytest.raises(ValueError, match=r"size|fraction"):
                pool.set_limit(**wrong)
        assert pool.get_limit() == 0


class TestEnvironment:
    def test_conf_sets_options_and_arguments_win(self, monkeypatch):
        monkeypatch.setenv("CACHEPOOL_CONF", "limit:1GiB")
        assert CachePool("sim").get_limit() == 1 << 30
        assert CachePool("sim", limit="2GiB").get_limit() == 2 << 30
        assert CachePool("sim").options.origins["limit"] == "CACHEPOOL_CONF"

    @pytest.mark.parametrize("text", ["limit", "limt:5", "limit:lots", "backing:f"])
    def test_a_wrong_conf_is_an_option_error(self, monkeypatch, text):
        monkeypatch.setenv("CACHEPOOL_CONF", text)
        with pytest.raises(OptionError, match=r"limit|backing|CACHEPOOL_CONF"):
            CachePool("sim")

    @pytest.mark.parametrize(("text", "limit"), [("1048576", MIB), ("50%", 1 << 29), ("0%", 0)])
    def test_cupys_limit_variable_is_honoured(self, monkeypatch, text, limit):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
        assert CachePool("sim:1GiB").get_limit() == limit


class TestDrivers:
    """CUDA that is missing, old or broken: played by a stand-in for CuPy."""

    @staticmethod
    def cupy_with(error=None, count=1):
        class CUDARuntimeError(RuntimeError):
            def __init__(self, status):
                super().__init__(f"status {status}")
                self.status = status

        def device_count():
            if error is not None:
                raise CUDARuntimeError(error)
            return count

        runtime = types.SimpleNamespace(
            getDeviceCount=device_count, getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError
        )
        return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))

    @pytest.mark.parametrize(("status", "why"), [(35, "driver"), (100, "no device"), (34, "stub")])
    def test_without_a_device_auto_simulates_and_cuda_says_why(self, monkeypatch, status, why):
        monkeypatch.setattr(cuda, "require_cupy", lambda what: self.cupy_with(status))
        monkeypatch.setattr(find, "_said", set())
        assert CachePool().device.name == "sim"
        with pytest.raises(DeviceError, match=why):
            CachePool("cuda")

    def test_no_device_counted_is_no_device(self, monkeypatch):
        monkeypatch.setattr(cuda, "require_cupy", lambda what: self.cupy_with(count=0))
        assert cuda.probe() == "no device"

    @pytest.mark.parametrize("device", ["auto", "cuda"])
    def test_a_driver_that_does_not_work_is_an_error_not_a_simulation(self, monkeypatch, device):
        monkeypatch.setattr(cuda, "require_cupy", lambda what: self.cupy_with(999))
        with pytest.raises(DeviceError, match=r"does not work.*status 999.*sim"):
            CachePool(device)

    @pytest.mark.parametrize("version", ["13.5.1", "12.3.0", "9.0.0b1"])
    def test_an_old_cupy_is_an_import_error_that_names_both_versions(self, version):
        with pytest.raises(ImportError, match=rf"13\.6.*{version}.*cuda12"):
            cupy_edge.check_version(version, "this")

    @pytest.mark.parametrize("version", ["13.6.0", "14.2.0", "15.0.0a1"])
    def test_a_newer_cupy_will_do(self, version):
        cupy_edge.check_version(version, "this")


class TestOwnership:
    def test_what_owns_memory_cannot_be_copied_or_pickled(self, pool):
        block, array_memory = pool.allocate(100), pool.malloc(100).mem
        for owner in (block, array_memory, pool):
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="copied or pickled"):
                    attempt(owner)
        block.release()

    def test_a_closed_pool_cannot_be_enabled(self):
        closed = CachePool("sim")
        closed.close()
        with pytest.raises(ValueError, match="closed"):
            cachepool.enable(closed)
        assert cachepool.get_pool() is None

    def test_a_backing_that_returns_too_little_is_refused(self):
        below = CachePool("sim")
        pool = CachePool("sim", backing=lambda nbytes: below.malloc(512))
        with pytest.raises(ValueError, match="at least the bytes asked"):
            pool.malloc(5 * MIB)
        assert (pool.memory_reserved(), below.memory_allocated()) == (0, 0)


class TestFractionsAsText:
    @pytest.mark.parametrize("text", ["0.5", ".5", "50%"])
    def test_a_limit_may_be_a_fraction_in_text(self, monkeypatch, text):
        assert CachePool("sim:1GiB", limit=text).get_limit() == 1 << 29
        monkeypatch.setenv("CACHEPOOL_CONF", f"limit:{text}")
        assert CachePool("sim:1GiB").get_limit() == 1 << 29

    def test_a_capacity_of_a_fraction_of_a_byte_is_none(self):
        with pytest.raises(OptionError, match="capacity"):
            CachePool("sim", capacity="0.5")
