"""Exceptions in memory hooks: whatever they raise, nothing is lost.

CuPy's own pool loses the block when a hook raises before its release.  The fixtures check at
the end of each test that the books are those of the device.
"""

import sys

import pytest
from conformity import UNIT, Recorder, cupy

MALLOC = ("malloc_preprocess", "alloc_preprocess", "alloc_postprocess", "malloc_postprocess")
FREE = ("free_preprocess", "free_postprocess")


class Failing(cupy.cuda.MemoryHook):
    """Raises in one of its methods."""

    name = "Failing"

    def __init__(self, method):
        def fail(**keywords):
            raise ArithmeticError(f"a fault in {method}")

        setattr(self, method, fail)


@pytest.fixture
def unraisable(monkeypatch):
    """Return the list that gets the text of what destructors raise."""
    texts = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: texts.append(str(args.exc_value)))
    return texts


class TestInARequest:
    @pytest.mark.parametrize("method", MALLOC)
    def test_the_exception_comes_out_of_the_request(self, pool, method):
        with Failing(method), pytest.raises(ArithmeticError, match=f"a fault in {method}"):
            pool.malloc(1)

    @pytest.mark.parametrize("method", MALLOC)
    def test_it_comes_out_of_cupys_empty(self, installed, method):
        with Failing(method), pytest.raises(ArithmeticError, match=f"a fault in {method}"):
            cupy.empty(1)

    @pytest.mark.parametrize("method", MALLOC)
    def test_nothing_is_in_use_afterwards(self, pool, method):
        with Failing(method), pytest.raises(ArithmeticError):
            pool.malloc(1)
        assert pool.used_bytes() == 0
        pool.check()

    @pytest.mark.parametrize("method", MALLOC)
    def test_what_the_device_gave_is_in_the_books_or_given_back(self, slabs, sim, method):
        with Failing(method), pytest.raises(ArithmeticError):
            slabs.malloc(1)
        assert slabs.total_bytes() == sim.reserved()
        slabs.free_all_blocks()
        assert sim.reserved() == 0

    @pytest.mark.parametrize("method", MALLOC)
    def test_the_whole_limit_can_be_used_afterwards(self, exact, method):
        exact.set_limit(size=4 * UNIT)
        with Failing(method), pytest.raises(ArithmeticError):
            exact.malloc(UNIT)
        p = exact.malloc(4 * UNIT)
        assert exact.used_bytes() == 4 * UNIT
        del p

    def test_before_the_request_it_is_aborted(self, pool, sim):
        with Failing("malloc_preprocess"), pytest.raises(ArithmeticError):
            pool.malloc(1)
        assert sim.calls["reserve"] == 0

    def test_before_upstream_it_is_not_asked(self, pool, sim):
        with Failing("alloc_preprocess"), pytest.raises(ArithmeticError):
            pool.malloc(1)
        assert sim.calls["reserve"] == 0

    def test_after_the_request_its_block_is_cached(self, pool, sim):
        with Failing("malloc_postprocess"), pytest.raises(ArithmeticError):
            pool.malloc(1)
        pool.malloc(1)
        assert sim.calls["reserve"] == 1

    def test_the_hook_before_a_failing_one_has_been_called(self, pool):
        hook = Recorder()
        with hook, Failing("malloc_preprocess"), pytest.raises(ArithmeticError):
            pool.malloc(1)
        assert hook.names() == ["malloc_preprocess"]

    def test_a_hit_is_not_lost(self, pool, sim):
        p = pool.malloc(1)
        ptr = p.ptr
        del p
        with Failing("malloc_postprocess"), pytest.raises(ArithmeticError):
            pool.malloc(1)
        assert pool.malloc(1).ptr == ptr


class TestInARelease:
    @pytest.mark.parametrize("method", FREE)
    def test_the_block_is_in_the_cache(self, pool, unraisable, method):
        p = pool.malloc(1)
        ptr = p.ptr
        with Failing(method):
            del p
        assert pool.used_bytes() == 0
        assert pool.malloc(1).ptr == ptr

    @pytest.mark.parametrize("method", FREE)
    def test_the_exception_is_reported_as_any_destructors_is(self, pool, unraisable, method):
        p = pool.malloc(1)
        with Failing(method):
            del p
        assert unraisable == [f"a fault in {method}"]

    @pytest.mark.parametrize("method", FREE)
    def test_an_arrays_death_releases_all_the_same(self, installed, unraisable, method):
        with Failing(method):
            cupy.empty(100)
        assert (installed.used_bytes(), len(unraisable)) == (0, 1)

    @pytest.mark.parametrize("method", FREE)
    def test_freeing_by_hand_raises_and_releases(self, pool, unraisable, method):
        mem = pool.malloc(1).mem
        with Failing(method), pytest.raises(ArithmeticError):
            mem.free()
        assert pool.used_bytes() == 0
        with Failing(method):
            mem.free()
            del mem
        assert unraisable == []

    @pytest.mark.parametrize("method", FREE)
    def test_after_freeing_by_hand_the_address_is_0_though_it_raised(self, pool, method):
        # As CuPy's; an address that is someone else's by now would be a trap.
        mem = pool.malloc(1).mem
        with Failing(method), pytest.raises(ArithmeticError):
            mem.free()
        assert mem.ptr == 0

    def test_hooks_after_the_release_are_called_although_one_before_it_raised(
        self, pool, unraisable
    ):
        p = pool.malloc(1)
        hook = Recorder()
        with Failing("free_preprocess"), hook:
            del p
        assert "free_postprocess" in hook.names()

    def test_hundreds_of_failing_releases_lose_nothing(self, pool, sim, unraisable):
        with Failing("free_preprocess"):
            for _ in range(300):
                pool.malloc(1)
        assert (len(unraisable), sim.calls["reserve"], pool.used_bytes()) == (300, 1, 0)


class TestInterrupts:
    @pytest.mark.parametrize("method", MALLOC)
    def test_a_keyboard_interrupt_in_a_hook_loses_nothing(self, slabs, sim, method):
        class Interrupting(cupy.cuda.MemoryHook):
            name = "Interrupting"

        hook = Interrupting()

        def interrupt(**keywords):
            raise KeyboardInterrupt

        setattr(hook, method, interrupt)
        with hook, pytest.raises(KeyboardInterrupt):
            slabs.malloc(1)
        assert slabs.total_bytes() == sim.reserved()
        assert slabs.used_bytes() == 0
