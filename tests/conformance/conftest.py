"""Pools on a simulated device under real CuPy, and CuPy left as it was found.

CuPy's tests of its memory pool, at tag v14.2.0, and where their equivalents are here:

====================================== ==================================================
CuPy's class                           here
====================================== ==================================================
TestSingleDeviceMemoryPool             test_cupy_single_device_pool, test_cupy_pool_limits
TestParseMempoolLimitEnvVar            test_cupy_pool_limits
TestMemoryPool, TestMemInfo            test_cupy_memory_pool
TestAllocator, TestAllocatorDisabled   test_cupy_allocator
TestUnownedMemory, TestMemoryPointer   test_cupy_pointers
TestPythonFunctionAllocator            test_cupy_stacked_pools
TestExceptionPicklable                 test_cupy_errors
TestMemoryHook, TestDebugPrintHook,    test_cupy_memory_hooks
TestLineProfileHook
====================================== ==================================================

What cannot be expressed without a driver, because the call under test is one of the
driver's; tests/rig or tests/gpu run what the pool has to do with:

- TestUnownedMemory: filling the array and comparing it are kernels.  That its memory stays
  in use is tested here.  Without ``device_id=`` CuPy asks the driver whose the pointer is.
- TestMemoryPointer, test_copy_*, test_memset, and TestMemoryPointerAsync: copies.
- TestAllocator: ``arange``, ``zeros``, ``ones`` are kernels; ``empty`` stands for them.
- TestAllocatorDisabled: the array itself comes from cudaMalloc; that the pool is not asked
  is tested here.
- TestMallocAsync, TestMemoryAsyncPool: CUDA's own pool, which no other allocator serves.
- test_managed_memory_prefetch_basic, test_managed_memory_madvise_basic: driver calls on
  managed memory, which the pool has nothing to do with.
- test_sort.py, TestThrustWorkspaceOOM: sorting is a kernel.  That the error of a request is
  a MemoryError, which is all it takes from an allocator, is tested here.
- TestSingleDeviceMemoryPool.test_split and test_merge call methods of CuPy's own chunks;
  here the same blocks are cut and joined through requests and releases.
- ``isinstance(mem, PooledMemory)`` in TestMemoryPool: that class is final and CuPy's own.

Where CuPy's policy differs from this pool's on purpose, the test's name says what this pool
does, and a comment what CuPy does.
"""

import pytest

import cachepool

DEVICES = (0, 1)


@pytest.fixture(autouse=True)
def cupy_as_found(monkeypatch):
    """Check that a test leaves CuPy's allocator, default pool and hooks as it found them."""
    cupy = pytest.importorskip("cupy")
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    monkeypatch.delenv("CACHEPOOL_CONF", raising=False)
    allocator, default_pool = cupy.cuda.get_allocator(), cupy._default_memory_pool
    yield
    enabled = []
    while cachepool.get_pool() is not None:
        enabled.append(cachepool.get_pool())
        cachepool.disable()
    left = cupy.cuda.get_allocator(), cupy._default_memory_pool
    cupy.cuda.set_allocator(allocator)
    cupy._default_memory_pool = default_pool
    assert enabled == []
    assert left == (allocator, default_pool)
    assert not cupy.cuda.memory_hook.get_memory_hooks()


@pytest.fixture
def sim():
    """Return a machine of two devices, whose race checker raises."""
    return cachepool.SimDevice("1GiB", devices=len(DEVICES))


@pytest.fixture
def exact(sim):
    """Yield a pool whose segments are as CuPy's: exactly a request, at an address of its own."""
    from conformity import Rising, assert_all_given_back

    backing = Rising(sim)
    pool = cachepool.CachePool(sim, backing=backing)
    yield pool
    assert_all_given_back(pool, DEVICES)
    assert backing.live == 0


@pytest.fixture
def slabs(sim):
    """Yield a pool with the growth that users get."""
    from conformity import assert_all_given_back

    pool = cachepool.CachePool(sim)
    yield pool
    assert_all_given_back(pool, DEVICES)
    assert [sim.reserved(device) for device in DEVICES] == [0, 0]


@pytest.fixture(params=["exact", "slabs"])
def pool(request):
    """Yield either pool, for behaviour that every pool should have."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def installed(pool):
    """Yield either pool, set by hand as CuPy's allocator."""
    from conformity import cupy

    found = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(pool.malloc)
    yield pool
    cupy.cuda.set_allocator(found)
