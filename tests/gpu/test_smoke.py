"""The smoke script's checks, each as a test of its own, and the script's report."""

import json
import subprocess
import sys

import pytest
import smoke


@pytest.mark.gpu
@pytest.mark.parametrize("check", smoke.CHECKS, ids=lambda check: check.__name__)
def test_the_check_passes_on_the_gpu_and_the_books_are_exact(pool, check):
    assert check(pool)


@pytest.mark.gpu
def test_the_demo_runs_on_the_gpu():
    assert "sim" not in smoke.demo()["device"]


class TestReport:
    def test_a_step_that_raises_fails_the_run_and_says_where(self, capsys):
        def good():
            return {"arrays": 3}

        def bad():
            smoke.expect(1 > 2, "one is not more than two")

        report = smoke.Report()
        report.take(good)
        assert report.ok
        assert report.take(bad) is None
        assert not report.ok
        assert report.steps["good"]["arrays"] == 3
        assert report.steps["bad"]["error"] == "AssertionError: one is not more than two"
        assert "in bad" in report.steps["bad"]["where"]
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines] == [["ok", "good:"], ["FAILED", "bad:"]]

    @pytest.mark.skipif(smoke.why_not() is None, reason="there is a GPU here")
    def test_the_script_fails_without_a_gpu_and_says_why(self, tmp_path):
        file = tmp_path / "report.json"
        done = subprocess.run(
            [sys.executable, smoke.__file__, "--no-build", "--json", str(file)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        facts = json.loads(file.read_text())
        assert facts["ok"] is False
        assert facts["steps"]["gpu"]["error"] == f"RuntimeError: {smoke.why_not()}"
        assert list(facts["steps"]) == ["gpu"]
        assert done.stdout.splitlines()[-1] == "FAILED"
