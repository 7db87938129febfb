"""Steps of the kit that run the prebuilt kernels of the tests: smoke, replay, sanitize."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tilewright.passes.spaces.family_registry import family_names
from tools.checkout import of_tests
from tools.gpu_kit.results import Step

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
_LAUNCH, _SANITIZED = 60.0, 45.0  # seconds of a launch
_PERSISTENT, _OTHERS = 50, 3  # repeats under load


def smoke(step: Step) -> None:
    """One launch of every family in a process of its own, from machine code, then with PTX that the driver assembles."""
    _, launches, first = _launches(step)
    for name in sorted(set(family_names(gpu=True)) - {launches[n].kernel.family for n in first}):
        step.add({"record": "family", "family": name, "ok": None, "error": "the kit has no launch of it"})
    forms = ("stored", "ptx") if step.target == "cuda" else ("stored",)
    with ThreadPoolExecutor(step.jobs) as pool:
        for done in [pool.submit(_play, step, launches, [number], form, 0) for form in forms for number in first]:
            done.result()


def replay(step: Step) -> None:
    """Every launch once; then again many times among memory traffic, those first whose blocks take several tiles."""
    replayed, launches, _ = _launches(step)
    numbers = replayed.chosen(launches, "*", False)
    persistent = [n for n in numbers if any(p.kind == "tensor_map" for p in launches[n].kernel.params)]
    others = [n for n in numbers if n not in set(persistent) and launches[n].kernel.shared_bytes]
    _play(step, launches, numbers, "stored", 0)
    for part, repeats in ((persistent, _PERSISTENT), (others, _OTHERS)):
        _play(step, launches, part, "stored", repeats if step.target == "cuda" else 1)


def sanitize(step: Step) -> None:
    """Small launches under compute-sanitizer: each family under each of its tools, then further kernels while time is left."""
    _, launches, first = _launches(step)
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        step.add({"record": "sanitize", "ok": None, "error": "compute-sanitizer is not installed"})
    configs = {x.kernel.config: n for n, x in reversed(list(enumerate(launches))) if 0 not in x.dims.values()}
    more = [n for n in configs.values() if n not in first]

    def one(given: tuple[int, str]) -> None:
        number, name = given
        if step.left < 1:
            return
        command = [sys.executable, "-m", "tests.gpu.replay", str(step.data / "replay"), "--target", step.target, "--number",
                   str(number), "--here", *(["--plain"] if name == "initcheck" else [])]
        before = [tool, "--tool", name, "--error-exitcode", "9", "--print-limit", "5"] if tool else []
        ended = step.run([*before, *command], _SANITIZED)
        unknown = ended.code is None or (bool(ended.code) and _only_released(ended.output))
        step.add({"record": "sanitize", "tool": name if tool else "none", "family": launches[number].kernel.family,
                  "config": launches[number].kernel.config, "dims": launches[number].dims, "code": ended.code,
                  "ok": None if unknown else ended.code == 0, "seconds": round(ended.seconds, 2),
                  **({} if ended.code == 0 else {"tail": ended.tail})})

    with ThreadPoolExecutor(step.jobs) as pool:
        for _ in pool.map(one, [(n, t) for n in (*first, *more) for t in (SANITIZERS if tool else SANITIZERS[:1])]):
            pass


def _only_released(output: str) -> bool:
    """Are all errors that synccheck found of threads that release a stage again and again? They arrive at an mbarrier that only
    the thread that copies waits for, as a ring of stages wants it; synccheck asks whoever arrives to wait."""
    found = re.findall(r"Barrier error detected\. ([^.\n]+)\.", output)
    return bool(found) and set(found) == {"Missing wait"}


def _launches(step: Step) -> tuple[Any, Sequence[Any], list[int]]:
    """The module that replays, the launches, and the numbers of one of each family."""
    replayed = of_tests("tests.gpu.replay")
    launches = replayed.read(step.data / "replay")
    return replayed, launches, replayed.chosen(launches, "*", True)


def _play(step: Step, launches: Sequence[Any], numbers: Sequence[int], form: str, repeats: int) -> None:
    """Record launches, `step.jobs` of them at a time in a process each; what there is no time for is counted."""
    make = of_tests("tests.gpu.replay").Replay
    waiting, left = deque(numbers), []

    def some() -> None:
        runner = make(step.data / "replay", step.target, form, _LAUNCH)
        with contextlib.suppress(IndexError):  # nothing waits
            while True:
                number = waiting.popleft()
                if step.left < 1:
                    left.append(number)
                else:
                    step.add({**runner.play(number, repeats), "family": launches[number].kernel.family})
        runner.close()

    with ThreadPoolExecutor(step.jobs) as pool:
        for done in [pool.submit(some) for _ in range(min(step.jobs, len(numbers)))]:
            done.result()
    if left:
        step.add({"record": "left", "form": form, "repeats": repeats, "launches": len(left)})
