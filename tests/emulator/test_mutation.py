"""The emulator notices small mistakes in our kernels: a sample. `python -m tools.mutate` makes all mutants of all kernels."""

from __future__ import annotations

import pytest
from emulator import async_mutation
from emulator.mutants import KILLED, MutantOutcome, Subject, draw
from emulator.mutation import OPERATORS, SHRINK, Mutation, mutations, one_per_line
from emulator.subjects import subject as made

SAMPLE = ["simt any", "simt split", "rows softmax", "rows shared by blocks", "pointwise", "transpose", "gemv matrix",
          "mma few rows", "gpu_attention", "wgmma ping-pong", "wgmma square cluster"]
EVERY = {*OPERATORS, *async_mutation.OPERATORS, SHRINK}
TENSOR_CORES = ["mma few rows", "gpu_attention", "wgmma square cluster", "wgmma ping-pong"]


@pytest.fixture(scope="module")
def found() -> dict[str, Subject]:
    return {name: made(name) for name in SAMPLE}


def test_every_mistake_that_matters_is_noticed(found: dict[str, Subject]) -> None:
    drawn = draw(found, len(EVERY), seed=1)
    assert {m.operator for _, m in drawn} == EVERY
    verdicts = [(name, found[name].judge(mutation)) for name, mutation in drawn]
    assert [(n, v) for n, v in verdicts if v.outcome in (MutantOutcome.SURVIVED, MutantOutcome.REFUSED)] == []
    assert sum(v.outcome in KILLED for _, v in verdicts) > len(EVERY) // 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TENSOR_CORES)
def test_mistakes_of_tensor_cores_are_noticed(name: str, found: dict[str, Subject]) -> None:
    """In products, fragments, phases, fences, swizzles, descriptors, announced bytes and clusters."""
    subject = found[name]
    places: dict[str, list[Mutation]] = {}
    for m in async_mutation.mutations(subject.ptx):
        places.setdefault(m.operator, []).append(m)
    drawn = [listed[len(listed) // 2] for listed in places.values()]
    verdicts = [subject.judge(m) for m in drawn]
    assert [v for v in verdicts if v.outcome in (MutantOutcome.SURVIVED, MutantOutcome.REFUSED)] == []
    assert sum(v.outcome in KILLED for v in verdicts) > 0.8 * len(verdicts)


def test_instructions_of_several_lines_become_one() -> None:
    inline = "// begin inline asm\n\t{\nwgmma.x %r1;\n}\n// end inline asm"
    lines = one_per_line(f"{{\n\tmma.sync.aligned.m16n8k16\n\t\t{{%r1}},\n\t\t{{%r2}};\n{inline}\n}}").split("\n")
    assert lines[1] == "\tmma.sync.aligned.m16n8k16 {%r1}, {%r2};"
    assert "\twgmma.x %r1;" in lines
    assert [x for x in lines if x.startswith("}")] == ["}"]


def test_the_kernels_themselves_are_clean(found: dict[str, Subject]) -> None:
    for subject in found.values():
        trial = min(subject.trials, key=lambda t: t.budget)
        got, _ = subject.run(trial, subject.kernel, subject.ptx, seed=5)
        assert not subject._changed(trial, got)


def test_mutants_are_one_line_apart() -> None:
    ptx = "{\n\tbar.sync \t0;\n\t@%p1 bra $L;\n\tsetp.lt.s32 \t%p1, %r1, 7;\n}"
    made = list(mutations(ptx, 32))
    assert {m.operator for m in made} == {"drop-barrier", "drop-predicate", "invert-predicate", "move-bound", SHRINK}
    for m in made[:-1]:
        changed = [(a, b) for a, b in zip(ptx.split("\n"), m.apply(ptx).split("\n"), strict=True) if a != b]
        assert changed == [(m.before, m.after)]


def test_a_mutant_that_computes_the_same_is_told_from_one_that_does_not(found: dict[str, Subject]) -> None:
    subject = found["pointwise"]
    number, line = next((i, x) for i, x in enumerate(subject.ptx.split("\n"), 1) if "mov.u32" in x and "%tid.x" in x)
    target = line.split()[1].rstrip(",")
    same = Mutation("same", number, line, f"\tadd.u32 \t{target}, %tid.x, 0;")
    assert subject.judge(same).outcome in (MutantOutcome.INERT, MutantOutcome.UNCHANGED)
    assert subject.judge(Mutation("other", number, line, f"\tadd.u32 \t{target}, %tid.x, 1;")).outcome in KILLED
