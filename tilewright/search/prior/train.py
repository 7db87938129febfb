"""Priors from logs: one cost model a kernel family, with scores on workloads that it never saw, beside those of another model
and of arithmetic alone.

A log says what a launch took and on which device; what arithmetic says for that device is divided out (search/cost_model), so
that logs of many machines teach one model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tilewright.passes.spaces.family_registry import family_of, parse_config, space_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.search.cost_model.forms import feature_space, form_of
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel, Samples, Training
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.database.records import TuningLog, TuningRecord, cells
from tilewright.search.runner.gpu_environment import limits_of_name
from tilewright.search.space.lattice import Lattice

SCHEMA = 1
TRAINING, SMALL = Training(members=3, rounds=32, depth=5), Training(members=3, rounds=24, depth=3)
_MANY = 4000  # measurements from which trees as deep as those of TRAINING have enough to split
_FOLDS, _FEW = 3, 12  # folds of workloads; up to so many workloads each is a fold
_MOST = 1500  # measurements of a workload on a device that are learned from
_LEAST = 24  # measurements from which a model is worth learning
_TRIED = 4  # kernels that a search would measure first
_HOST = re.compile(r"host (?P<cpu>\S+) (?P<bits>\d+) bits l2=(?P<l2>\d+)K l3=(?P<l3>\d+)M cores=(?P<cores>\d+)")


class Score(msgspec.Struct, frozen=True):
    """Of a model on workloads that it was not trained on, over their shapes.

    error: median of |log(predicted / measured)| after the workload's own median is taken off, as searches correct that first.
    order: share of pairs of kernels of a shape that are put in the right order. regret: geomean of the time of the best of the
    four kernels that it puts first over the least time that is known.
    """

    error: float
    order: float
    regret: float
    shapes: int

    def beats(self, other: Score) -> bool:
        """Is it no worse where it counts, which is the regret?"""
        return self.regret <= other.regret + 0.002


class Trained(msgspec.Struct, frozen=True):
    """What is written of a family's model. own: held out by folds over workloads. before: of the model that it would take the
    place of, on the same; None where there is none. arithmetic: of what is predicted without any model, on the same."""

    family: str
    records: int
    workloads: int
    devices: tuple[str, ...]
    own: Score | None
    before: Score | None
    accepted: bool
    digest: str = ""
    arithmetic: Score | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class _Group:
    """The good records of a workload on a device."""

    workload: Workload
    lattice: Lattice
    records: tuple[TuningRecord, ...]
    samples: Samples


def groups_of(logs: Iterable[TuningLog], here: HostLimits) -> dict[str, list[_Group]]:
    """Family -> what logs hold of it. here: limits of a host, of which a device's name tells some others."""
    found: dict[tuple[str, str, str], list[TuningRecord]] = {}
    forms = {}
    for log in logs:
        forms.update(log.workloads)
        for r in log.records:
            if r.seconds and r.workload in log.workloads:
                found.setdefault((r.family, r.workload, r.device), []).append(r)
    groups: dict[str, list[_Group]] = {}
    for (family, key, device), records in sorted(found.items()):
        made = _group(forms[key].workload(), family, device, records, here)
        if made is not None:
            groups.setdefault(family, []).append(made)
    return groups


def train(groups: Sequence[_Group]) -> CostModel:
    """A model of a family."""
    many = sum(len(g.samples) for g in groups) >= _MANY
    model = CostModel(TRAINING if many else SMALL)
    model.fit([g.samples for g in groups])
    return model


def trained(family: str, groups: Sequence[_Group], before: CostModel | None) -> tuple[Trained, CostModel | None]:
    """A model of all groups, and what it is worth: each workload is judged by a model that saw only others. It is accepted where
    it beats both the model before and arithmetic."""
    records, devices = sum(len(g.records) for g in groups), tuple(sorted({g.records[0].device for g in groups}))
    keys = sorted({g.workload.key for g in groups})
    if records < _LEAST:
        return Trained(family, records, len(keys), devices, None, None, False), None
    folds = len(keys) if len(keys) <= _FEW else _FOLDS
    owns, befores, plain = list[Score](), list[Score](), list[Score]()
    for fold in range(folds if folds > 1 else 0):
        out = set(keys[fold::folds])
        held = [g for g in groups if g.workload.key in out]
        owns.append(score(train([g for g in groups if g.workload.key not in out]), held))
        plain.append(score(CostModel(), held))
        if before is not None:
            befores.append(score(before, held))
    own, old, arithmetic = _mean(owns), _mean(befores), _mean(plain)
    accepted = own is None or all(own.beats(s) for s in (old, arithmetic) if s is not None)
    return Trained(family, records, len(keys), devices, own, old, accepted, arithmetic=arithmetic), train(groups)


