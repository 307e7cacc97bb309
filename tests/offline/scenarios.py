"""Scenarios of real users' troubles (scenarios.md) as traces, for any test to replay.

Requests and releases only: kernels, events and waits have no place in a trace, so a case
whose point is stream order is here without its work.  Each function is exact to the byte.
"""

from __future__ import annotations

from functools import cache

from cachepool.offline import Trace

MIB = 2**20
GIB = 2**30


class Program:
    """Notes requests and releases in the notation of scenarios.md."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, int, int]] = []
        self.blocks: list[tuple[int, int]] = []

    def allocate(self, size: int, stream: int = 0) -> int:
        """``A(size, stream)``: return the number of the block."""
        block = len(self.blocks)
        self.blocks.append((size, stream))
        self.events.append((0, block, size, stream))
        return block

    def free(self, block: int | None) -> None:
        """``F(block)``; None has nothing to release."""
        if block is not None:
            self.events.append((1, block, *self.blocks[block]))

    def touch(self, size: int, stream: int = 0) -> None:
        """``a = A(size, stream)``; ``F(a)``."""
        self.free(self.allocate(size, stream))

    def trace(self, name: str) -> Trace:
        """Return what was noted."""
        op, block, size, stream = zip(*self.events, strict=True)
        return Trace(op, block, size, stream, meta={"name": name})


class Random:
    """``rnd(lo, hi)`` of scenarios.md."""

    def __init__(self, seed: int) -> None:
        self.x = seed

    def __call__(self, low: int, high: int) -> int:
        self.x = (1103515245 * self.x + 12345) % 2**31
        return low + (self.x >> 8) % (high - low + 1)


@cache
def grow_2000() -> Trace:
    """Every request a little larger than the last."""
    program = Program()
    for i in range(1, 2001):
        program.touch(262144 * i)
    return program.trace("grow-2000")


def concat(name: str, rounds: int, unit: int) -> Trace:
    """``result = concatenate([result, new])``, the new part of `unit` bytes."""
    program = Program()
    joined = None
    for i in range(rounds):
        new = program.allocate(unit)
        result = program.allocate(unit * (i + 1))
        program.free(joined)
        joined = result
        program.free(new)
    return program.trace(name)


@cache
def concat_loop() -> Trace:
    """A thousand rounds of 60 doubles."""
    return concat("concat-loop", 1000, 480)


@cache
def concat_sister() -> Trace:
    """1500 rounds of 1 MiB."""
    return concat("concat-sister", 1500, MIB)


@cache
def variable_batch() -> Trace:
    """300 training steps whose batch and length change."""
    program, rnd = Program(), Random(42)
    for _ in range(12):
        program.allocate(28 * MIB)
    for _ in range(300):
        batch = rnd(1, 64)
        length = rnd(16, 512)
        training_step(program, batch, length)
    return program.trace("variable-batch")


def training_step(program: Program, batch: int, length: int) -> None:
    """Note 12 layers forward, then backward until the stack is empty."""
    tokens = batch * length
    stack = []
    for _ in range(12):
        temporary = program.allocate(tokens * 12288)
        stack.append(program.allocate(tokens * 3072))
        program.free(temporary)
        stack.append(program.allocate(batch * 48 * length * length))
    gradient = None
    while stack:
        new = program.allocate(tokens * 3072)
        program.free(gradient)
        gradient = new
        program.free(stack.pop())
    program.free(gradient)


@cache
def big_block_nibbled() -> Trace:
    """A large temporary's block is eaten by small long-lived ones, five rounds."""
    program = Program()
    sizes = (16515072, 16515072, 11400192, 18191360, 18191360, 18191360)
    for _ in range(5):
        program.touch(11643387904)
        blocks = [program.allocate(size) for _ in range(30) for size in sizes]
        for block in blocks[4::6]:
            program.free(block)
        program.touch(11643387904)
        for index, block in enumerate(blocks):
            if index % 6 != 4:
                program.free(block)
    return program.trace("big-block-nibbled")


def pipeline_start(program: Program) -> list[int]:
    """Note methods A, B and A again, and return their outputs."""
    outputs = []
    for temporary in (4 * GIB, None, 4 * GIB):
        outputs.append(program.allocate(GIB))
        if temporary is not None:
            program.touch(temporary)
    return outputs


@cache
def pipeline_8gib() -> Trace:
    """Two methods in turn, the smaller output takes hold of the larger's block."""
    program = Program()
    pipeline_start(program)
    return program.trace("pipeline-8gib")


@cache
def pipeline_8gib_repeated() -> Trace:
    """The same, then method A after each release of the outputs 1, 3, 2."""
    program = Program()
    first, second, third = pipeline_start(program)
    for output in (first, third, second):
        program.free(output)
        program.allocate(GIB)
        program.touch(4 * GIB)
    return program.trace("pipeline-8gib-repeated")


@cache
def fft_workspaces() -> Trace:
    """Two hundred FFTs of about 1 GB, 16 plans cached."""
    program, rnd = Program(), Random(7)
    plans = []
    for _ in range(200):
        n = rnd(96, 128) * MIB + 8 * rnd(0, 65535)
        data = program.allocate(8 * n)
        plans.append(program.allocate(8 * n))
        out = program.allocate(8 * n)
        if len(plans) > 16:
            program.free(plans.pop(0))
        program.free(data)
        program.free(out)
    return program.trace("fft-workspaces")


@cache
def mixed_near_limit() -> Trace:
    """Log-uniform sizes, live bytes close to the capacity: 50,000 steps."""
    program, rnd = Program(), Random(1234)
    live: list[tuple[int, int]] = []
    total = 0
    for _ in range(50_000):
        if live and (total > 6 * GIB or rnd(0, 99) < 45):
            block, size = live.pop(rnd(0, len(live) - 1))
            program.free(block)
            total -= size
        else:
            exponent = rnd(9, 28)
            size = 2**exponent + rnd(0, 2**exponent - 1)
            live.append((program.allocate(size), size))
            total += size
    return program.trace("mixed-near-limit")


@cache
def streams_32() -> Trace:
    """Short-lived streams, each leaving its memory behind."""
    program = Program()
    for stream in range(1, 33):
        program.touch(256 * MIB, stream)
    return program.trace("streams-32")


@cache
def streams_sister() -> Trace:
    """Eight streams kept, four blocks on one after the other, 50 rounds."""
    program = Program()
    for stream in [*range(1, 9)] * 50:
        blocks = [program.allocate(256 * MIB, stream) for _ in range(4)]
        for block in blocks:
            program.free(block)
    return program.trace("streams-sister")


ALL = (
    grow_2000,
    concat_loop,
    concat_sister,
    variable_batch,
    big_block_nibbled,
    pipeline_8gib,
    pipeline_8gib_repeated,
    fft_workspaces,
    mixed_near_limit,
    streams_32,
    streams_sister,
)
"""Every scenario, as a function that makes its trace once."""
