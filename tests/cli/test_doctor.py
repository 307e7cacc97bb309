"""``cachepool doctor``: what it finds, and that no fault is a traceback."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import cachepool
from cachepool.cli import checks, main
from cachepool.cli.doctor import EPILOG
from tests.cli import documented, process

cupy = pytest.importorskip("cupy")


@pytest.fixture
def runtime() -> ModuleType:
    # Not once for the module: importing cupy.cuda.runtime, as any code may, puts another there.
    return cupy.cuda.runtime


@pytest.fixture(autouse=True)
def no_options(monkeypatch):
    monkeypatch.delenv("CACHEPOOL_CONF", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)


@pytest.fixture
def no_device(monkeypatch, runtime):
    """No driver, on any machine."""
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: refuse(35))


@pytest.fixture
def examine(capsys):
    """Return a call that runs the doctor and returns its exit code and its findings."""

    def call() -> tuple[int, dict]:
        code = main(["doctor", "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        return code, json.loads(out)

    return call


def refuse(status: int) -> int:
    raise cupy.cuda.runtime.CUDARuntimeError(status)


def texts(entries: list[dict[str, str]]) -> str:
    return "\n".join(f"{entry['what']} -> {entry['advice']}" for entry in entries)


def test_json_keys_are_those_documented(examine):
    _, found = examine()

    assert set(found) == documented.keys(EPILOG)


def test_machine_without_a_gpu_is_healthy_and_lacks_a_device(no_device, examine):
    code, found = examine()

    assert (code, found["healthy"], found["faults"]) == (0, True, [])
    assert found["device"]["name"] == "sim"
    assert found["device"]["why"].startswith("no driver")
    assert "NVIDIA" in texts(found["missing"])


def test_versions_and_form_are_those_in_use(no_device, examine):
    _, found = examine()

    assert found["cachepool"]["version"] == cachepool.__version__
    assert found["cachepool"]["compiled"] is cachepool.__compiled__
    assert found["cupy"]["version"] == cupy.__version__
    assert found["numpy"]["version"] == importlib.import_module("numpy").__version__
    assert found["python"]["version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")


def test_options_are_told_with_their_origin(no_device, monkeypatch, examine):
    monkeypatch.setenv("CACHEPOOL_CONF", "limit:1GiB")

    _, found = examine()

    assert found["options"]["limit"] == {"value": 2**30, "origin": "CACHEPOOL_CONF"}
    assert found["options"]["backing"] == {"value": "malloc", "origin": "default"}


def test_limit_of_cupy_s_own_variable_is_told_with_its_origin(no_device, monkeypatch, examine):
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "50%")

    _, found = examine()

    assert found["options"]["limit"] == {"value": 0.5, "origin": "CUPY_GPU_MEMORY_LIMIT"}


def test_wrong_cachepool_conf_is_a_fault_with_the_nearest_name(no_device, monkeypatch, examine):
    monkeypatch.setenv("CACHEPOOL_CONF", "limt:1GiB")

    code, found = examine()

    assert (code, found["healthy"], found["options"]) == (1, False, {})
    assert "did you mean 'limit'" in texts(found["faults"])
    assert "CACHEPOOL_CONF" in texts(found["faults"])


def test_cupy_that_is_too_old_is_a_fault_with_the_command(no_device, monkeypatch, examine):
    monkeypatch.setattr(cupy, "__version__", "12.3.0")

    code, found = examine()

    assert code == 1
    assert (found["cupy"]["version"], found["cupy"]["why"]) == ("12.3.0", "too old")
    assert "found 12.3.0" in texts(found["faults"])
    assert '-> pip install --upgrade "cupy-cuda' in texts(found["faults"])


def test_cupy_that_is_missing_is_no_fault_and_has_a_command(monkeypatch, examine):
    monkeypatch.setitem(sys.modules, "cupy", None)

    code, found = examine()

    assert code == 0
    assert (found["cupy"]["version"], found["cupy"]["why"]) == (None, "not installed")
    assert found["cachepool"]["handle"] is None
    assert '-> pip install --upgrade "cupy-cuda' in texts(found["missing"])


def test_cupy_that_cannot_be_imported_is_a_fault(monkeypatch, examine):
    real = importlib.import_module

    def fail(name: str) -> ModuleType:
        if name == "cupy":
            raise ImportError("\n=====\nlibcublas.so.12: no such file\n=====\n")
        return real(name)

    monkeypatch.setattr(checks.importlib, "import_module", fail)

    code, found = examine()

    assert code == 1
    assert "cannot be imported: libcublas.so.12: no such file" in texts(found["faults"])


def test_broken_driver_is_a_fault(monkeypatch, runtime, examine):
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: refuse(999))

    code, found = examine()

    assert code == 1
    assert "the CUDA driver is there but does not work" in texts(found["faults"])
    assert found["device"]["devices"] == []


def test_cuda_devices_are_listed_with_name_and_memory(monkeypatch, runtime, examine):
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 2)
    monkeypatch.setattr(runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda n: {"name": b"Card %d" % n})
    monkeypatch.setattr(runtime, "memGetInfo", lambda: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(cupy.cuda, "Device", nullcontext)

    code, found = examine()

    memory = {"free": 3 * 2**30, "total": 8 * 2**30}
    assert code == 0
    assert (found["device"]["name"], found["device"]["why"]) == ("cuda", None)
    assert found["device"]["devices"] == [
        {"ordinal": 0, "name": "Card 0", **memory},
        {"ordinal": 1, "name": "Card 1", **memory},
    ]


def test_device_that_does_not_answer_is_a_fault(monkeypatch, runtime, examine):
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 1)
    monkeypatch.setattr(runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda n: refuse(719))

    code, found = examine()

    assert code == 1
    assert "a CUDA device does not answer" in texts(found["faults"])


def test_engine_that_was_never_compiled_is_missing_with_the_command(
    no_device, monkeypatch, examine
):
    monkeypatch.setattr(checks, "EXTENSION_SUFFIXES", [".no-such-suffix"])
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)

    code, found = examine()

    assert code == 0
    assert "install a C compiler" in texts(found["missing"])
    assert "pip install -e ." in texts(found["missing"])


def test_library_that_takes_the_gpu_when_it_starts_is_noted(no_device, monkeypatch, examine):
    jax = ModuleType("jax")
    jax.__spec__ = ModuleSpec("jax", None)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)

    _, found = examine()

    assert any("XLA_PYTHON_CLIENT_PREALLOCATE=false" in note for note in found["notes"])


def test_text_has_at_most_100_columns_and_ends_with_the_verdict(no_device, capsys):
    assert main(["doctor"]) == 0

    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert out.startswith(f"cachepool {cachepool.__version__}\n")
    assert "simulated" in out
    assert out.endswith("\nhealthy\n")


def test_text_of_a_fault_says_what_to_do(no_device, monkeypatch, capsys):
    monkeypatch.setenv("CACHEPOOL_CONF", "limit:much")

    assert main(["doctor"]) == 1

    out = capsys.readouterr().out
    assert "-> correct or unset CACHEPOOL_CONF" in out
    assert out.endswith("\nnot healthy: 1 fault(s)\n")


def test_process_where_cupy_cannot_be_found_is_told_how_to_get_it():
    done = process.run_without("cupy", "doctor")

    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install" in done.stdout


def test_compiled_form_wished_but_not_built_is_a_fault_and_no_traceback():
    done = process.run_without("cachepool._compiled", "doctor", CACHEPOOL_FORM="compiled")

    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "CACHEPOOL_FORM" in done.stdout


def test_unknown_form_is_a_fault_and_no_traceback():
    done = process.run("doctor", CACHEPOOL_FORM="fast")

    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "CACHEPOOL_FORM must be auto, pure or compiled" in done.stdout
