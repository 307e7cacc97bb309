"""The table of statistics, against one written by hand from torch's layout."""

import pytest

from cachepool.summary import summary

TYPES = ("current", "peak", "allocated", "freed")
GIB = 2**30

FIGURES = {
    "num_ooms": 3,
    "num_alloc_retries": 12,
    "fragmentation": 0.25,  # not shown, and not an integer
    "max_split_size": -1,
}
ROWS = {
    # units step at 768 of the next one, by the row of all pools
    "allocated_bytes.all": (1536, 786431, 786432, GIB),
    "allocated_bytes.large_pool": (1024, 785919, 786431, GIB - 1),
    "allocated_bytes.small_pool": (512, 512, 1, 1),
    "active_bytes.all": (0, 0, 0, 0),
    "active_bytes.large_pool": (0, 0, 0, 0),
    "active_bytes.small_pool": (0, 0, 0, 0),
    "requested_bytes.all": (768 * 2**20 - 1, 768 * 2**20, 768 * GIB - 1, 768 * GIB),
    "requested_bytes.large_pool": (2**20, 2**20, 2**30, 2**30),
    "requested_bytes.small_pool": (1023, 2**20 - 1, 2**20, 2**29),
    "reserved_bytes.all": (2 * 2**20, 80 * GIB, 3 * 2**50, 2 * 2**60),
    "reserved_bytes.large_pool": (0, 79 * GIB, 2 * 2**50, 2 * 2**60 - 1),
    "reserved_bytes.small_pool": (2 * 2**20, GIB, 2**50, 1),
    "inactive_split_bytes.all": (1, 22, 333, 4444),
    "inactive_split_bytes.large_pool": (1, 20, 300, 4000),
    "inactive_split_bytes.small_pool": (0, 2, 33, 444),
    # counts step at 750 of the next one
    "allocation.all": (749999, 750000, 749999999, 750000000),
    "allocation.large_pool": (1, 749999, 999, 999999),
    "allocation.small_pool": (749998, 1, 749999000, 749000001),
    "active.all": (5, 6, 7, 2),
    "active.large_pool": (1, 2, 3, 2),
    "active.small_pool": (4, 4, 4, 0),
    "segment.all": (10, 10, 10, 0),
    "segment.large_pool": (9, 9, 9, 0),
    "segment.small_pool": (1, 1, 1, 0),
    "inactive_split.all": (8, 9, 1000000, 999992),
    "inactive_split.large_pool": (3, 4, 500000, 499997),
    "inactive_split.small_pool": (5, 5, 500000, 499995),
    "oversize_allocations": (0, 0, 0, 0),
    "oversize_segments": (0, 1, 750000, 750000),
}
STATS = FIGURES | {
    f"{prefix}.{kind}": value
    for prefix, values in ROWS.items()
    for kind, value in zip(TYPES, values, strict=True)
}

TABLE = """\
|===========================================================================|
|                     cachepool memory summary, device ID 1                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 3            |        cudaMalloc retries: 12        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   1536 B   | 786431 B   |    768 KiB |   1024 MiB |
|       from large pool |   1024 B   | 785919 B   |    767 KiB |   1023 MiB |
|       from small pool |    512 B   |    512 B   |      0 KiB |      0 MiB |
|---------------------------------------------------------------------------|
| Active memory         |      0 B   |      0 B   |      0 B   |      0 B   |
|       from large pool |      0 B   |      0 B   |      0 B   |      0 B   |
|       from small pool |      0 B   |      0 B   |      0 B   |      0 B   |
|---------------------------------------------------------------------------|
| Requested memory      | 786431 KiB |    768 MiB | 786431 MiB |    768 GiB |
|       from large pool |   1024 KiB |      1 MiB |   1024 MiB |      1 GiB |
|       from small pool |      0 KiB |      0 MiB |      1 MiB |      0 GiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |   2048 KiB |  81920 MiB |   3072 TiB |   2048 PiB |
|       from large pool |      0 KiB |  80896 MiB |   2048 TiB |   2047 PiB |
|       from small pool |   2048 KiB |   1024 MiB |   1024 TiB |      0 PiB |
|---------------------------------------------------------------------------|
| Non-releasable memory |      1 B   |     22 B   |    333 B   |   4444 B   |
|       from large pool |      1 B   |     20 B   |    300 B   |   4000 B   |
|       from small pool |      0 B   |      2 B   |     33 B   |    444 B   |
|---------------------------------------------------------------------------|
| Allocations           |  749999    |     750 K  |  749999 K  |     750 M  |
|       from large pool |       1    |     749 K  |       0 K  |       0 M  |
|       from small pool |  749998    |       0 K  |  749999 K  |     749 M  |
|---------------------------------------------------------------------------|
| Active allocs         |       5    |       6    |       7    |       2    |
|       from large pool |       1    |       2    |       3    |       2    |
|       from small pool |       4    |       4    |       4    |       0    |
|---------------------------------------------------------------------------|
| GPU reserved segments |      10    |      10    |      10    |       0    |
|       from large pool |       9    |       9    |       9    |       0    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Non-releasable allocs |       8    |       9    |    1000 K  |     999 K  |
|       from large pool |       3    |       4    |     500 K  |     499 K  |
|       from small pool |       5    |       5    |     500 K  |     499 K  |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |       0    |       0    |       0    |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |       1    |     750 K  |     750 K  |
|===========================================================================|
"""


def test_the_table_is_as_written_by_hand():
    assert summary(STATS, 1) == TABLE


def test_the_abbreviated_table_is_without_the_rows_of_the_pools():
    lines = [line for line in TABLE.splitlines(True) if " pool |" not in line]
    assert summary(STATS, 1, True) == "".join(lines)


@pytest.mark.parametrize("device", [0, 15, 123])
def test_every_line_is_75_characters_between_bars(device):
    for line in summary(STATS, device).splitlines():
        assert len(line) == 77
        assert line[0] == line[-1] == "|"


def test_the_device_is_in_the_title():
    assert "memory summary, device ID 15  " in summary(STATS, 15)


def test_sizes_beyond_the_last_unit_stay_in_it():
    stats = STATS | {"allocated_bytes.all.peak": 2**70}
    assert "| 1048576 PiB |" in summary(stats, 0)


def test_a_missing_figure_is_a_key_error():
    stats = {k: v for k, v in STATS.items() if k != "active.small_pool.freed"}
    with pytest.raises(KeyError, match=r"active\.small_pool\.freed"):
        summary(stats, 0)
    assert "Active allocs" in summary(stats, 0, abbreviated=True)
