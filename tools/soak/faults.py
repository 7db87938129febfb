"""Faults that the driver makes: processes killed and stopped, bits flipped in files, conditions that actors come under."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import kill
from pathlib import Path
from types import MappingProxyType

from tools.soak.actor import Place
from tools.soak.conditions import CLOCKS, FLOATING_POINT, FULL_DISK
from tools.soak.crew import Member
from tools.soak.damage import Damage, flipped, truncated
from tools.soak.messages import Condition

_CONDITION_STEPS = 3  # of an actor that does not build; those of one that does take seconds
_STOP_SECONDS = (1.0, 5.0)
_ENTRIES = 5  # of the cache, that are flipped at once
_MOST_DAMAGED = 40  # copies that are kept


@dataclass(frozen=True)
class Scene:
    """What a fault can reach. now: seconds of the run's clock."""

    crew: Sequence[Member]
    place: Place
    rng: random.Random
    now: float

    def one(self, fits: Callable[[Member], bool]) -> Member | None:
        found = [m for m in self.crew if not m.killed and not m.stopped and fits(m)]
        return self.rng.choice(found) if found else None


Fault = Callable[[Scene], str | None]


def kill_actor(scene: Scene) -> str | None:
    member = scene.one(lambda m: not m.role.actor.stays and m.warm is not None)
    if member is None:
        return None
    member.kill()
    return member.name


def kill_worker(scene: Scene) -> str | None:
    """One process that a compile or a search started."""
    member = scene.one(lambda m: m.role.actor.builds and bool(m.started()))
    workers = member.started() if member else []
    if member is None or not workers:
        return None
    with suppress(ProcessLookupError):
        kill(scene.rng.choice(workers), signal.SIGKILL)
    return member.name


def stop_actor(scene: Scene) -> str | None:
    member = scene.one(lambda m: True)
    if member is None:
        return None
    member.stop([member.process.pid], scene.now + scene.rng.uniform(*_STOP_SECONDS))
    return member.name


def stop_worker(scene: Scene) -> str | None:
    member = scene.one(lambda m: m.role.actor.builds and bool(m.started()))
    workers = member.started() if member else []
    if member is None or not workers:
        return None
    member.stop([scene.rng.choice(workers)], scene.now + scene.rng.uniform(*_STOP_SECONDS))
    return member.name


def put_under(conditions: Collection[str]) -> Fault:
    """A fault that puts an actor under one of these conditions for some steps."""

    def fault(scene: Scene) -> str | None:
        member = scene.one(lambda m: not {*conditions}.isdisjoint(m.role.actor.conditions))
        if member is None:
            return None
        name = scene.rng.choice([c for c in member.role.actor.conditions if c in conditions])
        return name if member.put_under(Condition(name, 1 if member.role.actor.builds else _CONDITION_STEPS)) else None

    return fault


def flip_cache(scene: Scene) -> str | None:
    """A bit of some cache entries, as a disk would give it to the next reader: who holds the old file keeps it."""
    entries = sorted(p for p in scene.place.cache.glob("??/*") if not p.name.startswith("."))
    hit = [_replaced(e, e, scene.rng, flipped) for e in scene.rng.sample(entries, min(_ENTRIES, len(entries))) if e.exists()]
    return f"{len(hit)} entries" if hit else None


def flip_artifact(scene: Scene) -> str | None:
    return _damaged_copy(scene, flipped)


def truncate_artifact(scene: Scene) -> str | None:
    return _damaged_copy(scene, truncated)


def _damaged_copy(scene: Scene, damage: Damage) -> str | None:
    models = sorted(scene.place.models.glob("*.tw"))
    if not models:
        return None
    for old in sorted(scene.place.damaged.glob("*.tw"), key=lambda p: p.stat().st_mtime)[:-_MOST_DAMAGED]:
        old.unlink()
    model = scene.rng.choice(models)
    return str(_replaced(model, scene.place.damaged / f"{model.stem}.{scene.rng.randrange(2**31)}.tw", scene.rng, damage))


def _replaced(source: Path, target: Path, rng: random.Random, damage: Damage) -> Path:
    """Put a damaged copy of a file in place of another at once."""
    draft = target.parent.parent / f"{target.name}.draft"
    draft.write_bytes(damage(source.read_bytes(), rng))
    draft.replace(target)
    return target


FAULTS: MappingProxyType[str, Fault] = MappingProxyType({
    "kill an actor": kill_actor,
    "kill a worker": kill_worker,
    "stop an actor": stop_actor,
    "stop a worker": stop_worker,
    "fill the disk": put_under([FULL_DISK]),
    "move the clock": put_under(CLOCKS),
    "change floating-point modes": put_under(FLOATING_POINT),
    "flip a cache entry": flip_cache,
    "flip an artifact": flip_artifact,
    "truncate an artifact": truncate_artifact,
})
"""Each makes its fault if the scene has something for it, and says what was hit."""
