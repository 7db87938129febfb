"""ActorPool: Ray actors of one kind, each lent to one thread at a time. What is lost costs its request a second try elsewhere.

An actor that dies, or does not answer in time, is killed and made anew while its request goes to another one; a request that two
actors lost fails. Ray is imported by what is called here alone (extra `ray`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tilewright.runtime.errors import OptionError
from tilewright.runtime.log import LOG
from tilewright.search.runner.actor_process import ActorProcess, see_to_end
from tilewright.search.runner.standby import Standby

_GRACE = 10.0  # seconds beside those of a request, until its actor is taken for lost
_REPLACED = 8  # actors in a row that end before they answer once, after which their place stays empty
_PAUSE, _LONGEST = 0.5, 20.0  # seconds before the third of them in a row, doubled for each further one, and at most
_STARTING = 5.0  # seconds that actors that were being made have to be given up
_STANDBY_PATIENCE = 15.0  # seconds that an actor that stood by has to join; it has all that it needs
_CALM = 30.0  # seconds to wait at most, for all to have joined, before others are made that stand by
_FAMINE = 180.0  # seconds to wait while all actors are being made anew


def ray_module() -> Any:
    """Ray; OptionError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise OptionError("a farm needs Ray: pip install 'tilewright[ray]'; leave --ray out to tune on this machine") from error
    return ray


class ActorFacts(msgspec.Struct, frozen=True):
    """What an actor is: the fingerprint of the Tilewright that it has, and where it runs."""

    fingerprint: str
    node: str
    process: int

    def named(self, kind: str) -> str:
        """The actor in messages."""
        return f"{kind} {self.node[:12]}:{self.process}"


def want_fingerprint(name: str, got: str, wanted: str) -> None:
    """OptionError where an actor has another Tilewright than its driver."""
    if got != wanted:
        raise OptionError(f"{name} is refused: wanted Tilewright of fingerprint {wanted[:12]}, got {got[:12]}; install there "
                          "what is here, libraries too")


class ActorLostError(Exception):
    """Two actors were lost over one request, or none is left."""


@dataclass(frozen=True)
class ActorKind:
    """name: in messages. make: starts an actor in a place of the pool, and returns its handle, whose method `where` says in which
    process, so that its end can be seen to. join: asks it what it is, within `patience` seconds; returns its name, or raises
    OptionError for one that is refused. stand_by: starts another one that takes no room of its own, and the place of the first
    when that is lost; None: it is made then."""

    name: str
    make: Callable[[int], Any]
    join: Callable[[Any, float], str]
    patience: float = 120.0
    stand_by: Callable[[int], Any] | None = None


@dataclass
class Lease:
    """An actor and its place; `name` says which it is."""

    place: int
    handle: Any
    name: str
    answered: bool = False


@dataclass(frozen=True)
class Answer:
    """Of an actor: what it said, which one it was, and seconds from the request to the answer."""

    value: Any
    name: str
    seconds: float


@dataclass
class PoolState:
    """lost: actors; retried: requests that went to a second one; failed: requests that two lost; refused: place -> why.
    answered: requests; overhead: seconds that they took beside the actors' work."""

    lost: int = 0
    retried: int = 0
    failed: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    answered: int = 0
    overhead: float = 0.0


