"""``cachepool replay`` as a user meets it: output, exit codes, messages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cachepool.cli.replay import EPILOG, _Progress, add_parser
from tests.offline import scenarios


@pytest.fixture
def path(tmp_path: Path) -> str:
    scenarios.pipeline_8gib().save(tmp_path / "pipeline.npz")
    return str(tmp_path / "pipeline.npz")


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="cachepool")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["replay", *arguments])
    return args.func(args)


def test_table_shows_what_a_policy_needs(path: str, capsys: pytest.CaptureFixture[str]):
    assert command(path, "--policy", "cupy") == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "pipeline-8gib: 7 events, streams 1, device no limit",
        "peak live 7.0 GiB, rounded to 512 7.0 GiB",
        "",
        "policy  peak reserved  utilisation  hit rate  upstream allocations  upstream frees",
        "cupy          9.0 GiB        77.8%     40.0%                     3               0",
    ]


def test_running_out_of_memory_is_told_and_is_exit_code_1(path: str, capsys):
    assert command(path, "--policy", "cupy", "--capacity", "8GiB") == 1

    assert capsys.readouterr().out.splitlines()[-3:] == [
        "cupy          5.0 GiB       100.0%     40.0%         5 (3 refused)               0",
        "cupy: out of memory at event 5: 4,294,967,296 bytes (4.0 GiB) asked,",
        "  3.0 GiB allocated, 5.0 GiB reserved",
    ]


def test_json_has_the_documented_keys(path: str, capsys):
    assert command(path, "--policy", "cupy", "--json", "--capacity", "8GiB") == 1

    (figures,) = json.loads(capsys.readouterr().out)
    documented = EPILOG.partition("--json")[2]
    assert all(key in documented for key in figures)
    assert figures["policy"] == "cupy"
    assert (figures["oom_at"], figures["oom_size"]) == (5, 4 * 2**30)


def test_ties_reach_the_policy(path: str, capsys):
    assert command(path, "--policy", "cupy", "--ties", "newest") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "8 apples"], "capacity must be a number of bytes"),
        (["--policy", "best"], "invalid choice: 'best'"),
        (["--ties", "oldest"], "invalid choice: 'oldest'"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], message: str, path: str, capsys):
    with pytest.raises(SystemExit) as raised:
        command(path, *arguments)

    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_ties_for_a_policy_without_them_is_exit_code_2(path: str, capsys):
    assert command(path, "--policy", "none", "--ties", "lowest") == 2

    assert "--ties is for the policy cupy, not none" in capsys.readouterr().err


def test_unreadable_trace_is_exit_code_3_with_a_message_and_no_traceback(tmp_path: Path, capsys):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 and no more")

    assert command(str(broken), "--policy", "none") == 3

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"cachepool replay: {broken}: damaged or cut off")
    assert "Traceback" not in err


def test_progress_of_a_long_replay_goes_to_stderr(capsys):
    progress = _Progress("cupy")
    progress.due = 0.0

    progress(1024, 50_000)
    progress(2048, 50_000)

    assert capsys.readouterr() == ("", "cupy: 1,024 of 50,000 events\n")


def test_table_of_large_figures_fits_100_columns(tmp_path: Path, capsys):
    scenarios.concat_sister().save(tmp_path / "a.npz")

    command(str(tmp_path / "a.npz"), "--policy", "cupy", "--capacity", "2999MiB")

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