def score(model: CostModel, groups: Sequence[_Group]) -> Score:
    """Of a model on workloads."""
    errors, ordered, regrets = list[float](), list[float](), list[float]()
    for group in groups:
        known: dict[tuple[tuple[tuple[str, int], ...], int], dict[int, float]] = {}
        for cell in cells(group.records):
            number = group.lattice.number(cell.config)
            if number is not None:
                known.setdefault((cell.shape, cell.threads), {})[number] = cell.seconds
        offsets: list[float] = []
        for (shape, threads), times in known.items():
            if len(times) < 2:
                continue
            space = feature_space(group.lattice, (shape,))
            configs = sorted(times)
            predicted = model.predict(space, Pairs.product(configs, [0], [threads]))[0]
            measured = np.log([times[c] for c in configs])
            offsets += (predicted - measured).tolist()
            upper = np.triu_indices(len(configs), 1)
            apart = np.sign(np.subtract.outer(measured, measured)[upper])
            right = np.sign(np.subtract.outer(predicted, predicted)[upper]) == apart
            ordered.append(float(right.mean()))
            first = np.argsort(predicted, kind="stable")[:_TRIED]
            regrets.append(float(measured[first].min() - measured.min()))
        if offsets:
            errors.append(float(np.median(np.abs(np.array(offsets) - np.median(offsets)))))
    if not regrets:
        return Score(0.0, 0.0, 0.0, 0)
    return Score(float(np.mean(errors)), float(np.mean(ordered)), float(np.expm1(np.mean(regrets))), len(regrets))


def digest_of(data: bytes) -> str:
    """Of a model's file, by which versions are told apart."""
    return hashlib.sha256(data).hexdigest()[:16]


def _mean(scores: Sequence[Score]) -> Score | None:
    """Weighted by their shapes."""
    weights = np.array([s.shapes for s in scores], float)
    if not weights.sum():
        return None
    mean = {f: float(np.average([getattr(s, f) for s in scores], weights=weights)) for f in ("error", "order", "regret")}
    return Score(**mean, shapes=int(weights.sum()))


def _group(workload: Workload, family: str, device: str, records: list[TuningRecord], here: HostLimits) -> _Group | None:
    """None for a device whose name tells no limits, and where nothing is read."""
    try:
        limits = _limits(device, here, family)
        configs = (_readable(text, workload, limits) for text in dict.fromkeys(r.config for r in records))
        lattice = Lattice(workload, limits, [c for c in configs if c is not None])
    except OptionError:
        return None
    if not len(lattice):
        return None
    for r in records:
        if r.built is not None:
            lattice.note(r.config, r.built)
    rng = np.random.default_rng(0)
    kept = [records[i] for i in sorted(rng.permutation(len(records))[:_MOST])]
    samples = training_samples(form_of(lattice), kept)
    return None if samples is None or not len(samples) else _Group(workload, lattice, tuple(kept), samples)


def _limits(device: str, here: HostLimits, family: str) -> Limits:
    if family_of(family).gpu:
        return limits_of_name(device)
    m = _HOST.match(device)
    if m is None:
        raise OptionError(f"device {device!r}: wanted the name of a host as records have it")
    return replace(here, vector_bytes=int(m["bits"]) // 8, l2=int(m["l2"]) << 10, l3=int(m["l3"]) << 20, cores=int(m["cores"]))


def _readable(text: str, workload: Workload, limits: Limits) -> TileConfig | None:
    """A configuration of the workload; None for a text that is none, or no longer, or on these limits."""
    try:
        config = parse_config(text)
        invalid: Mapping[str, str] | str | None = space_of(config.family).why_invalid(config, workload, limits) \
            if hasattr(space_of(config.family), "why_invalid") else None
    except OptionError:
        return None
    return config if invalid is None else None
