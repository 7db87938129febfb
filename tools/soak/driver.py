"""The driver: starts the actors, makes faults on a schedule that follows from the seed, listens, and counts."""

from __future__ import annotations

import os
import random
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.soak.actor import Place
from tools.soak.cases import Case
from tools.soak.conditions import CALM
from tools.soak.crew import Member, Role, start
from tools.soak.faults import FAULTS, Scene
from tools.soak.messages import Began, Done, Outcome
from tools.soak.reproduce import Finding, keep
from tools.soak.resources import grown, leftovers, processes_under
from tools.soak.tally import Tally

_TICK = 0.2
_MINUTE = 60.0
_RESTART_SECONDS = 0.5
_OWN_SIGNALS = (-signal.SIGKILL, -signal.SIGUSR1)  # the second ends a process that cannot tell yet where it is
_GRACE_SECONDS = 15.0  # for workers to notice that who started them is gone


@dataclass(frozen=True)
class Plan:
    """A run. pace: seconds between two faults on average; hang: seconds without a word that count as a hang; enough: whether
    these counts suffice before the time is over; progress: told the counts every minute."""

    roles: Sequence[Role]
    seconds: float
    seed: int
    folder: Path
    faults: Sequence[str] = tuple(FAULTS)
    pace: float = 2.0
    hang: float = 60.0
    enough: Callable[[Tally], bool] = lambda _: False
    progress: Callable[[Tally], None] = lambda _: None


class Driver:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.place, self.tally = plan, Place(plan.folder), Tally()
        self._rng = random.Random(f"{plan.seed}/driver")
        self._selector = selectors.DefaultSelector()
        self._crew: dict[int, Member] = {}
        self._incarnations: dict[str, int] = {}
        self._vacant: list[tuple[float, Role]] = []
        self._killed: set[str] = set()
        self._killed_pids: set[int] = set()

    def run(self) -> Tally:
        """Until the time is over and all actors have ended."""
        self.place.make()
        begun = time.monotonic()
        try:
            for role in self.plan.roles:
                self._start(role)
            self._run_until(begun + self.plan.seconds)
            self._finish()
            self._look_for_leaks()
        finally:
            self._end_everything()
        self.tally.seconds = time.monotonic() - begun
        return self.tally

    def _start(self, role: Role) -> None:
        number = self._incarnations.get(role.seat, -1) + 1
        self._incarnations[role.seat] = number
        member = start(role, number, self.place, self.plan.seed, time.monotonic())
        self._crew[member.descriptor] = member
        self._selector.register(member.descriptor, selectors.EVENT_READ)

    def _run_until(self, deadline: float) -> None:
        begun = time.monotonic()
        due, minute = begun + self._pause(), begun + _MINUTE
        while (now := time.monotonic()) < deadline and not self.plan.enough(self.tally):
            self._listen()
            if now >= due:
                self._make_fault(now)
                due = now + self._pause()
            self._watch(now)
            self._fill_seats(now)
            if now >= minute:
                self.tally.seconds, minute = now - begun, minute + _MINUTE
                self.plan.progress(self.tally)

    def _pause(self) -> float:
        return self._rng.expovariate(1 / self.plan.pace)

    def _make_fault(self, now: float) -> None:
        if not self.plan.faults:
            return
        name = self._rng.choice(list(self.plan.faults))
        scene = Scene(list(self._crew.values()), self.place, self._rng, now)
        if FAULTS[name](scene) is not None:
            self.tally.faults[name] += 1

    def _watch(self, now: float) -> None:
        """Let stopped actors run again, and end those that say nothing."""
        for member in list(self._crew.values()):
            if member.stopped and now >= member.resumes:
                member.go_on(now)
            if not member.stopped and now - member.heard > self.plan.hang and not member.killed:
                words = member.where()
                self._lost(member, Outcome.HANG, f"no word for {now - member.heard:.0f} s\n{words}")
                member.kill()

    def _listen(self) -> None:
        for key, _ in self._selector.select(_TICK):
            member = self._crew[key.fd]
            reports = member.read(time.monotonic())
            if reports is None:
                self._ended(member)
                continue
            for report in reports:
                if isinstance(report, Done):
                    self.tally.take(member.name, report)

    def _ended(self, member: Member) -> None:
        """Judge the end of a process; another takes its seat unless it was to end."""
        self._selector.unregister(member.descriptor)
        del self._crew[member.descriptor]
        member.go_on(time.monotonic())
        code = member.close()
        by_fault = member.killed and code in _OWN_SIGNALS
        if not by_fault and (code or not member.finishing):
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            self._lost(member, Outcome.CRASH if code < 0 else Outcome.RAW, f"{how}\n{member.words()}")
        if by_fault or code:
            self._killed.add(member.name)
            self._killed_pids.add(member.process.pid)
        if not member.finishing:
            self._vacant.append((time.monotonic() + _RESTART_SECONDS, member.role))

    def _fill_seats(self, now: float) -> None:
        """Start another actor for each one that ended a moment ago."""
        due, self._vacant = [r for at, r in self._vacant if at <= now], [v for v in self._vacant if v[0] > now]
        for role in due:
            self._start(role)

    def _lost(self, member: Member, outcome: Outcome, detail: str) -> None:
        """Count the step that a process was at."""
        doing = member.doing or Began("start", CALM)
        finding = Finding(outcome.value, doing.what, doing.under, member.name, self.plan.seed, detail)
        kept = keep(self.place.failures, finding, [Case.of(self.plan.seed, drawn) for drawn in doing.cases])
        self.tally.take(member.name, Done(doing.what, doing.under, outcome, detail=detail, kept=str(kept)))

    def _finish(self) -> None:
        """Ask all to end, and wait."""
        members = list(self._crew.values())
        for member in members:
            member.finish(time.monotonic())
        while self._crew:
            self._listen()
            self._watch(time.monotonic())
        for member in members:
            if member.warm is None or member.end is None:
                continue
            for name, count in grown(member.warm.descriptors, member.end.descriptors).items():
                self.tally.leaked("descriptors", member.name, f"{count} more of {name}", count)
            if member.role.actor.stays:
                self.tally.grew(member.name, member.end.resident - member.warm.resident)

    def _look_for_leaks(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := processes_under(self.place.temporary)) and time.monotonic() < deadline:
            time.sleep(_TICK)
        for pid in left:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                self.tally.leaked("processes", "", f"{pid}: {words}")
        shared = (self.place.cache, self.place.models, self.place.logs)
        for path in leftovers(self.place.temporary, shared, self._killed, self._killed_pids):
            self.tally.leaked("temporary files", "", path)

    def _end_everything(self) -> None:
        """Whatever still runs of what this run started."""
        for pid in processes_under(self.place.temporary):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for member in self._crew.values():
            member.close()
        self._selector.close()
