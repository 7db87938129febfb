"""tools.gpu_kit without a GPU: how its steps end, what it brings, which forms it compares."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from gpu_surfaces import H100, narrow
from search_surfaces import rows_up_to

from tilewright.passes.spaces.in_order import default_of
from tilewright.runtime.program.dispatch import select
from tilewright.search.space.task import Task
from tools.bench.gpu.compare_gpu import within
from tools.gpu_kit import packages
from tools.gpu_kit.__main__ import STEPS, arguments
from tools.gpu_kit.build import Plan, _Steps
from tools.gpu_kit.forms import difference, ends, neighbours
from tools.gpu_kit.replay_steps import _only_released
from tools.gpu_kit.results import Step


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step("smoke", tmp_path, tmp_path / "results", "emulator:sm_90a", 60.0)


def test_records_are_written_as_they_come(step: Step) -> None:
    step.add({"record": "a", "ok": True})
    step.add({"record": "b", "ok": None})
    step.add({"record": "c", "ok": False})
    found = [json.loads(line) for line in step.path.read_text().splitlines()]
    assert [r["record"] for r in found] == ["step", "a", "b", "c"] and step.failed == 1


def test_a_command_ends_with_its_time_and_takes_its_children_along(step: Step) -> None:
    start = time.monotonic()
    ended = step.run(["sh", "-c", "echo begun; sleep 99 & wait"], most=1.0)
    assert ended.code is None and ended.output == "begun\n" and time.monotonic() - start < 50
    assert step.python("-c", "import sys; print('x'); sys.exit(3)").code == 3
    assert step.run(["/nowhere/tool"]).code == 127
    step.told("nothing", step.python("-c", "1/0"))
    assert "ZeroDivisionError" in json.loads(step.path.read_text().splitlines()[-1])["tail"]


def test_a_case_is_given_up_at_its_deadline() -> None:
    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"), within(0.05):
        time.sleep(30)
    with within(None), within(30.0):
        pass


def test_what_a_machine_has_is_not_taken_from_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in packages.GROUPS:
        (tmp_path / group).mkdir()
    monkeypatch.setattr(packages, "_importable", lambda module: module not in ("cuda.core", "msgspec"))
    assert [p.name for p in packages.missing(tmp_path)] == ["cuda", "msgspec"]
    (tmp_path / "msgspec").rmdir()
    assert [p.name for p in packages.missing(tmp_path)] == ["cuda"]


def test_forms_are_the_defaults_and_what_differs_in_one_option() -> None:
    workload = narrow()
    task = Task.of(workload, H100, ("mma",), rows_up_to(2048))
    tables = [default_of(family, workload, H100) for family in task.families]
    defaults = list(dict.fromkeys(configs[select(root, dict(s)).kernel] for s in ends(task.points.shapes)
                                  for configs, root in tables))
    found = neighbours(task, len(defaults) + 12)
    assert set(found[: len(defaults)]) == set(defaults) and len(found) == len(set(found)) == len(defaults) + 12
    changed = [min((difference(d, c) for d in defaults), key=len) for c in found[len(defaults) :]]
    assert all(len(c) == 1 for c in changed) and len({c[0] for c in changed}) >= 4
    assert difference(defaults[0], defaults[0]) == []


def test_a_build_that_was_ended_goes_on(tmp_path: Path) -> None:
    """What was made is kept, what was begun is made again, another plan begins anew."""
    told: list[str] = []

    def fail(to: Path) -> None:
        to.write_text("half")
        raise KeyboardInterrupt

    steps = _Steps(tmp_path / "kit", Plan(), told.append)
    steps.file("artifacts/a.tw", lambda to: to.write_text("a"))
    with pytest.raises(KeyboardInterrupt):
        steps.file("artifacts/b.tw", fail)
    again = _Steps(tmp_path / "kit", Plan(), told.append)
    again.file("artifacts/a.tw", lambda to: to.write_text("other"))
    again.file("artifacts/b.tw", lambda to: to.write_text("b"))
    found = {p.name: p.read_text() for p in (tmp_path / "kit/data/artifacts").iterdir()}
    assert found == {"a.tw": "a", "b.tw": "b"} and told == ["artifacts/a.tw"] * 2 + ["artifacts/b.tw"]
    _Steps(tmp_path / "kit", Plan(kernels=3), told.append)
    assert not (tmp_path / "kit/data/artifacts").exists()
    (tmp_path / "kit/made_by").unlink()
    with pytest.raises(SystemExit, match="no kit under way"):
        _Steps(tmp_path / "kit", Plan(), told.append)


def test_every_step_is_there() -> None:
    import importlib

    for name, module in STEPS.items():
        assert callable(getattr(importlib.import_module(f"tools.gpu_kit.{module}"), name))
        assert arguments([name]).seconds <= 600


def test_only_releases_of_a_ring_are_passed_over() -> None:
    released = "Barrier error detected. Missing wait.\n at kernel+0x16b0\nBarrier error detected. Missing wait.\n"
    assert _only_released(released)
    assert not _only_released(released + "Barrier error detected. Divergent thread(s) in block.\n")
    assert not _only_released("Invalid __shared__ read of size 4 bytes") and not _only_released("")
