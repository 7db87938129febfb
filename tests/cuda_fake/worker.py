"""Runs scenarios on a fake driver in a process of its own: it is what cuda-python finds as libcuda there.

A scenario is a function `name(fake)` or `name(fake, folder)` of a module `cuda_fake.scenarios_*`. All of a module that ask for
nothing share a process; `alone(...)` asks for a process of its own, with other devices or another driver.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
_SECONDS = 300
HELPERS = ("finish", "write")


def alone(**driver: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options of FakeDriver for a process of the scenario's own."""

    def mark(scenario: Callable[..., None]) -> Callable[..., None]:
        scenario.__dict__["driver"] = driver
        return scenario

    return mark


def scenarios(module: str) -> dict[str, Callable[..., None]]:
    """Name -> scenario, in the order of the file."""
    found = vars(importlib.import_module(f"cuda_fake.{module}"))
    return {n: f for n, f in found.items() if inspect.isfunction(f) and f.__module__.endswith(module)
            and next(iter(inspect.signature(f).parameters), "") == "fake" and f.__annotations__["return"] == "None"
            and not n.startswith(HELPERS)}


class Worker:
    """A process with a fake driver."""

    def __init__(self, driver: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "cuda_fake.worker", json.dumps(driver)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
                                         cwd=TESTS.parent)

    def run(self, module: str, scenario: str) -> str:
        """The traceback of a failure; empty when it went well."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps([module, scenario]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return f"the worker ended with {self._process.wait()}"
        line = self._process.stdout.readline()
        return str(json.loads(line)) if line else f"the worker ended with {self._process.wait()}"

    @property
    def lost(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(_SECONDS)


def main() -> None:
    from cuda_fake.fake_driver import FakeDriver
    from cuda_fake.fake_state import CONTEXT_BASE

    options = json.loads(sys.argv[1])
    if "archs" in options:
        options["archs"] = tuple(options["archs"])
    fake = FakeDriver(**options).install()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        module, name = json.loads(line)
        scenario = scenarios(module)[name]
        sys.modules.pop("torch", None)
        fake.contexts()[:] = [CONTEXT_BASE]
        try:
            with tempfile.TemporaryDirectory() as folder:
                scenario(fake, *[Path(folder)][: len(inspect.signature(scenario).parameters) - 1])
            failure = f"unknown to the fake driver: {fake.unknown}" if fake.unknown else ""
        except BaseException:
            failure = traceback.format_exc() + f"errors of the fake driver: {fake.errors}"
        replies.write(json.dumps(failure) + "\n")
        replies.flush()
        if fake.lost:
            break


if __name__ == "__main__":
    main()
