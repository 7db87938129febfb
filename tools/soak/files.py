"""Actors that work with files: compilers that save models, loaders that load them, tuners that share a log."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.worker_reserve import IDLE_SECONDS
from tilewright.runtime.errors import ArtifactError, BuildError, TilewrightError
from tilewright.runtime.load.function import CompiledFunction
from tools.soak.actor import Actor, Beat, Step, Verdict
from tools.soak.cases import Case, Model, as_tuple, bits
from tools.soak.conditions import CLOCKS, FULL_DISK
from tools.soak.damage import flipped, scribbled, truncated
from tools.soak.messages import Outcome

_KILLED = "SIGKILL"  # what the error of a build says when the driver killed its worker
_TUNE_SECONDS = 4.0


def called(fn: CompiledFunction, case: Case) -> Verdict:
    """One call with one thread and one with two, judged by the reference."""
    args = case.arguments()
    one, two = (as_tuple(fn(*args, threads=threads)) for threads in (1, 2))
    reason = case.reason_wrong(one)
    if reason is None and bits(one) != bits(two):
        reason = "other bits with two threads"
    return Verdict() if reason is None else Verdict(Outcome.WRONG, reason, case=case)


class Compiler(Actor):
    """Compiles new models and old ones through the shared cache, calls them, saves them."""

    conditions = (FULL_DISK, *CLOCKS)
    builds = True
    rests = IDLE_SECONDS + 2

    def prepare(self, beat: Beat) -> None:
        self.steps = 0

    def next(self) -> Step:
        self.steps += 1
        case = Model(self.seed, self.rng.randrange(8 + self.steps)).case(self.rng)
        return Step("compile", lambda: self._compile(case), [case])

    def _compile(self, case: Case) -> list[Verdict]:
        try:
            fn = case.model.compile(seed=self.rng.randrange(3))  # of no effect without a search: the same kernels, another model
        except BuildError as error:
            if _KILLED not in f"{error} {error.log}":
                raise
            return [Verdict(Outcome.TYPED)]
        return [called(fn, case), *self._save(fn, self.place.models / case.model.file_name)]

    def _save(self, fn: CompiledFunction, path: Path) -> list[Verdict]:
        """Saved, and refused where the disk is full."""
        if self.condition != FULL_DISK:
            fn.save(path)
            return [Verdict()]
        return [_refused(fn, path), _refused(fn, Path("/dev/full"))]


def _refused(fn: CompiledFunction, path: Path) -> Verdict:
    try:
        fn.save(path)
    except ArtifactError:
        return Verdict(Outcome.TYPED)
    return Verdict(Outcome.WRONG, f"{path} was saved on a full disk")


class Loader(Actor):
    """Loads what compilers saved, calls it and drops it; damaged copies, and copies that are damaged once they are loaded, are
    refused or right."""

    conditions = tuple(CLOCKS)
    warm_after = 12

    def next(self) -> Step:
        damaged = sorted(self.place.damaged.glob("*.tw"))
        whole = sorted(self.place.models.glob("*.tw"))
        if damaged and self.rng.random() < 0.4:
            return self._step("load damaged", self.rng.choice(damaged), self._load_damaged)
        if whole and self.rng.random() < 0.3:
            return self._step("damage loaded", self.rng.choice(whole), self._damage_loaded)
        if whole:
            return self._step("load", self.rng.choice(whole), self._load)
        return Step("wait", _nothing_yet)

    def _step(self, what: str, path: Path, run: Callable[[Path, Case], Verdict]) -> Step:
        case = Model.of_file(self.seed, path.name).case(self.rng)
        return Step(what, lambda: run(path, case), [case])

    def _loaded(self, path: Path) -> CompiledFunction:
        return tw.load(path, verify=self.rng.choice(("lazy", "full")))

    def _load(self, path: Path, case: Case) -> Verdict:
        return called(self._loaded(path), case)

    def _load_damaged(self, path: Path, case: Case) -> Verdict:
        try:
            return called(self._loaded(path), case)
        except ArtifactError:
            return Verdict(Outcome.TYPED)

    def _damage_loaded(self, path: Path, case: Case) -> Verdict:
        """A file that is written to in place between two calls, or before the first."""
        with tempfile.NamedTemporaryFile(suffix=".tw") as copy:
            shutil.copyfile(path, copy.name)
            fn = self._loaded(Path(copy.name))
            if self.rng.random() < 0.5 and not (before := called(fn, case)).outcome.is_fine:
                return before
            damage = self.rng.choice((flipped, truncated, scribbled))
            Path(copy.name).write_bytes(damage(path.read_bytes(), self.rng))
            try:
                return called(fn, case)
            except ArtifactError:
                return Verdict(Outcome.TYPED)


def _nothing_yet() -> Verdict:
    """A moment until there is something to load."""
    time.sleep(0.5)
    return Verdict()


class Tuner(Actor):
    """Searches for some seconds, with one log for all tuners."""

    conditions = (FULL_DISK, *CLOCKS)
    builds = True
    rests = IDLE_SECONDS + 2
    warm_after = 2
    widths = (16, 48)

    def next(self) -> Step:
        width, rows = self.rng.choice(self.widths), self.rng.randint(1, 40)
        return Step("tune", lambda: self._tune(width, rows))

    def _tune(self, width: int, rows: int) -> Verdict:
        g = ops.Graph()
        g.output(ops.dense(g.input("x", ["M", 32]), g.input("w", [32, width]), activation="tanh"))
        options: dict[str, Any] = {"log": self.place.logs / "tune.jsonl", "threads": 1}
        try:
            fn = tw.tune(g, {"M": (1, 40)}, seconds=_TUNE_SECONDS, options=options)
        except TilewrightError as error:
            if self.condition == FULL_DISK or _KILLED in f"{error} {getattr(error, 'log', '')}":
                return Verdict(Outcome.TYPED)
            raise
        rng = np.random.default_rng(rows)
        x, w = rng.standard_normal((rows, 32)).astype("f4"), rng.standard_normal((32, width)).astype("f4")
        error_norm = np.linalg.norm(fn(x, w) - np.tanh(x.astype("f8") @ w))
        fine = error_norm <= 2e-5 * np.sqrt(rows * width)
        return Verdict() if fine else Verdict(Outcome.WRONG, f"{rows} x 32 x {width}: norm of the error {error_norm:.2e}")
