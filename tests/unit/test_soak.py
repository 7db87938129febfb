"""The soak notices what it is there to notice, and only that; what it draws follows from its seed."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from floats import leave

from tools.soak import conditions
from tools.soak.actor import Place
from tools.soak.cases import Case, Model, bad_calls, laid_out
from tools.soak.conditions import FULL_DISK, ModeChangedError, around_call, around_step, modes
from tools.soak.crew import Role
from tools.soak.driver import Driver, Plan
from tools.soak.faults import FAULTS, Scene
from tools.soak.messages import Done, Outcome
from tools.soak.reproduce import Finding, keep, replay
from tools.soak.resources import leftovers
from tools.soak.tally import Tally

BAD = ("Fine", "Wrong", "Raw", "Refused", "Crashing", "Exiting", "OfDescriptors", "OfFiles", "OfDrafts", "OfProcesses",
       "OfMemory")


def soaked(folder: Path, actors: Sequence[str], enough: Callable[[Tally], bool], faults: Sequence[str] = (),
           hang: float = 60.0) -> Tally:
    roles = [Role(name, f"unit.soak_actors:{name}", number) for number, name in enumerate(actors)]
    return Driver(Plan(roles, 120.0, 0, folder, faults, pace=0.3, hang=hang, enough=enough)).run()


def steps(tally: Tally, name: str) -> int:
    return sum(count for (what, _, _), count in tally.outcomes.items() if what == name)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Tally:
    """One run of all the actors that do something wrong, and one that does not."""
    return soaked(tmp_path_factory.mktemp("bad"), BAD, lambda tally: all(steps(tally, name) >= 4 for name in BAD))


def found(tally: Tally, actor: str) -> set[str]:
    return {f.outcome for f in tally.findings if f.actor.startswith(f"{actor}-")}


@pytest.mark.parametrize(("actor", "outcome"), [("Wrong", "WRONG"), ("Raw", "raw"), ("Refused", "WRONG"), ("Crashing", "crash"),
                                                ("Exiting", "raw")])
def test_outcomes_are_told_apart(bad: Tally, actor: str, outcome: str) -> None:
    assert found(bad, actor) == {outcome}


def test_leaks_are_counted(bad: Tally) -> None:
    assert found(bad, "OfDescriptors") == {"leak"} == found(bad, "OfMemory")
    assert bad.leaks["descriptors"] == 1 == bad.leaks["processes"] == bad.leaks["memory"]
    files = [f.detail for f in bad.findings if f.what == "temporary files"]
    assert len(files) == 2 and any("OfFiles" in f for f in files) and any(".entry." in f for f in files)


def test_what_is_fine_is_not_told(bad: Tally) -> None:
    assert not found(bad, "Fine") and not bad.is_clean


def test_findings_leave_a_reproducer(bad: Tally) -> None:
    crash = next(f for f in bad.findings if f.outcome == "crash")
    facts = json.loads((Path(crash.kept) / "finding.json").read_text())
    assert facts["what"] == "Crashing" and "SIGSEGV" in facts["detail"] and "Fatal Python error" in facts["detail"]


def test_a_hang_is_found_with_its_stack(tmp_path: Path) -> None:
    tally = soaked(tmp_path, ("Hanging", "Fine"), lambda t: t.total(Outcome.HANG) > 0, hang=8)
    hang = next(f for f in tally.findings if f.actor.startswith("Hanging"))
    assert hang.outcome == "hang" and "soak_actors.py" in hang.detail
    assert not found(tally, "Fine")


def test_faults_of_the_driver_are_no_findings(tmp_path: Path) -> None:
    faults = ("kill an actor", "stop an actor")
    tally = soaked(tmp_path, ("Fine", "Fine"), lambda t: all(t.faults[name] for name in faults), faults)
    assert tally.is_clean and tally.total(Outcome.RIGHT) > 0


def test_files_of_killed_processes_are_excused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.make()
    for name in ("dead-0.0", "alive-0.0"):
        (place.temporary / name).mkdir()
        (place.temporary / name / "left").touch()
    for pid in (11, 12):
        (place.cache / f".key.{pid}.00ff").touch()
        (place.models / f".model-1.tw.{pid}.00ff.tmp").touch()
    told = leftovers(place.temporary, (place.cache, place.models), {"dead-0.0"}, {11})
    assert len(told) == 3 and all("12" in t or "alive" in t for t in told)


def test_a_tally_is_clean_until_something_is_found() -> None:
    tally = Tally()
    tally.take("a", Done("call", "calm", Outcome.RIGHT, 100))
    tally.take("a", Done("bad call", "calm", Outcome.TYPED, 7))
    tally.grew("a", 5 << 20)
    assert tally.is_clean and tally.as_json()["totals"]["right"] == 100
    assert tally.line() == "0 min: 100 right, 7 typed, 0 WRONG, 0 raw, 0 crash, 0 hang; 0 faults"
    tally.grew("b", (5 << 20) + 1)
    assert not tally.is_clean and tally.leaks["memory"] == 1


def test_a_full_disk_refuses_and_is_emptied(tmp_path: Path) -> None:
    with around_step(FULL_DISK), pytest.raises(OSError, match="File too large"):
        (tmp_path / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "large").write_bytes(b"x" * 100_000)


def test_the_clock_jumps_and_comes_back() -> None:
    before = time.time()
    with around_step("clock ahead"):
        assert time.time() > before + 3600 and time.time_ns() > (before + 3600) * 1e9
    assert abs(time.time() - before) < 60


@pytest.mark.parametrize("name", conditions.FLOATING_POINT)
def test_foreign_modes_hold_for_one_call(name: str) -> None:
    before = modes()
    with around_call(name):
        inside = modes()
    assert inside == before | conditions.FLOATING_POINT[name] and modes() == before


def test_a_call_that_changes_the_modes_is_found() -> None:
    before, changed = modes(), ExitStack()
    with pytest.raises(ModeChangedError, match="MXCSR"), around_call("round up"):
        changed.enter_context(around_call("flush to zero"))
    assert modes() == before
    with suppress(ModeChangedError):
        changed.close()  # which gives back the mode that it found, "round up"
    leave()
    assert modes() == before


def test_layouts_keep_the_elements() -> None:
    rng, seen = random.Random(0), set()
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for _ in range(60):
        other = laid_out(array, rng)
        np.testing.assert_array_equal(other, array)
        seen.add(other.strides)
    assert len(seen) >= 8
    assert laid_out(np.zeros((0, 3)), rng).shape == (0, 3)


def test_models_and_cases_follow_from_the_seed() -> None:
    for number in range(6):
        model, again = Model(3, number), Model(3, number)
        assert model.program.text == again.program.text
        a, b = model.case(random.Random(1)), again.case(random.Random(1))
        assert a.drawn == b.drawn and Case.of(3, a.drawn) == a
        for x, y in zip(a.arguments(), b.arguments(), strict=True):
            np.testing.assert_array_equal(x, y)
        assert Model.of_file(3, "model-7.12.tw") == Model(3, 7)
    texts = {Model(seed, 0).program.text for seed in range(5)}
    assert len(texts) == 5


def test_what_is_kept_runs_again(tmp_path: Path) -> None:
    case = min((Model(0, n).case(random.Random(0)) for n in range(8)), key=lambda c: len(c.model.program.text))
    place = keep(tmp_path, Finding("WRONG", "call", "calm", "caller-0.0", 0, "why"), [case])
    assert (place / f"model-{case.model.number}.mlir").read_text() == case.model.program.text
    found = msgspec.json.decode((place / "finding.json").read_bytes(), type=Finding)
    assert found.cases == (case.drawn,)
    for i, a in enumerate(a for a in case.arguments() if isinstance(a, np.ndarray)):
        kind, shape, strides = found.layouts[f"case0.argument{i}"]
        assert (kind, shape, strides) == (str(a.dtype), a.shape, a.strides)
        assert (place / f"case0.argument{i}").read_bytes() == a.tobytes()
    assert replay(place) == []


def test_bad_calls_cover_every_dim_and_argument() -> None:
    case = next(c for c in (Model(0, n).case(random.Random(0)) for n in range(50)) if len(c.model.program.ranges) == 2)
    told = [bad.what for bad in bad_calls(case)]
    for name, dim in case.model.program.ranges.items():
        assert any(w.startswith(f"{name} = {dim.hi + dim.multiple_of}") for w in told)
    assert sum("another element type" in w for w in told) >= 1 and "threads=0" in told


def test_damage_is_made_beside_and_follows_from_the_seed(tmp_path: Path) -> None:
    contents = []
    for run in ("a", "b"):
        place = Place(tmp_path / run)
        place.make()
        (place.models / "model-4.tw").write_bytes(bytes(range(256)))
        (place.cache / "ab").mkdir()
        (place.cache / "ab" / "cdef").write_bytes(b"entry")
        scene = Scene((), place, random.Random(5), 0.0)
        assert all(FAULTS[name](scene) for name in ("flip an artifact", "truncate an artifact", "flip a cache entry"))
        assert FAULTS["kill an actor"](scene) is None
        assert (place.models / "model-4.tw").read_bytes() == bytes(range(256))
        assert len((place.cache / "ab" / "cdef").read_bytes()) == 5 and (place.cache / "ab" / "cdef").read_bytes() != b"entry"
        contents.append(sorted((p.name, p.read_bytes()) for p in place.damaged.iterdir()))
        assert not [p for p in os.listdir(tmp_path / run) if p.endswith(".draft")]
    assert contents[0] == contents[1] and len(contents[0]) == 2
    assert all(Model.of_file(0, name).number == 4 for name, _ in contents[0])
