"""Forged and damaged artifacts (tools/forge): refused, or of no effect; never a crash, a wrong result or a raw error."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import tilewright as tw
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.program import SCHEMA, Program
from tilewright.runtime.program.seal import stored_program
from tools.forge.attack import CRASH, HANG, Victim, outcomes, victims
from tools.forge.cache_flips import REBUILT, flip_bits
from tools.forge.forgery import Forged, Parts, forgeries, mutants
from tools.forge.victim import HARMLESS, RAW, REFUSED, WRONG

STOOD = {HARMLESS, REFUSED}


@pytest.fixture(scope="module")
def attacked() -> list[Victim]:
    return victims()


def told(victim: Victim, forged: list[Forged]) -> Counter[str]:
    found = list(outcomes(victim, forged))
    assert {o.kind for o in found} <= STOOD, [o for o in found if o.kind in (CRASH, HANG, RAW, WRONG)]
    return Counter(o.kind for o in found)


def test_forgeries_with_right_hashes(attacked: list[Victim]) -> None:
    for number, victim in enumerate(attacked):
        forged = list(forgeries(victim.data, 30, random.Random(number)))
        assert told(victim, forged)[REFUSED] >= 20


def test_mutants(attacked: list[Victim]) -> None:
    for number, victim in enumerate(attacked):
        found = told(victim, [*mutants(victim.data, 30, random.Random(number)), Forged(victim.data, "nothing")])
        assert found[REFUSED] and found[HARMLESS]


def test_a_program_that_was_changed_is_told(attacked: list[Victim], tmp_path: Path) -> None:
    """One extent of a result less than its code writes: a call would write beyond it."""
    parts = Parts.of(attacked[0].data)
    name = parts.manifest["groups"][0]["program"]
    program = json.loads(parts.sections[name])
    program["outputs"][0]["dims"][1] = "1"
    path = tmp_path / "model.tw"
    path.write_bytes(Parts(parts.head, parts.manifest, {**parts.sections, name: json.dumps(program).encode()}).joined())
    with pytest.raises(ArtifactError, match="program/0 is not what its host code was compiled for"):
        tw.load(path)
    path.write_bytes(parts.joined())
    tw.load(path, verify="full")


def test_a_program_is_stored_as_it_was_read(attacked: list[Victim]) -> None:
    """Its seal is of these bytes, so what is loaded and saved again has to have the same."""
    for victim in attacked:
        parts = Parts.of(victim.data)
        stored = parts.sections[parts.manifest["groups"][0]["program"]]
        assert stored_program(msgspec.json.decode(stored, type=Program)) == stored


@pytest.mark.parametrize(("field", "value", "says"), [
    ("groups", [], "it holds no program"),
    ("groups", [[]], "its manifest cannot be read"),
    ("sections", [], "wanted .* bytes, as its sections and signatures say"),
    ("schema", "three", "its manifest cannot be read"),
    ("schema", 3, f"its header says format {SCHEMA} and its manifest format 3"),
])  # fmt: skip
def test_manifests_that_lie(attacked: list[Victim], tmp_path: Path, field: str, value: object, says: str) -> None:
    parts = Parts.of(attacked[1].data)
    (tmp_path / "model.tw").write_bytes(parts.joined({**parts.manifest, field: value}))
    with pytest.raises(ArtifactError, match=says):
        tw.load(tmp_path / "model.tw")


def test_flipped_bits_in_the_cache_are_made_anew(tmp_path: Path) -> None:
    assert flip_bits(tmp_path, 8, random.Random(0)) == {REBUILT: 8}


def test_every_bit_of_a_model_is_looked_at_in_full(attacked: list[Victim], tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "model.tw"
    for _ in range(30):
        data = bytearray(attacked[1].data)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(ArtifactError):
            tw.load(path, verify="full")
