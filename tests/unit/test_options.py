"""CompileOptions refuses what it cannot mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import CompileOptions, Deterministic, OutOfRange, Precision
from tilewright.runtime.errors import OptionError
from tilewright.runtime.host import host_cpu
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import ShapeRange
from tilewright.runtime.target import Target


def test_texts_become_enums() -> None:
    options = CompileOptions(precision="bf16", deterministic="batch", out_of_range="fallback")
    assert options.precision is Precision.BF16
    assert options.deterministic is Deterministic.BATCH
    assert options.out_of_range is OutOfRange.FALLBACK


@pytest.mark.parametrize(("option", "value", "says"), [
    ("threads", 0, "integer >= 1"),
    ("threads", 1.5, "integer >= 1"),
    ("threads", True, "integer >= 1"),
    ("trials", -1, "integer >= 1"),
    ("max_kernels", 0, "integer >= 1"),
    ("seed", -1, "integer >= 0"),
    ("seconds", -1.0, "seconds >= 0"),
    ("seconds", float("nan"), "seconds >= 0"),
    ("max_regret", "5%", "fraction"),
    ("precision", "f8", "'f32', 'tf32', 'bf16', 'f16'"),
    ("deterministic", "always", "'shape', 'batch'"),
    ("out_of_range", "", "'error', 'fallback'"),
    ("log", 3, "the path of a file or folder"),
    ("prior", "yes", "True, False or the path of a folder"),
    ("winograd", 4, "True or False"),
    ("policy", "best", "'ucb', 'epsilon'"),
    ("until_regret", -0.1, "fraction >= 0"),
    ("until_regret", 0.1, "needs a policy"),
    ("traffic", {"B": 1}, "pairs"),
    ("traffic", [({"B": 1}, 0)], "weight > 0"),
    ("traffic", [({"B": "x"}, 1)], "pairs"),
    ("traffic", [3], "pairs"),
    ("graphs", "always", "'auto', 'on', 'off'"),
    ("graph_memory", "64X", "'64M' or '1G'"),
    ("graph_memory", -1, "number of bytes"),
    ("graph_memory", True, "number of bytes"),
])
def test_bad_value(option: str, value: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        CompileOptions(**{option: value})
    assert option in str(caught.value)


def test_traffic_names_each_dim_in_range() -> None:
    ranges = ShapeRange.of({"B": (1, 8), "S": (1, 512)})
    CompileOptions(traffic=[({"B": 1, "S": 57}, 0.2)]).check_traffic(ranges)
    with pytest.raises(OptionError, match=r"names dims \['B'\]"):
        CompileOptions(traffic=[({"B": 1}, 0.2)]).check_traffic(ranges)
    with pytest.raises(OptionError, match=r"S = 513 is outside its range 1\.\.512"):
        CompileOptions(traffic=[({"B": 1, "S": 513}, 0.2)]).check_traffic(ranges)


def test_options_are_values() -> None:
    one = CompileOptions(traffic=[({"B": 1}, 1)])
    assert one == CompileOptions(traffic=[({"B": 1}, 1.0)])
    assert hash(one) == hash(CompileOptions(traffic=[({"B": 1}, 1.0)]))


def test_threads_bound_the_cores_that_kernels_are_chosen_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cpu, "affinity", lambda: 4)
    host = Target.parse("host")
    found = [limits(host, threads) for threads in (None, 1, 3, 8)]
    assert [(x.cores, x.threads) for x in found if isinstance(x, HostLimits)] == [(4, 4), (4, 1), (4, 3), (4, 4)]
    one, three, four, eight = (Compilation("module {}", {}, host, CompileOptions(threads=n)).key() for n in (1, 3, 4, 8))
    assert four == eight and len({one, three, four}) == 3
    gpu = Target.parse("cuda:sm_80")
    assert limits(gpu, 1) == limits(gpu)


def test_a_loaded_model_calls_with_the_threads_it_was_compiled_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    g = ops.Graph()
    g.output(g.input("x", ["B", 8]) + 1)
    for threads in (1, None):
        fn = tw.compile(g, {"B": (1, 8)}, options={"threads": threads})
        fn.save(tmp_path / "model.tw")
        loaded = tw.load(tmp_path / "model.tw")
        assert loaded._caller.thread_count() == fn._caller.thread_count() >= 1
        assert threads is None or loaded._caller.thread_count() == threads
