"""Two devices: a heap each, whatever is current when memory comes and goes."""

import numpy as np
import pytest
from rigging import MIB

import cachepool

cupy = pytest.importorskip("cupy")

from cupy.cuda import Device, Stream, runtime  # noqa: E402

GIB = 1024 * MIB


class TestHeaps:
    def test_each_device_serves_its_own_arrays(self, pool, rig):
        used = [rig.used(0), rig.used(1)]
        x = cupy.empty(3 * MIB, "u1")
        with Device(1):
            y = cupy.empty(5 * MIB, "u1")
            assert pool.used_bytes() == pool.memory_allocated() == 5 * MIB
        assert (x.device.id, y.device.id) == (0, 1)
        assert [runtime.pointerGetAttributes(a.data.ptr).device for a in (x, y)] == [0, 1]
        assert [pool.memory_allocated(0), pool.memory_allocated(1)] == [3 * MIB, 5 * MIB]
        assert [rig.used(0) - used[0], rig.used(1) - used[1]] == [4 * MIB, 6 * MIB]

    def test_memory_released_under_another_current_device_goes_home(self, pool):
        with Device(1):
            x = cupy.empty(3 * MIB, "u1")
        ptr = x.data.ptr
        del x
        assert [pool.memory_reserved(0), pool.memory_reserved(1)] == [0, 4 * MIB]
        y = cupy.empty(3 * MIB, "u1")
        with Device(1):
            z = cupy.empty(3 * MIB, "u1")
        assert z.data.ptr == ptr != y.data.ptr

    def test_the_current_device_stays_current_whatever_the_pool_does(self, pool):
        allocation = pool.allocate(3 * MIB, device=1)
        allocation.release()
        assert (pool.empty_cache(1), Device().id) == (4 * MIB, 0)
        with Device(1):
            cupy.empty(3 * MIB, "u1")
        assert (pool.empty_cache(), Device().id) == (4 * MIB, 0)
        pool.mem_get_info(1)
        assert Device().id == 0

    def test_emptying_one_device_leaves_the_other_ones_cache(self, pool):
        for device in (0, 1):
            with Device(device):
                cupy.empty(3 * MIB, "u1")
        assert pool.empty_cache(0) == 4 * MIB
        assert [pool.memory_reserved(0), pool.memory_reserved(1)] == [0, 4 * MIB]
        with Device(1):
            pool.free_all_blocks()
        assert pool.memory_reserved(1) == 0

    def test_the_null_streams_of_two_devices_share_nothing(self, pool):
        pointers = []
        for device in (0, 1, 0, 1):
            with Device(device), Stream.null:
                pointers.append(cupy.empty(512, "u1").data.ptr)
        assert pointers[:2] == pointers[2:]
        assert pointers[0] != pointers[1]

    def test_a_copy_between_devices_keeps_its_values(self, pool):
        host = np.arange(100_000.0)
        x = cupy.asarray(host)
        with Device(1):
            y = cupy.asarray(x)
            assert y.device.id == 1
            assert (cupy.asnumpy(y) == host).all()

    def test_pressure_on_one_device_leaves_the_other_one_alone(self, pool, rig):
        for device in (0, 1):
            with Device(device):
                cupy.empty(6 * MIB, "u1")
        rig.leave_room(0, device=0)
        with pytest.raises(cachepool.OutOfMemoryError) as caught:
            cupy.empty(8 * MIB, "u1")
        assert (caught.value.report.device, caught.value.report.reserved) == (0, 0)
        assert pool.memory_reserved(1) == 6 * MIB


class TestFigures:
    def test_mem_get_info_is_the_drivers(self, pool, rig):
        rig.capacity(GIB, device=1)
        with Device(1):
            x = cupy.empty(6 * MIB, "u1")
        assert pool.mem_get_info(1) == cachepool.mem_get_info(1) == (GIB - rig.used(1), GIB)
        with Device(1):
            assert pool.mem_get_info() == runtime.memGetInfo()
        del x


class TestLimits:
    def test_a_limit_holds_on_its_device_only(self, pool):
        with Device(1):
            pool.set_limit(size=4 * MIB)
            assert pool.get_limit() == 4 * MIB
            with pytest.raises(cachepool.OutOfMemoryError) as caught:
                cupy.empty(5 * MIB, "u1")
        report = caught.value.report
        assert (report.device, report.limit, report.asked) == (1, 4 * MIB, 5 * MIB)
        assert pool.get_limit() == 0
        cupy.empty(50 * MIB, "u1")

    def test_a_limit_is_reached_exactly_and_then_gives_back_before_it_refuses(self, pool):
        pool.set_limit(size=6 * MIB)
        with Stream(non_blocking=True):
            x = cupy.empty(4 * MIB, "u1")
            del x
        y = cupy.empty(6 * MIB, "u1")
        assert pool.memory_reserved() == 6 * MIB
        with pytest.raises(cachepool.OutOfMemoryError):
            cupy.empty(512, "u1")
        del y
        cupy.empty(512, "u1")

    def test_a_fraction_is_of_the_devices_own_memory(self, pool, rig):
        rig.capacity(GIB, device=1)
        with Device(1):
            pool.set_limit(fraction=0.25)
        pool.set_per_process_memory_fraction(0.5, 0)
        assert pool.get_limit() == runtime.memGetInfo()[1] // 2
        assert pool.get_per_process_memory_fraction(1) == 0.25
        with Device(1):
            assert pool.get_limit() == GIB // 4
            with pytest.raises(cachepool.OutOfMemoryError):
                cupy.empty(GIB // 4 + 1, "u1")

    @pytest.mark.parametrize(
        ("text", "limits"),
        [("50%", [512 * MIB, GIB]), ("1048576", [MIB, MIB]), ("0", [0, 0])],
    )
    def test_cupys_own_variable_sets_the_limit(self, rig, monkeypatch, text, limits):
        rig.capacity(GIB, device=0)
        rig.capacity(2 * GIB, device=1)
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
        found = []
        with cachepool.enable() as pool:
            for device in (0, 1):
                with Device(device):
                    found.append(pool.get_limit())
        assert found == limits

    def test_an_option_beats_cupys_variable(self, rig, monkeypatch):
        monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "1048576")
        with cachepool.enable(limit="2MiB") as pool:
            assert pool.get_limit() == 2 * MIB
