"""Partitions: every operation once, no cycle, the same results however a graph is cut; rules, refusals and what is predicted."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from unit.graph_models import ADD, EXP, START, SUM, R, T, W, X, assert_same, generic, matmul, model, run, workloads

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.linalg.clone import captured
from tilewright.passes.mlir import functions, ir, owner
from tilewright.passes.partition import plan as plans
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.plan import Plan, plan_of
from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule, register, rules_named, unregister
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pass_registry import passes_from_text
from tilewright.passes.spaces.host.generic import GenericConfig
from tilewright.passes.transforms.split_reductions import SplitReductions
from tilewright.runtime.errors import OptionError
from tilewright.runtime.target import Target

SQUARE = "%r = arith.mulf %a0, %a0 : f32\n    linalg.yield %r : f32"
SIBLINGS = generic("y", "%x", T, "%e", T, EXP, "#id, #id") + generic("s", "%x", T, "%f1", R, SUM, "#id, #row", "pr")

KEPT: list[ir.Module] = []


@dataclass(frozen=True)
class NoExponential(Rule):
    name: ClassVar[str] = "no-exponential"
    order: ClassVar[int] = 10

    def applies(self, a: Region, b: Region) -> bool:
        return b.has("math.exp")

    def joins(self, a: Region, b: Region) -> str | None:
        return "an exponential begins a kernel"


@pytest.fixture
def no_exponential() -> Iterator[Rule]:
    yield register(NoExponential())
    unregister(NoExponential.name)


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        yield
    KEPT.clear()


C = "tensor<8xf32>"
DOWN = f"""  %e2 = tensor.empty() : {C}
  %f2 = linalg.fill ins(%zero : f32) outs(%e2 : {C}) -> {C}
