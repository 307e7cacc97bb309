"""Many threads on one machine: nothing is lost, nothing is counted twice."""

import threading

from cachepool.devices.sim import NO_COSTS, SimDevice

THREADS, ROUNDS = 4, 100


def run_in_threads(work):
    """Run ``work(number)`` in several threads; return the errors that they raised."""
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    return errors


def test_threads_that_keep_to_their_own_memory_and_stream_never_race():
    sim = SimDevice(costs=NO_COSTS)

    def work(number):
        for turn in range(ROUNDS):
            nbytes = 512 * (1 + (turn + number) % 7)
            ptr = sim.reserve(nbytes, 0)
            stream = sim.per_thread_stream
            sim.handed_out(ptr, nbytes, 0, stream.key)
            stream.launch(1e-6, writes=(ptr, nbytes))
            stream.record().synchronize()
            sim.release(ptr, nbytes, 0)

    assert run_in_threads(work) == []
    assert sim.races == []
    assert sim.outstanding() == {}
    expected = dict.fromkeys(("reserve", "release", "record", "synchronize"), THREADS * ROUNDS)
    assert sim.calls == expected


def test_threads_that_share_memory_in_no_order_race():
    sim = SimDevice(costs=NO_COSTS, on_race="record")
    ptr = sim.reserve(512, 0)

    def work(number):
        for _ in range(ROUNDS):
            sim.per_thread_stream.launch(1e-6, writes=(ptr, 512))

    assert run_in_threads(work) == []
    writers = {race.earlier.stream for race in sim.races}
    assert len(writers) >= THREADS - 1


def test_handles_of_streams_made_and_dropped_by_threads_stay_unique_while_alive():
    sim = SimDevice(costs=NO_COSTS, recycle_handles=True)
    alive, lock = set(), threading.Lock()

    def work(number):
        for _ in range(ROUNDS):
            stream = sim.stream()
            handle = stream.handle
            with lock:
                assert handle not in alive
                alive.add(handle)
            stream.launch(1e-6)
            with lock:
                alive.remove(handle)
            stream.destroy()

    assert run_in_threads(work) == []


def test_calls_made_inside_a_call_by_the_same_thread_do_not_hang():
    """The garbage collector may run a pool's destructor while the machine's lock is held."""
    sim = SimDevice(costs=NO_COSTS)
    stream = sim.stream()

    def work(number):
        with sim._machine.lock:
            stream.wait(stream.record())
            assert stream.done

    assert run_in_threads(work) == []
    assert sim.calls == dict.fromkeys(("record", "wait", "query_stream"), THREADS)


def test_a_stream_dropped_inside_a_call_ends_at_the_next_one():
    sim = SimDevice(costs=NO_COSTS, recycle_handles=True)
    stream = sim.stream()
    handle = stream.handle
    with sim._machine.lock:
        del stream
    assert sim.stream().handle == handle
