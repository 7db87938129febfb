"""tools.bench's suite of real models: the table of operator groups, the cut, the systems, and measuring beside a neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.shape import Expr
from tools.bench.harness import report
from tools.bench.harness.compare import arguments
from tools.bench.harness.interleave import Team
from tools.bench.harness.neighbour import last_cache, neighbour, touching_half_the_cache
from tools.bench.harness.prepared import Prepared
from tools.bench.harness.records import Case, timed
from tools.bench.harness.worker import catalog, time_cold
from tools.bench.operator_spec import Input, Operator
from tools.bench.peers import OURS, Bound
from tools.bench.zoo import group_table, modules
from tools.bench.zoo.group_table import Group, Value, spread
from tools.bench.zoo.zoo_models import MODELS

DENSE = Group(
    "dense", {"D0": (1, 8)}, {"x0": "f32[D0, 2*D0, 16]"}, {"w0": "f32[8, 16] 0 0.2", "w1": "f32[8] 1 0.1 positive"},
    ("v0 = aten.reshape.default(x0, [{2*D0*D0}, 16])", "v1 = aten.linear.default(v0, w0, w1)", "v2 = aten.relu.default(v1)"),
    ("v2",), ("a",), ({"D0": 2}, {"D0": 5}),
)  # fmt: skip
LOOKUP = Group(
    "lookup", {"D0": (1, 8)}, {"x0": "i64[D0, 3] < 10", "x1": "f32[D0, 3, 4] 0 1"}, {"w0": "f32[10, 4] 0 1"},
    ("v0 = aten.embedding.default(w0, x0)", "v1 = aten.add.Tensor(v0, x1)", "v2 = aten.argmax.default(v1, -1)"),
    ("v1", "v2"), ("b",), ({"D0": 3},),
)  # fmt: skip


def test_values_are_read() -> None:
    dims = (Expr.dim("D0"), Expr.parse("max(D1, 2)"))
    assert Value.parse("i64[D0, max(D1, 2)] < 2*D0") == Value("i64", dims, Expr.parse("2*D0"))
    assert Value.parse("f32[8] 1 0.1 positive") == Value("f32", (Expr.of(8),), None, 1.0, 0.1, True)
    assert Value.parse("f32[]") == Value("f32", ())
    with pytest.raises(ValueError, match="is no value of a group"):
        Value.parse("f32 8")


def test_the_form_of_a_group_is_without_its_sizes() -> None:
    weights = {"w0": "f32[64, 32] 0 1", "w1": "f32[64] 0 1"}
    larger = Group("x", DENSE.dims, {"x0": "f32[D0, 2*D0, 32]"}, weights, DENSE.code, ("v2",))
    assert larger.form() == DENSE.form() != LOOKUP.form()

    def convolution(kernel: int) -> str:
        weights = {"w0": f"f32[8, 8, {kernel}, {kernel}] 0 1"}
        return Group("c", {}, {"x0": "f32[D0, 8, 9, 9]"}, weights, ("v0 = aten.conv2d.default(x0, w0)",), ("v0",)).form()

    assert convolution(3) != convolution(5)


def test_shapes_are_spread_over_the_ranges() -> None:
    points = spread({"B": (1, 8), "S": (1, 128)})
    assert len(points) == 6 and {p["B"] for p in points} >= {1, 8} and {p["S"] for p in points} >= {1, 128}
    assert {"B": 8, "S": 128} not in points
    assert len(spread({"B": (1, 6)})) == 6 and len(spread({"B": (2, 3)})) == 2


def test_the_table_and_the_models() -> None:
    found = catalog()
    groups = group_table.read()
    assert len(groups) >= 60 and len({g.name for g in groups}) == len(groups) and len(MODELS) == 20
    assert sum(len(g.points) == 6 for g in groups) >= 60
    for operator in [o for o in found.values() if o.kind == modules.KIND]:
        for shape in operator.points:
            assert all(operator.ranges[n][0] <= v <= operator.ranges[n][1] for n, v in shape.items()), operator.name
    subject = found[f"group_{groups[0].name}"]
    assert {n: a.shape for n, a in subject.arguments(subject.points[0]).items()}.keys() == groups[0].inputs.keys()


def test_the_suites_of_the_command_line() -> None:
    assert arguments("operators", ["--suite", "zoo"]).suite == modules.SUITE
    zoo = arguments("models", ["--suite", "zoo", "--neighbour", "hog"])
    assert (zoo.suite, zoo.peers, zoo.neighbour) == (modules.MODELS_SUITE, "eager,inductor,ort:module", "hog")
    assert arguments("models", []).peers == "numpy,onednn,ort,torch"


def test_the_verdict_names_what_is_too_slow() -> None:
    def case(name: str, size: int, ratio: float) -> Case:
        systems = {OURS: timed([1e-5], 0, 0), "eager": timed([ratio * 1e-5], 0, 0)}
        return Case("r", name, {"T": size}, 1, systems, families=["generic"])

    cases = [case("a", 1, 2.0), case("a", 2, 2.0), case("b", 1, 0.9), case("b", 2, 0.5)]
    rows = report.rows(cases)
    assert rows[1].families == ("generic",)
    mean, operators, points = report.verdict(rows, cases)
    assert mean == "- geomean of 2 operators: 1.158"
    assert operators == "- operators below 0.95: 1 of 2: b (threads 1) 0.67"
    assert points == "- points below 0.85: 1 of 4: b T=2 (threads 1) 0.50"


def test_the_last_cache(tmp_path: Path) -> None:
    for level, size in enumerate(("32K", "1024K", "3M", "")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(size)
    assert last_cache(tmp_path) == 3 << 20
    assert last_cache(tmp_path / "none") == 32 << 20
    assert touching_half_the_cache()() == last_cache() // 16


def test_cold_calls_are_each_after_a_disturbance() -> None:
    order: list[str] = []
    assert time_cold(lambda: order.append("call"), 0.0, lambda: order.append("cold")) > 0
    assert order == ["cold", "call"] * 3


def test_the_hog_runs_while_it_is_asked_for() -> None:
    with neighbour("hog") as processes:
        assert Path(f"/proc/{processes[0]}").exists()
    assert not Path(f"/proc/{processes[0]}").exists()
    with neighbour("cold") as processes:
        assert processes == []


def given(group: Group, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """A group as the only one of the table."""
    monkeypatch.setattr(modules, "table", lambda: {group.name: group})
    monkeypatch.setattr(modules, "groups", lambda: iter([modules.of_group(group)]))
    modules._module.cache_clear()
    return modules.of_group(group)


@pytest.mark.parametrize("group", [DENSE, LOOKUP], ids=lambda g: g.name)
def test_systems_agree(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager, ONNX Runtime and ours give what float64 gives, in order."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from tools.bench.operator_spec import relative_error
    from tools.bench.ours import Tilewright
    from tools.bench.zoo.ort_system import OrtModule
    from tools.bench.zoo.torch_systems import Eager

    operator = given(group, monkeypatch)
    systems: Sequence[Any] = (Eager(1), OrtModule(1), Tilewright(1))
    for system in systems:
        system.prepare(operator, {})
        for shape in operator.points:
            arguments = operator.arguments(shape)
            bound = system.bind(shape, arguments, np.empty(0))
            bound.call()
            wanted = modules.reference(operator, arguments)
            assert relative_error(bound.result(), wanted) < 2e-6, type(system).__name__
    assert systems[-1].families()


def test_an_integer_at_the_edge_of_two_is_what_the_types_of_the_module_say() -> None:
    pytest.importorskip("torch")
    operator = next(o for o in modules.layers() if o.name == "layer_cast_i8")
    below = np.float32(0.35)  # 20 times this is 6.99999988, in float32 7
    assert int(np.float64(below) * 20) == 6 and int(below * np.float32(20)) == 7
    assert modules.reference(operator, {"x0": np.array([[below, 0.5, -1.02]], np.float32)}).tolist() == [7, 10, -20]
    np.testing.assert_array_equal(modules._or_neighbour(np.array([3, 5, -4]), np.array([4, 9, -3])), [4, 5, -3])


def test_a_model_is_cut() -> None:
    """Padding goes with its convolution, pointwise with what makes its operand; equal groups stand once."""
    torch = pytest.importorskip("torch")
    from tools.bench.zoo.cut import Cut, state
    from tools.bench.zoo.exported import exported
    from tools.bench.zoo.group_module import module
    from tools.bench.zoo.make_groups import chosen, named, tried
    from tools.bench.zoo.program_groups import groups as groups_of
    from tools.bench.zoo.program_groups import whole as whole_of

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, 2), torch.nn.BatchNorm2d(8)
            self.down, self.up = torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.norm(self.conv(torch.nn.functional.pad(x, (0, 1, 0, 1)))))
            t = x.flatten(2).transpose(1, 2)
            return t + self.up(self.down(t))

    net = Net()
    dims = {"B": (1, 4), "H": (8, 32, 4)}
    program = exported({
        "model": net, "dims": dims, "dyn": ({0: "B", 2: "H"},), "example": {"B": 3, "H": 12},
        "inputs": lambda p: (torch.randn(p["B"], 3, p["H"], 16),),
    })  # fmt: skip
    groups = [g for g, _ in groups_of(Cut(program)) if g]
    calls = [[group_table.operator_of(line) for line in g.code if group_table.operator_of(line) not in group_table.VIEWS]
             for g in groups]
    assert calls == [["pad", "conv2d", "batch_norm", "relu"], ["linear"], ["linear", "add"]]
    assert groups[0].inputs == {"x0": "f32[D1, 3, 4*D0, 16]"} and groups[0].dims == {"D0": (1, 8), "D1": (1, 4)}
    assert all(tried(g) == (g, "") for g in groups)
    table = named(chosen([[("net", groups[1]), ("net", groups[1])], [("net", groups[2])]]))
    assert [(g.name, g.models) for g in table] == [("linear", ("net",)), ("linear_add", ("net",))]
    x = torch.randn(2, 3, 12, 16)
    cut = Cut(program)
    whole, names = whole_of(cut, "net")
    with torch.no_grad():
        assert torch.allclose(module(whole, {n: state(cut)[p] for n, p in names.items()})(x), net.eval()(x), atol=1e-5)


def test_models_with_batch_norms_keep_the_size_of_what_passes_through() -> None:
    torch = pytest.importorskip("torch")
    from tools.bench.zoo.zoo_wrappers import settled

    torch.manual_seed(0)
    pairs = [(torch.nn.Conv2d(n, 8, 3, bias=False), torch.nn.BatchNorm2d(8)) for n in (3, *[8] * 5)]
    net = torch.nn.Sequential(*(m for pair in pairs for m in pair))
    for convolution, _ in pairs:
        torch.nn.init.normal_(convolution.weight, std=0.01)
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert float(net.eval()(image).std()) < 1e-5
        assert 0.5 < float(settled(net, 32)(image).std()) < 2.0
    assert not any(m.training for m in net.modules())


def test_masks_of_transformers_are_exported_to_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences packed in one row, told apart by steps of their positions: torch.diff and a running sum of truth values."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from tools.bench.zoo.ort_system import OrtModule
    from tools.bench.zoo.zoo_models import Model

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any) -> Any:
            steps = torch.diff(ids, prepend=ids[:, :1] - 1, dim=-1)
            return torch.cumsum(steps != 1, -1) * 1.0

    points = ({"B": 1, "S": 5}, {"B": 3, "S": 9})
    model = Model({"ids": Input(("B", "S"), dtype="i64", below="4")}, {"B": (1, 4), "S": (2, 16)}, points, Net)
    monkeypatch.setattr(modules, "MODELS", {"packed": model})
    monkeypatch.setattr(modules, "groups", lambda: iter(()))
    monkeypatch.setattr(modules, "layers", lambda: iter(()))
    modules._module.cache_clear()
    (operator,) = modules.models()
    system = OrtModule(1)
    system.prepare(operator, {})
    for shape in points:
        arguments = operator.arguments(shape)
        assert np.array_equal(system.bind(shape, arguments, np.empty(0)).result(), modules.reference(operator, arguments))


def test_workers_measure_cold() -> None:
    """A worker with --cold answers, and its times are those of single calls."""
    pytest.importorskip("threadpoolctl")
    with Team(["numpy"], 1, cold=True) as team:
        team.prepare("bmm_nn")
        team.ask("numpy", do="bind", shape={"T": 2})
        assert team.ask("numpy", do="time", seconds=0.01)["seconds"] > 0


def test_what_was_prepared_is_loaded(tmp_path: Path) -> None:
    class Kept:
        """A system that says what it did; it has no other state."""

        def __init__(self) -> None:
            self.done: list[str] = []

        def version(self) -> str:
            return "1"

        def prepare(self, operator: Operator, constants: object) -> None:
            self.done.append(f"prepare {operator.name}")

        def bind(self, shape: object, arguments: object, output: object) -> Bound:
            raise AssertionError("nothing is bound here")

        def save(self, path: str) -> None:
            Path(path).write_text("made")

        def load(self, operator: Operator, path: str) -> None:
            self.done.append(f"load {operator.name}, {Path(path).read_text()}")

    operators = catalog()
    one, other = operators["dense_768x768"], operators["softmax"]
    system = Kept()
    for _ in range(2):
        for operator in (one, other):
            Prepared(tmp_path / "new", "numpy", 1).prepare(system, operator, {})
    names = [o.name for o in (one, other)]
    assert system.done == [*(f"prepare {n}" for n in names), *(f"load {n}, made" for n in names)]
    makers = [Prepared(tmp_path, name, threads) for name in ("numpy", OURS) for threads in (1, 2)]
    places = {maker.place(o) for maker in makers for o in (one, other)}
    assert len(places) == 8, "files of other systems, threads or operators are other files"
    log = tmp_path / "log"
    log.write_text("a")
    assert Prepared(tmp_path, OURS, 1, str(log)).place(one) not in places
