"""The bench of products with weights in few bits: its cases, and the instructions that it counts."""

from __future__ import annotations

import platform
import shutil
import timeit

import numpy as np
import pytest

from tools.bench.codes import main, parser, systems
from tools.bench.codes_systems import Case, ours
from tools.bench.instructions import clock, cost_of, counted, reader

X86 = pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="x86-64 and objdump wanted")


def test_formats() -> None:
    assert Case.read("4g32", (64, 32), 0) == Case(64, 32, 4, 32)
    assert Case.read("4g32", (64, 32), 0).bytes == 64 * 32 // 2 + 4 * 32 * 2
    assert Case.read("4g32h", (64, 32), 0).bytes == 64 * 32 // 2 + 2 * 32 * 2
    assert Case.read("p256x2", (64, 32), 0) == Case(64, 32, 0, 256, books=2)
    assert Case.read("p16", (1024, 1024), 1).weights == 8


def test_ports() -> None:
    """Of 512 bits: two vector instructions a cycle, one shuffle, one shift, two loads; moves from memory are loads alone."""
    count = cost_of({"0 vfmadd231ps (%rax),%zmm1,%zmm2": 8, "1 vpermb %zmm1,%zmm2,%zmm3": 6, "2 vpsrld $0x4,%zmm1,%zmm2": 2,
                     "3 vmovdqu64 (%rax),%zmm1": 4, "4 vmovups %zmm1,(%rax)": 3, "5 add $0x1,%rax": 10})
    assert count.instructions == 33
    assert count.cycles["vectors"] == 8 and count.cycles["shuffles"] == 6 and count.cycles["shifts"] == 2
    assert count.cycles["loads of 512 bits"] == 6 and count.cycles["stores of 512 bits"] == 3
    assert count.bound == ("vectors", 8)
    count = cost_of({"0 vpermi2b %zmm1,%zmm2,%zmm3": 4, "1 vptestnmb %zmm1,%zmm2,%k1": 3, "2 vpmovb2m %zmm1,%k2": 2})
    assert count.cycles["shuffles"] == 11 and count.cycles["vectors"] == 8.5 and count.cycles["shifts"] == 2
    assert count.bound == ("shuffles", 11)


@X86
def test_a_call_is_counted() -> None:
    """Twice the columns take about twice the instructions; the clock is one of a processor."""
    x = np.ones((1, 512), np.float32)
    counts = [counted(lambda call=call: call(x)) for call in (ours(Case(512, n, 4, 32), 1, 1) for n in (192, 384))]
    assert 1.8 < counts[1].instructions / counts[0].instructions < 2.2
    assert sum(n for name, n in counts[0].mnemonics.items() if "fmadd" in name) > 0
    assert 1e8 < clock() < 1e10


@X86
def test_reading_takes_time() -> None:
    """More than a line a cycle is read by no core; eight times as much takes longer."""
    small, large = (min(timeit.repeat(reader(size), number=20, repeat=5)) / 20 for size in (1 << 18, 1 << 21))
    assert large > 2 * small and (1 << 21) / large < 1e12


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--sizes", "64x64", "--rows", "1,2", "--formats", "4g32", "--ring", "0", "--seconds", "0", "--peers", "no"]
    assert main(given) == 0
    found = capsys.readouterr().out.splitlines()
    assert len(found) == 2 * 3 and sum("ours, rows of int8" in line for line in found) == 2


def test_systems() -> None:
    """Pools have rows of bits; peers the formats that they know."""
    found = systems(parser().parse_args(["--formats", "2g128,4g32h,p64", "--levels", "4,0", "--llama", "folder"]))
    assert [s.options["activations"] for s in found if s.format == "p64" and s.options] == ["8", "4"]
    peers = {(s.name, s.format) for s in found if s.by != "ours"}
    assert peers == {("onnxruntime", "32"), ("onnxruntime level 4", "2g128"), ("onnxruntime level 0", "2g128"),
                     ("onnxruntime tables", "2g128"), ("torch bytes", "8g32"), ("llama.cpp Q4_0", "4g32h")}
    assert next(s for s in found if s.by == "llama").options == {"libraries": ["folder", "haswell"]}