"""


def parsed(text: str) -> ir.Operation:
    """The function of a module that lives as long as the test."""
    KEPT.append(ir.Module.parse(text))
    return next(functions(KEPT[-1]))


def planned(text: str, **options: object) -> Plan:
    return Fuse(**options).plan(parsed(text))  # type: ignore[arg-type]


def sizes(plan: Plan) -> list[int]:
    return sorted(len(r.ops) for r in plan.partition.regions())


def random_model(seed: int, columns: bool = False) -> str:
    """A graph of elementwise operations, sums along rows and products over earlier values, some of them results. columns: and of
    sums down the rows."""
    chance = random.Random(seed)
    values, rows, lines = ["%x"], [], []
    down = ["%f2"]
    for n in range(chance.randint(4, 14)):
        kind, a, b = chance.choice("eeaassbm" + "ccd" * columns), chance.choice(values), chance.choice(values)
        if kind == "e":
            lines.append(generic(f"v{n}", a, T, "%e", T, SQUARE, "#id, #id"))
        elif kind == "a":
            lines.append(generic(f"v{n}", f"{a}, {b}", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"))
        elif kind == "s":
            lines.append(generic(f"s{n}", a, T, "%f1", R, SUM, "#id, #row", "pr"))
        elif kind == "b":
            r = chance.choice(rows) if rows else None
            lines.append(generic(f"v{n}", f"{a}, {r}" if r else f"{a}, {a}", f"{T}, {R}" if r else f"{T}, {T}", "%e", T, ADD,
                                 "#id, #row, #id" if r else "#id, #id, #id"))
        elif kind == "c":
            lines.append(generic(f"q{n}", a, T, "%f2", C, SUM, "#id, #col", "rp"))
        elif kind == "d":
            lines.append(generic(f"v{n}", f"{a}, {chance.choice(down)}", f"{T}, {C}", "%e", T, ADD, "#id, #col, #id"))
        else:
            lines.append(matmul(f"v{n}", a))
        into, name = {"s": (rows, "s"), "c": (down, "q")}.get(kind, (values, "v"))
        into.append(f"%{name}{n}")
    more = chance.sample(values[1:-1], min(2, len(values) - 2)) if len(values) > 2 else []
    results = [(values[-1], T), *((r, R) for r in rows[-1:]), *((v, T) for v in more), *((c, C) for c in down[1:][-2:])]
    named = ", ".join(v for v, _ in results)
    return model([X, W], "".join(lines), named, ", ".join(t for _, t in results), START + (DOWN if columns else ""))


def assert_partition(plan: Plan) -> None:
    """Each operation that computes is in one region, and regions do not wait for each other."""
    partition = plan.partition
    members = [op for region in partition.regions() for op in region.ops]
    assert sorted(map(partition.graph.order.__getitem__, members)) == sorted(
        n for op, n in partition.graph.order.items() if partition.graph.computes(op))
    of = {op: partition.region_of.get(op, op) for op in partition.graph.order}
    done: set[object] = set()

    def visit(node: object, path: tuple[object, ...] = ()) -> None:
        assert node not in path, "regions that wait for each other"
        if node not in done:
            for op in node.ops if isinstance(node, Region) else [node]:
                for source in (of[p] for v in captured(op) if (p := owner(v)) is not None):
                    if source is not node:
                        visit(source, (*path, node))
            done.add(node)

    for node in of.values():
        visit(node)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_however_a_graph_is_cut_its_results_are_the_same(seed: int) -> None:
    assert_right(seed, {"B": 3})


@pytest.mark.parametrize("seed", range(4))
def test_however_sums_down_the_rows_are_cut_their_results_are_the_same(seed: int) -> None:
    assert_right(seed, {"B": 5}, columns=True)


def assert_right(seed: int, *shapes: dict[str, int], columns: bool = False) -> None:
    """A random graph gives what it gives before fusion, as it is taken, by gain, and by gain with random cuts; with sums down the
    rows, done in parts of two, also where each call is a launch. A sweep of many: `python -m tools.bench cuts --random 500`."""
    parts = SplitReductions(elements=16, rows=2, parts=1 << 20, columns=8) if columns else None
    passes, chance = graph_passes(parts=parts), random.Random(seed)
    at = next(n for n, p in enumerate(passes) if p.name == "fuse")
    text = run(random_model(seed, columns), passes[:at])
    count = len(planned(text, epilogues=False).partition.graph.order)
    cuts = tuple(chance.randrange(count) for _ in range(2 * chance.randint(1, 6)))
    apart = Fuse(together=False, partition=chance.choice(("cost", "gain")))
    for fuse in (Fuse(), Fuse(partition="gain"), Fuse(partition="gain", apart=cuts), *([apart] if columns else [])):
        assert_partition(fuse.plan(parsed(text)))
        assert_same(text, run(text, [fuse, *passes[at + 1 :]]), *shapes)


def test_the_plan_costs_no_more_than_program_order() -> None:
    for seed in range(12):
        text = random_model(seed)
        usual, best = planned(text, partition="greedy").cost, planned(text).cost
        assert best.launches <= usual.launches and sum(best.seconds) <= sum(usual.seconds)


def test_regions_that_read_one_tensor_are_one() -> None:
    text = model([X], SIBLINGS, "%y, %s", f"{T}, {R}")
    together, usual = planned(text), planned(text, partition="greedy")
    assert (sizes(together), sizes(usual)) == ([2], [1, 1])
    assert together.way == "gain" and together.cost.bytes[0] < usual.cost.bytes[0]
    assert_same(text, run(text, graph_passes()), {"B": 3}, {"B": 1})


def test_what_would_have_to_be_kept_stays_apart() -> None:
    """One reader of x waits for a product: what the other gives would live until then."""
    body = (SIBLINGS + matmul("m", "%y") + generic("t", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
            + generic("z", "%x, %t", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id"))
    plan = planned(model([X, W], body, "%z, %s", f"{T}, {R}"), partition="gain")
    assert "same-point" in [r.rule for r in plan.partition.refusals]


def scalar(name: str, inputs: str, body: str) -> str:
    """An operation on single values."""
    maps = ", ".join(["affine_map<() -> ()>"] * (inputs.count("%") + 1))
    types = ", ".join(["tensor<f32>"] * inputs.count("%"))
    return generic(name, inputs, types, "%z0", "tensor<f32>", body, maps, "")


def test_sums_of_single_values_let_reductions_run_side_by_side() -> None:
    """Norms of many tensors: their sum is one region, and a reduction joins what follows from it alone."""
    start = (START + "  %e0 = tensor.empty() : tensor<f32>\n"
             + "  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<f32>) -> tensor<f32>\n")
    names, wide = [f"%x{n}" for n in range(70)], [T.replace("8", str(n + 9)) for n in range(70)]
    body, last = "", ""
    for n, (name, kind) in enumerate(zip(names, wide, strict=True)):
        body += generic(f"s{n}", name, kind, "%z0", "tensor<f32>", SUM, "#id, affine_map<(d0, d1) -> ()>", "rr")
        body += scalar(f"t{n}", f"%s{n}, {last}" if last else f"%s{n}", ADD if last else SQUARE)
        last = f"%t{n}"
    arguments = [X, *(X.replace("8", str(n + 9)).replace("%x", name) for n, name in enumerate(names))]
    text = model(arguments, body, last, "tensor<f32>", start)
    for way in ("greedy", "gain"):
        plan = planned(text, partition=way)
        assert sizes(plan)[:69] == [1] * 69 and sizes(plan)[-1] >= 69 and len(sizes(plan)) <= 71
        assert {r.rule for r in plan.partition.refusals} <= {"waits", "largest"}
        assert_partition(plan)
    workload = max(workloads(run(text, graph_passes())).values(), key=lambda w: len(w.inputs))
    assert LocalBuilder(Target.parse("host")).build([(workload, GenericConfig(lanes=8))])[0].error == ""


def test_operations_that_are_to_stay_apart_do() -> None:
    text = model([X], generic("y", "%x", T, "%e", T, EXP, "#id, #id") + generic("z", "%y", T, "%e", T, EXP, "#id, #id"), "%z", T)
    order = planned(text).partition.graph.order
    pair = [n for op, n in order.items() if op.name == "linalg.generic"]
    plan = planned(text, apart=tuple(pair))
    assert sizes(planned(text)) == [2] and sizes(plan) == [1, 1]
    assert [r.rule for r in plan.partition.refusals] == ["apart"] and plan.cuts == {tuple(pair): "asked for"}


def test_a_region_that_is_refused_is_cut_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted refusal of regions of more than two operations: the last one leaves, and its reason is kept."""
    body = SIBLINGS + generic("z", "%y, %s", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
    text = model([X], body, "%z", T)
    assert sizes(planned(text)) == [3]

    def refused(region: Region, graph: Graph) -> str | None:
        return "too many" if region.kind is OpKind.REDUCTION and len(region.ops) > 2 else None

    monkeypatch.setattr(plans, "_refused", refused)
    plan = planned(text)
    assert max(sizes(plan)) == 2 and set(plan.cuts.values()) == {"too many"}
    assert_partition(plan)
    assert_same(text, run(text, graph_passes()), {"B": 3})


def test_all_regions_that_are_refused_are_cut_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pairs of operations behind products are refused: planned once for all of them, and asked about once each."""
    body, last, asked, made = "", "%x", list[tuple[int, ...]](), list[str]()
    for n in range(8):
        body += matmul(f"m{n}", last) + generic(f"s{n}", f"%m{n}", T, "%f1", R, SUM, "#id, #row", "pr")
        body += generic(f"y{n}", f"%m{n}, %s{n}", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id")
        last = f"%y{n}"
    usual = plans._plan

    def refused(region: Region, graph: Graph) -> str | None:
        asked.append(tuple(graph.order[op] for op in region.ops))
        return "two" if region.kind is OpKind.REDUCTION else None

    monkeypatch.setattr(plans, "_refused", refused)
    monkeypatch.setattr(plans, "_plan", lambda *given: made.append("again") or usual(*given))
    plan = planned(model([X, W], body, last, T))
    assert set(sizes(plan)) == {1} and len(made) == 2 and len(plan.cuts) == 8 and len(asked) == len(set(asked))


def test_a_program_over_rows_is_of_its_own_operations() -> None:
    """Reductions before the region do not count: its sweeps are those of its function by itself."""
    body = (generic("s", "%x", T, "%f1", R, SUM, "#id, #row", "pr")
            + generic("y", "%x, %s", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id") + matmul("m", "%y")
            + generic("t", "%m", T, "%f1", R, SUM, "#id, #row", "pr")
            + generic("z", "%m, %t", f"{T}, {R}", "%e", T, ADD, "#id, #row, #id"))
    plan = planned(model([X, W], body, "%z", T))
    rows = [r for r in plan.partition.regions() if r.kind is OpKind.REDUCTION]
    programs = [RowProgram(r.ops, [r.ops[-1].results[0]], plan.partition.graph.shapes) for r in rows]
    assert [len(p.sweeps) for p in programs] == [2, 2] and all(s.walks for p in programs for s in p.sweeps)


@pytest.mark.parametrize(("rules", "expected"), [
    (("rows", "epilogue", "elements"), [1, 2]), (("elements",), [1, 1, 1]), (("epilogue",), [1, 2]), (("rows",), [1, 2])])
def test_rules_that_are_not_named_join_nothing(rules: Sequence[str], expected: list[int]) -> None:
    body = (matmul("m", "%x") + generic("y", "%m", T, "%e", T, EXP, "#id, #id")
            + generic("s", "%y", T, "%f1", R, SUM, "#id, #row", "pr"))
    plan = planned(model([X, W], body, "%y, %s", f"{T}, {R}"), partition="greedy", rules=tuple(rules))
    if "epilogue" not in rules:
        assert "rules" in [r.rule for r in plan.partition.refusals]
    assert_partition(plan)
    assert sizes(plan) == expected


def test_a_rule_of_the_user_decides_before_the_compilers(no_exponential: Rule) -> None:
    text = model([X, W], matmul("m", "%x") + generic("y", "%m", T, "%e", T, EXP, "#id, #id"), "%y", T)
    plan = planned(text)
    assert sizes(plan) == [1, 1]
    assert [(r.rule, r.reason) for r in plan.partition.refusals] == [("no-exponential", "an exponential begins a kernel")]
    with pytest.raises(OptionError, match="there is a rule 'no-exponential' already, NoExponential"):
        register(NoExponential())


def test_a_rule_cannot_make_regions_wait_for_each_other() -> None:
    @dataclass(frozen=True)
    class Everything(Rule):
        name: ClassVar[str] = "everything"

        def applies(self, a: Region, b: Region) -> bool:
            return True

        def joins(self, a: Region, b: Region) -> str | None:
            return None

    body = (generic("y", "%x", T, "%e", T, EXP, "#id, #id") + matmul("m", "%y")
            + generic("z", "%y, %m", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id"))
    register(Everything())
    try:
        plan = planned(model([X, W], body, "%z", T), partition="gain")
    finally:
        unregister("everything")
    assert_partition(plan)
    assert {"no-cycle", "one-map"} & {r.rule for r in plan.partition.refusals}


@pytest.mark.parametrize(("work", "message"), [
    (lambda: passes_from_text("fuse{rules=elements,nothing}"),
     "there is no rule 'nothing'; the rules are elements, product-rows, epilogue"),
    (lambda: passes_from_text("fuse{partition=best}"), "partition='best'; wanted one of cost, gain, greedy"),
    (lambda: passes_from_text("fuse{apart=1,2,3}"), "apart=1,2,3 has 3 numbers; wanted pairs"),
    (lambda: planned(model([X], SIBLINGS, "%y", T), apart=(0, 99)), "apart names operation 99; the function has"),
    (lambda: register(3), "3 is no rule"),  # type: ignore[arg-type]
    (lambda: register(Rule()), "Rule has the name ''; wanted letters"),
    (lambda: unregister("rows"), "the rule 'rows' is one of the compiler's"),
    (lambda: unregister("nothing"), "the rule 'nothing' was not registered")])
def test_bad_options_are_named(work: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        work()  # type: ignore[operator]


def test_plans_of_one_graph_share_what_is_known_of_it() -> None:
    graph = Graph(parsed(random_model(1)))
    first, second = (plan_of(graph, rules_named(), "gain") for _ in range(2))
    assert [[graph.order[o] for o in r.ops] for r in first.partition.regions()] == [
        [graph.order[o] for o in r.ops] for r in second.partition.regions()]