class ActorPool:
    """So many actors of a kind, which start together and join as they are ready.

    Args:
        size: how many. told: called with what happened, for a live view.
    """

    def __init__(self, kind: ActorKind, size: int,
                 told: Callable[[str, Mapping[str, Any]], None] = lambda what, facts: None) -> None:
        self.kind, self.size, self.told, self.state = kind, size, told, PoolState()
        self._ray = ray_module()
        self._idle: list[Lease] = []
        self._changed = threading.Condition()
        self._alive = 0
        self._closed = False
        self._handles: dict[int, Any] = {}
        self._where: dict[int, ActorProcess] = {}
        self._unwanted: dict[str, str] = {}
        self._why: dict[int, str] = {}
        self._failures = dict.fromkeys(range(size), 0)
        self._standby = None if kind.stand_by is None else Standby(
            kind.stand_by, lambda handle: _located(handle, kind.patience), self._kill, self._lost_by)
        self._threads = [threading.Thread(target=self._start, args=(place,), name=f"tilewright-{kind.name}", daemon=True)
                         for place in range(size)]
        self._starting = size
        for thread in self._threads:
            thread.start()

    @property
    def _lost_by(self) -> tuple[type[BaseException], ...]:
        """What is raised of an actor that is lost, or does not start."""
        return self._ray.exceptions.RayError, OSError, ValueError

    @property
    def alive(self) -> int:
        """Actors that have joined and were not lost."""
        with self._changed:
            return self._alive

    def wait(self, seconds: float) -> int:
        """Until all have joined or were refused, at most so long; returns how many have."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._starting and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._alive

    def request(self, ask: Callable[[Any], Any], seconds: float) -> Answer:
        """What an actor answers. ask: sends the request to a handle and returns Ray's reference of the answer.

        Raises:
            ActorLostError: two actors were lost over it, or none is left.
        """
        reasons: list[str] = []
        while len(reasons) < 2:
            lease = self._lend()
            begin = time.monotonic()
            try:
                answer = self._ray.get(ask(lease.handle), timeout=seconds + _GRACE)
            except (self._ray.exceptions.RayError, OSError) as error:
                # of a task that raised, the actor is good: what it raised says so
                if isinstance(error, self._ray.exceptions.RayTaskError):
                    self._give_back(lease)
                    raise ActorLostError(f"{lease.name}: {error.cause!r}") from error
                reasons.append(f"{lease.name}: {_reason(error, seconds)}")
                self.state.retried += len(reasons) == 1
                self._lose(lease, reasons[-1])
                continue
            taken = time.monotonic() - begin
            self._give_back(lease)
            return Answer(answer, lease.name, taken)
        self.state.failed += 1
        raise ActorLostError("; ".join(reasons))

    def remove(self, name: str, why: str) -> None:
        """Lend an actor no more; another takes its place. It is ended when it comes back."""
        with self._changed:
            found = next((x for x in self._idle if x.name == name), None)
            if found is not None:
                self._idle.remove(found)
            else:
                self._unwanted[name] = why
        if found is not None:
            self._lose(found, why)

    def account(self, answer: Answer, worked: float) -> None:
        """An actor says how many seconds it worked for an answer."""
        with self._changed:
            self.state.answered += 1
            self.state.overhead += max(0.0, answer.seconds - worked)

    def close(self) -> None:
        """Kill all actors, and wait for the end of those that run on this machine, with what they started."""
        with self._changed:
            self._closed = True
            handles, self._handles = list(self._handles.values()), {}
            where, self._where = list(self._where.values()), {}
            self._changed.notify_all()
        processes = [p for one in where for p in one.with_children()]
        for handle in handles:
            self._kill(handle)
        if self._standby is not None:
            self._standby.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._starting, _STARTING)
        for left in see_to_end(processes):
            LOG.warning("process %d of a %s has not ended", left.process, self.kind.name)

    def _lend(self) -> Lease:
        with self._changed:
            while not self._idle:
                if self._closed or (not self._alive and not self._starting):
                    why = "; ".join(dict.fromkeys(self.state.refused.values())) or "all were lost"
                    raise ActorLostError(f"no {self.kind.name} is left: {why}")
                if not self._changed.wait_for(lambda: bool(self._idle) or self._closed or not (self._alive or self._starting),
                                              _FAMINE if not self._alive else None):
                    raise ActorLostError(f"no {self.kind.name} came back within {_FAMINE:g} s")
            return self._idle.pop(0)

    def _give_back(self, lease: Lease) -> None:
        lease.answered = True
        self._failures[lease.place] = 0
        why = self._unwanted.pop(lease.name, "")
        if why:
            self._lose(lease, why)
            return
        with self._changed:
            if not self._closed:
                self._idle.append(lease)
                self._changed.notify()

    def _lose(self, lease: Lease, why: str) -> None:
        """Kill an actor and start another in its place."""
        with self._changed:
            self._alive -= 1
            self.state.lost += 1
            self._handles.pop(lease.place, None)
            where = self._where.pop(lease.place, None)
            restart = not self._closed
            if not lease.answered:
                self._failures[lease.place] += 1
            self._starting += restart
            self._changed.notify_all()
        self.told("lost", {"actor": lease.name, "kind": self.kind.name, "reason": why})
        processes = [] if where is None else where.with_children()
        self._kill(lease.handle)
        if restart:
            threading.Thread(target=self._start, args=(lease.place, processes), name=f"tilewright-{self.kind.name}",
                             daemon=True).start()
        else:
            see_to_end(processes)

    def _start(self, place: int, before: Sequence[ActorProcess] = ()) -> None:
        """Make an actor and let it join; one that ends before is tried again, after a pause that grows. before: what is left of
        the one that was there."""
        see_to_end(before)
        while True:
            failures = self._failures[place]
            if failures >= _REPLACED:
                why = f"; the last: {self._why[place]}" if place in self._why else ""
                self._refuse(place, None, f"{failures} in a row were lost before they answered{why}")
                return
            with self._changed:
                if failures > 1 and not self._closed:
                    self._changed.wait_for(lambda: self._closed, min(_LONGEST, _PAUSE * 2 ** (failures - 2)))
                if self._closed or not self._ray.is_initialized():  # Ray would start a cluster by itself
                    self._starting -= 1
                    self._changed.notify_all()
                    return
            if self._joined(place):
                self._stand_by(place)
                return

    def _stand_by(self, place: int) -> None:
        """Have another actor ready for a place, once all have joined."""
        if self._standby is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._starting, _CALM)
            if self._closed or place not in self._handles:
                return
        self._standby.refill(place)

    def _joined(self, place: int) -> bool:
        """One try; True where nothing is left to do in this place."""
        spare = None if self._standby is None else self._standby.take(place)
        handle, where = (None, None) if spare is None else (spare.handle, spare.where)
        try:
            if handle is None:
                handle = self.kind.make(place)
            with self._changed:
                self._handles[place] = handle
            where = where or _located(handle, self.kind.patience)
            with self._changed:
                self._where[place] = where
            name = self.kind.join(handle, self.kind.patience if spare is None else _STANDBY_PATIENCE)
        except OptionError as refused:
            self._refuse(place, handle, str(refused))
            return True
        except self._lost_by as error:
            LOG.info("%s %d did not join: %s", self.kind.name, place, error)
            if spare is not None:  # what is made anew may
                self._end(place, handle)
                return False
            if getattr(error, "actor_init_failed", False):  # it would again
                self._refuse(place, handle, f"{self.kind.name} {place} cannot start: {_last_line(error)}")
                return True
            self._why[place] = _last_line(error)
            self._failures[place] += 1
            self._end(place, handle)
            return False
        with self._changed:
            self._starting -= 1
            is_wanted = not self._closed
            if is_wanted:
                self._alive += 1
                self._idle.append(Lease(place, handle, name))
            self._changed.notify_all()
        if is_wanted:
            self.told("joined", {"actor": name, "kind": self.kind.name})
        else:
            self._end(place, handle)
        return True

    def _refuse(self, place: int, handle: Any, why: str) -> None:
        with self._changed:
            self._starting -= 1
            self.state.refused[place] = why
            self._handles.pop(place, None)
            self._changed.notify_all()
        self.told("refused", {"kind": self.kind.name, "reason": why})
        self._end(place, handle)

    def _end(self, place: int, handle: Any) -> None:
        """Kill an actor that is no part of the pool, and see to its end."""
        with self._changed:
            where = self._where.pop(place, None)
        processes = [] if where is None else where.with_children()
        self._kill(handle)
        see_to_end(processes)

    def _kill(self, handle: Any) -> None:
        if handle is not None and self._ray.is_initialized():
            try:
                self._ray.kill(handle, no_restart=True)
            except (self._ray.exceptions.RayError, ValueError, RuntimeError) as error:
                LOG.debug("an actor of %s cannot be killed: %s", self.kind.name, error)


def _located(actor: Any, patience: float) -> ActorProcess:
    """Where an actor with a method `where` runs."""
    return msgspec.json.decode(ray_module().get(actor.where.remote(), timeout=patience), type=ActorProcess)


def _last_line(error: BaseException) -> str:
    """What an actor's own error says, which ends the text of Ray's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _reason(error: BaseException, seconds: float) -> str:
    if type(error).__name__ == "GetTimeoutError":
        return f"no answer within {seconds:g} s"
    return f"{type(error).__name__}: {(str(error).strip() or 'no word').splitlines()[0][:200]}"
