"""The page of `tilewright report`: whole, self-contained, and readable at the widths of a phone and of a desk."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from search_surfaces import dense
from tuning_tables import CurveArm

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.cli.main import main
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.compilation.partitions import partitions_of
from tilewright.compiler.report.partition_section import partition_section
from tilewright.compiler.report.report_sources import (
    chosen_kernels,
    from_log,
    latency_over_time,
    regret_of_certificates,
    roofline,
    time_per_arm,
)
from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Split
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import StripSpan
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.database.slot_records import SlotRecord
from tilewright.search.task_scheduler.belief import EmceeSampler
from tilewright.search.task_scheduler.belief_pool import BeliefPool
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions, ModelTuner
from tilewright.search.task_scheduler.simulation import SimulatedClock

pytest.importorskip("plotly", reason="the extra `report` is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell", "chrome-headless-shell")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "tuning.jsonl"
    found, clock, x = TuningLog(path), SimulatedClock(), np.arange(40)
    arms = [
        CurveArm(f"<op{i}>/small", (1e-3 * (fall + (1 - fall) / (1 + x / 6))).tolist(), clock, ideal=1e-4)
        for i, fall in enumerate((0.9, 0.2))
    ]
    ModelTuner(
        arms,
        ModelBudget(seconds=32.0),
        clock,
        ModelTuneOptions(slot_seconds=4.0),
        found,
        BeliefPool(sampler=EmceeSampler(40, 20, 4)),
    ).run()
    work = dense()
    found.describe(work)
    for size in (1, 16, 128):
        for config, factor in (("host_matmul{mr=8 nv=3}", 1.0), ("host_matmul{mr=1 nv=4}", 0.5 if size == 1 else 2.0)):
            found.add(TuningRecord(work.key, work.name, "host_matmul", config, {"d0": size}, seconds=(factor * size * 1e-6,)))
    return path


def test_a_log_becomes_one_page_that_loads_nothing(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(log), "-o", str(page)]) == 0
    text = page.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Latency over time",
        "Time per arm",
        "Curves and beliefs",
        "Latency and kernel over the shape range",
        "Roofline",
        "Regret",
    ]
    assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=", text) and text.count("Plotly.newPlot") >= 6
    assert "width=device-width" in text and "<op0>" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "report.html" in capsys.readouterr().out


def test_figures_hold_what_the_log_says(log: Path) -> None:
    time, arms, curves, shapes, roof, regret = from_log(log)
    slots = TuningLog(log).slots
    assert list(time.figures[0].data[0].y) == pytest.approx([1e3 * v for v in (slots[0].before, *(s.after for s in slots))])
    assert sum(arms.figures[0].data[0].x) == pytest.approx(sum(s.seconds for s in slots))
    assert dict(curves.facts)["slots within the predicted 80 % interval"].endswith(f"of {len(slots)}")
    assert len(shapes.figures) == 1 and len(shapes.figures[0].data) == 3
    assert len(roof.figures[0].data) == 2
    assert regret.tables[0].rows[0][1:3] == ("3", "2") and regret.tables[0].rows[0][4] == "100.0%"
    assert roofline([], {}).figures


def test_latency_over_time_never_rises() -> None:
    def slot(number: int, arm: str, before: float, after: float) -> SlotRecord:
        return SlotRecord("run", number, arm, "ucb", 0, 4.0 * number, 4.0, ((number + 1, after),), 1e-4, before, after)

    slots = [slot(0, "a", 9e-3, 5e-3), slot(1, "b", 5e-3, 6e-3), slot(2, "a", 6e-3, 4e-3)]
    time, arms = latency_over_time(slots), time_per_arm(slots)
    assert list(time.figures[0].data[0].y) == pytest.approx([9.0, 5.0, 5.0, 4.0])
    assert dict(time.facts)["tuned"] == "4.000 ms" and dict(time.facts)["speed-up"] == "2.25x"
    assert {row[0]: row[2] for row in arms.tables[0].rows} == {"a": "5.000 ms", "b": "0.0 µs"}


def test_an_artifact_shows_kernels_and_regret() -> None:
    kernels = tuple(
        MicroKernel(f"k{i}", "key", "host_matmul", f"host_matmul{{mr={i}}}", (), ("1", "1", "1"), object="o") for i in (1, 8)
    )
    table = DispatchTable("key", "dense", ("d0",), kernels, Split("d0", 4, Leaf(0), Leaf(1)))
    found = chosen_kernels([table])
    assert set(found.figures[0].data[0].y) == {0, 1} and len(found.tables[0].rows) == 2
    certificate = Certificate("key", "cpu", 0.01, 0.04, 0.02, 0.05, 0.9, 0.5, 40, 3, ({"d0": 7},), (0.04,))
    assert regret_of_certificates([certificate], {"key": "dense"}).tables[0].rows[0][:3] == ("dense", "1.0%", "4.0%")


def test_a_model_shows_how_it_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exponential that is one kernel with the function it reads, and running sums."""
    g = ops.Graph()
    x = g.input("x", ["T", 64])
    y = ops.exp(ops.tanh(x))
    g.output(y, name="y")
    g.output(ops.cumsum(y, 0), name="s")
    tw.compile(g, {"T": (1, 64)}).save(tmp_path / "m.tw")
    assert main(["report", str(tmp_path / "m.tw"), "-o", str(tmp_path / "m.html")]) == 0
    assert "partition" in capsys.readouterr().out
    page = (tmp_path / "m.html").read_text()
    assert "without fusion" in page and "T = 64" in page and re.search("<th>operations</th>", page)
    program = tw.load(tmp_path / "m.tw").program
    section = partition_section(partitions_of(program.source, limits(full_target("host"), None)), program)
    ways = section.tables[-1].rows
    assert [row[0].partition(":")[0] for row in ways] == ["alone", "greedy", "gain", "cost"]
    assert int(ways[0][1]) > int(ways[-1][1])
    facts = dict(section.facts)
    assert facts["kernels"] == f"{ways[-1][1]} of {ways[0][1]} without fusion" and facts["by strips of rows"] == "0 calls"
    program = msgspec.structs.replace(program, strips=(StripSpan((0,), "T", 64, 1024, 8, 0.0125),))
    section = partition_section(partitions_of(program.source, limits(full_target("host"), None)), program)
    [row] = next(t for t in section.tables if t.columns[0] == "calls").rows
    assert row == ("0", program.tables[program.calls[0].table].name, "T", "64", "1024", "1.2%")
    assert dict(section.facts)["by strips of rows"] == "1 calls"


def test_an_empty_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["report", str(tmp_path / "empty.jsonl")]) == 1
    assert "neither slots nor measurements" in capsys.readouterr().err


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_draws_in_a_browser(log: Path, tmp_path: Path, width: int) -> None:
    browser = next((b for b in map(shutil.which, BROWSERS) if b), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    page = tmp_path / "report.html"
    assert main(["report", str(log), "-o", str(page)]) == 0
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},2000",
        "--virtual-time-budget=8000",
        "--dump-dom",
        page.as_uri(),
    ]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
    assert drawn.count('class="main-svg"') >= 6
