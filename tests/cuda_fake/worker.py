"""Runs scenarios on a fake driver in a process of its own: it is what cuda-python finds as libcuda there.

A scenario is a function `name(fake)` or `name(fake, folder)` of a module `cuda_fake.scenarios_*`. All of a module that ask for
nothing share a process; `alone(...)` asks for a process of its own, with other devices or another driver.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import incubator
import kept_code
import llvm_level
from garbage import THRESHOLDS

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
    """A process with a fake driver, forked from one that has imported what all of them need."""

    def __init__(self, driver: dict[str, Any]) -> None:
        context = incubator.context()
        self._requests, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(driver, theirs))
        self._process.start()
        theirs.close()

    def run(self, module: str, scenario: str, plain: bool) -> str:
        """The traceback of a failure; empty when it went well. plain: code is built as users build it."""
        try:
            self._requests.send((module, scenario, plain))
            return str(self._requests.recv())
        except (EOFError, OSError):
            self._process.join(_SECONDS)
            return f"the worker ended with {self._process.exitcode}"

    @property
    def lost(self) -> bool:
        return not self._process.is_alive()

    def close(self) -> None:
        self._requests.close()
        self._process.join(_SECONDS)


def serve(options: dict[str, Any], requests: Connection) -> None:
    """Install a driver and run the scenarios that are asked for, in the worker."""
    from cuda_fake.fake_driver import FakeDriver
    from cuda_fake.fake_state import CONTEXT_BASE

    gc.set_threshold(*THRESHOLDS)
    fake = FakeDriver(**options).install()
    os.dup2(2, 1)
    while not fake.lost:
        try:
            module, name, plain = requests.recv()
        except EOFError:
            break
        scenario = scenarios(module)[name]
        sys.modules.pop("torch", None)
        fake.contexts()[:] = [CONTEXT_BASE]
        llvm_level.build_as_shipped(plain)
        kept_code.keep(not plain)
        try:
            with tempfile.TemporaryDirectory() as folder:
                scenario(fake, *[Path(folder)][: len(inspect.signature(scenario).parameters) - 1])
            failure = f"unknown to the fake driver: {fake.unknown}" if fake.unknown else ""
        except BaseException:
            failure = traceback.format_exc() + f"errors of the fake driver: {fake.errors}"
        requests.send(failure)
