"""RayReckoners: what follows from measurements is reckoned in a Ray actor, so that the driver of a farm is free to hand out work.

The driver keeps the records and sends those that are new with each question. An actor that is lost costs nothing but time: the
one that takes its place says how many records it has, and is sent them all. Where two are lost over a question, the driver
reckons by itself from then on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from tilewright.runtime.log import LOG
from tilewright.search.cost_model.form import CostForm
from tilewright.search.cost_model.forms import form_of
from tilewright.search.database.records import TuningRecord
from tilewright.search.libraries import load_libraries
from tilewright.search.runner.actor_process import ActorProcess
from tilewright.search.runner.core_claim import unclaimed
from tilewright.search.runner.ray_actors import ActorFacts, ActorKind, ActorLostError, ActorPool, ray_module, want_fingerprint
from tilewright.search.search_strategy.evidence import Evidence
from tilewright.search.search_strategy.propose import Proposal
from tilewright.search.search_strategy.reckoner import LocalReckoner, Reckoner, Records, Subject, Wanted
from tilewright.search.search_strategy.selection import Selection
from tilewright.search.space.array_types import Floats
from tilewright.search.space.task import Untuned
from tilewright.search.task_scheduler.belief import Prediction
from tilewright.search.task_scheduler.belief_pool import BeliefOptions, BeliefPool, Histories, quick_beliefs
from tilewright.search.task_scheduler.peak import Peak, measure_peak

_LONGEST = 120.0  # seconds of a question
_WITH_RECORDS = ("learn", "evidence", "held_out", "choice", "propose")
_WITHOUT = ("open_cells", "random", "apart")


class ReckonerActor:
    """In the actor: a LocalReckoner for each operator that it was asked about. It keeps off the cores of runners."""

    def __init__(self, identify: Callable[[], str]) -> None:
        self._fingerprint, self._allowed = identify(), os.sched_getaffinity(0)
        self._known: dict[str, tuple[LocalReckoner, list[TuningRecord]]] = {}
        self._beliefs: BeliefPool | None = None

    def where(self) -> bytes:
        return msgspec.json.encode(ActorProcess.here())

    def facts(self) -> bytes:
        load_libraries()
        return msgspec.json.encode(ActorFacts(self._fingerprint, os.uname().nodename, os.getpid()))

    def ask(self, key: str, subject: Sequence[Any], since: int, more: bytes, what: str, arguments: Sequence[Any]) -> Any:
        """(records that it has, the answer, seconds that it took). Where it has fewer than `since`, there is no answer.

        Args:
            subject: Ray's reference of it, in a list, so that it is fetched once. more: records from `since` on.
        """
        begin = time.monotonic()
        os.sched_setaffinity(0, unclaimed(self._allowed))
        if key not in self._known:
            found: Subject = ray_module().get(subject[0])
            self._known[key] = LocalReckoner(found, form_of(found.task.lattice())), []
        reckoner, records = self._known[key]
        if len(records) < since:
            return len(records), None, 0.0
        fresh = msgspec.msgpack.decode(more, type=list[TuningRecord])[len(records) - since :]
        for record in fresh:
            if record.built is not None:
                reckoner.form.note(record.config, record.built)
        records += fresh
        if what not in (*_WITH_RECORDS, *_WITHOUT):
            raise ValueError(f"a reckoner is not asked for {what!r}")
        given = (records, *arguments) if what in _WITH_RECORDS else arguments
        return len(records), getattr(reckoner, what)(*given), time.monotonic() - begin

    def believe(self, options: BeliefOptions, histories: Histories, pending: Mapping[str, int]) -> Any:
        """(predictions of all arms, the likeliest parameters of each, fits so far, seconds that it took)."""
        begin = time.monotonic()
        os.sched_setaffinity(0, unclaimed(self._allowed))
        if self._beliefs is None:
            self._beliefs = quick_beliefs(options)
        found = self._beliefs.predictions(histories, pending)
        likeliest = {key: self._beliefs.likeliest(key) for key in histories}
        return found, likeliest, self._beliefs.fits, time.monotonic() - begin

    def foresee(self, key: str, best: float, at: float) -> Prediction | None:
        """Of an arm by the beliefs that it was last asked for; None where it holds none."""
        return None if self._beliefs is None else self._beliefs.predict(key, best, at)

    def peak(self) -> tuple[float, float]:
        """Operations and bytes a second of a core here (measure_peak)."""
        os.sched_setaffinity(0, unclaimed(self._allowed))
        found = measure_peak()
        return found.flops, found.bytes


class RayReckoners:
    """The actor of a farm and what asks it.

    Args:
        make: starts the actor. fingerprint: that it has to have.
    """

    def __init__(self, make: Callable[[int], Any], fingerprint: str,
                 told: Callable[[str, Mapping[str, Any]], None] = lambda what, facts: None) -> None:
        self._ray, self._fingerprint = ray_module(), fingerprint
        self.pool = ActorPool(ActorKind("reckoner", make, self._join), 1, told)

    def of(self, subject: Subject, form: CostForm) -> Reckoner:
        """A MakeReckoner."""
        return RayReckoner(self.pool, subject, form)

    def beliefs(self, options: BeliefOptions, clock: Callable[[], float]) -> BeliefPool:
        """Of the arms of a search, in the actor."""
        return RayBeliefs(self.pool, options, clock)

    def peak(self) -> Peak:
        """Of a core of the cluster."""
        try:
            return Peak(*self.pool.request(lambda actor: actor.peak.remote(), _LONGEST).value)
        except ActorLostError as lost:
            LOG.warning("the driver measures the peak by itself: %s", lost)
            return measure_peak()

    def close(self) -> None:
        self.pool.close()

    def _join(self, actor: Any, patience: float) -> str:
        facts = msgspec.json.decode(self._ray.get(actor.facts.remote(), timeout=patience), type=ActorFacts)
        name = facts.named("reckoner")
        want_fingerprint(name, facts.fingerprint, self._fingerprint)
        return name


class RayBeliefs(BeliefPool):
    """Beliefs that an actor holds. It is told the whole history of each arm every time, so another one may take its place."""

    def __init__(self, actors: ActorPool, options: BeliefOptions, clock: Callable[[], float]) -> None:
        super().__init__(options, clock=clock)
        self._actors = actors
        self._likeliest: dict[str, Floats] = {}
        self._told: Histories = {}
        self._own: BeliefPool | None = None

    def predictions(self, histories: Histories, pending: Mapping[str, int]) -> Mapping[str, Prediction]:
        begin, self._told = self.clock(), histories
        found: Mapping[str, Prediction]
        if self._own is None:
            try:
                reply = self._actors.request(lambda actor: actor.believe.remote(self.options, histories, pending), _LONGEST)
                found, self._likeliest, self.fits, worked = reply.value
                self._actors.account(reply, worked)
                self.seconds += self.clock() - begin
                return found
            except ActorLostError as lost:
                LOG.warning("the driver holds beliefs by itself from now on: %s", lost)
                self._own = quick_beliefs(self.options, self.clock)
        found = self._own.predictions(histories, pending)
        self._likeliest = {key: self._own.likeliest(key) for key in histories}
        self.seconds += self.clock() - begin
        return found

    def predict(self, key: str, best: float, at: float) -> Prediction:
        while self._own is None:
            found = self._foreseen(key, best, at)
            if found is not None:
                return found
            self.predictions(self._told, {})  # the actor is another one; or there is none, and there are own ones from now on
        return self._own.predict(key, best, at)

    def _foreseen(self, key: str, best: float, at: float) -> Prediction | None:
        try:
            found: Prediction | None = self._actors.request(lambda actor: actor.foresee.remote(key, best, at), _LONGEST).value
        except ActorLostError:
            return None
        return found

    def likeliest(self, key: str) -> Floats:
        return self._likeliest[key]


class RayReckoner:
    """A Reckoner that asks the actor of a pool about one operator."""

    def __init__(self, pool: ActorPool, subject: Subject, form: CostForm) -> None:
        self._pool, self._subject, self._form = pool, subject, form
        self._stored = [ray_module().put(subject)]
        self._key = subject.task.workload.key
        self._records: Records = ()
        self._sent = 0
        self._local: LocalReckoner | None = None

    def learn(self, records: Records, anew: bool = False) -> None:
        self._asked(records, "learn", anew)

    def evidence(self, records: Records) -> Evidence:
        found: Evidence = self._asked(records, "evidence")
        return found

    def held_out(self, records: Records) -> Evidence:
        found: Evidence = self._asked(records, "held_out")
        return found

    def open_cells(self, importance: Floats, count: int, least: float) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = self._asked(None, "open_cells", importance, count, least)
        return found

    def choice(self, records: Records, usual: Untuned, hopeful: bool) -> Selection | None:
        found: Selection | None = self._asked(records, "choice", usual, hopeful)
        return found

    def propose(self, records: Records, wanted: Wanted) -> list[Proposal]:
        found: list[Proposal] = self._asked(records, "propose", wanted)
        return found

    def random(self, taken: Collection[int], count: int) -> list[Proposal]:
        found: list[Proposal] = self._asked(None, "random", taken, count)
        return found

    def apart(self, shapes: Sequence[int]) -> list[int]:
        found: list[int] = self._asked(None, "apart", shapes)
        return found

    def _asked(self, records: Records | None, what: str, *arguments: Any) -> Any:
        """The answer of the actor; where none is to be had, one's own."""
        if records is not None:
            self._records = records
        while self._local is None:
            since, more = self._sent, msgspec.msgpack.encode(self._records[self._sent :])
            try:
                reply = self._pool.request(
                    lambda actor, since=since, more=more:  # type: ignore[misc]
                    actor.ask.remote(self._key, self._stored, since, more, what, arguments), _LONGEST)
            except ActorLostError as lost:
                LOG.warning("the driver reckons by itself from now on: %s", lost)
                self._local = LocalReckoner(self._subject, self._form)
                break
            have, answer, worked = reply.value
            self._sent = have
            if have >= since:
                self._pool.account(reply, worked)
                return answer
        given = (self._records, *arguments) if what in _WITH_RECORDS else arguments
        return getattr(self._local, what)(*given)
