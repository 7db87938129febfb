"""Warp instructions: shuffles, votes, matches, reductions; divergence and reconvergence."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import findings, kernel, run

from tilewright.runtime.emulator import EmulatorError, KernelCheck

STORE = """
    mul.wide.u32 %rd10, %r0, 4;
    add.s64 %rd10, %rd{p}, %rd10;
    st.global.b32 [%rd10], {value};
"""


def store(value: str, pointer: int = 0) -> str:
    return STORE.format(p=pointer, value=value)


def lanes(body: str, threads: int = 64, **options: object) -> np.ndarray:
    return run(kernel(body), (), [((threads,), np.uint32)], block=(threads, 1, 1), **options)[0]


def shuffle(mode: str, amount: int, control: int) -> tuple[np.ndarray, np.ndarray]:
    value = f"add.u32 %r1, %r0, 100;\nshfl.sync.{mode}.b32 %r2|%p1, %r1, {amount}, {control}, -1;\n"
    return lanes(value + store("%r2")), lanes(value + "selp.b32 %r3, 1, 0, %p1;" + store("%r3"))


@pytest.mark.parametrize("width", [32, 16, 8])
@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
@pytest.mark.parametrize("amount", [0, 1, 3, 8, 17])
def test_shuffle(mode: str, amount: int, width: int) -> None:
    control = ((32 - width) << 8) | (0 if mode == "up" else 31)
    got, valid = shuffle(mode, amount, control)
    for thread in range(64):
        lane, low = thread % 32, thread % 32 // width * width
        high = low + width - 1
        source = {"idx": low + amount % width, "up": lane - amount, "down": lane + amount, "bfly": lane ^ amount}[mode]
        ok = source >= low if mode == "up" else source <= high
        assert valid[thread] == ok
        assert got[thread] == 100 + (thread - lane + source if ok else thread)


def test_votes_and_ballot() -> None:
    setup = "setp.lt.u32 %p1, %r0, 40;\n"
    assert lanes(setup + "vote.sync.ballot.b32 %r1, %p1, -1;" + store("%r1")).tolist() == [0xFFFFFFFF] * 32 + [0xFF] * 32
    for mode, wanted in [("all", [1] * 32 + [0] * 32), ("any", [1] * 64), ("uni", [1] * 32 + [0] * 32)]:
        got = lanes(setup + f"vote.sync.{mode}.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2;" + store("%r1"))
        assert got.tolist() == wanted


def test_match_and_reduction() -> None:
    got = lanes("and.b32 %r1, %r0, 3; match.any.sync.b32 %r2, %r1, -1;" + store("%r2"))
    assert got.tolist() == [0x11111111 << (t % 4) for t in range(64)]
    got = lanes("shr.u32 %r1, %r0, 5; match.all.sync.b32 %r2|%p1, %r1, -1; selp.b32 %r2, %r2, 0, %p1;" + store("%r2"))
    assert got.tolist() == [0xFFFFFFFF] * 64
    for op, wanted in [("add", [496] * 32 + [1520] * 32), ("min", [0] * 32 + [32] * 32), ("max", [31] * 32 + [63] * 32)]:
        assert lanes(f"redux.sync.{op}.u32 %r1, %r0, -1;" + store("%r1")).tolist() == wanted
    got = lanes("elect.sync %r1|%p1, -1; selp.b32 %r2, 1, 0, %p1;" + store("%r2"))
    assert np.flatnonzero(got).tolist() == [0, 32]


def test_masked_reduction_inside_a_branch() -> None:
    body = """
    mov.b32 %r1, 0;
    and.b32 %r2, %r0, 1;
    setp.eq.u32 %p1, %r2, 1;
    @%p1 bra SKIP;
    redux.sync.add.u32 %r1, %r0, 0x55555555;
SKIP:
    """
    got = lanes(body + store("%r1"))
    assert got.tolist() == [(240 if t < 32 else 752) if t % 2 == 0 else 0 for t in range(64)]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_lanes_that_loop_differently_meet_again(seed: int | None) -> None:
    body = """
    and.b32 %r5, %r0, 7;
    mov.b32 %r6, 0;
LOOP:
    add.u32 %r6, %r6, %r5;
    setp.eq.u32 %p1, %r5, 0;
    @%p1 bra OUT;
    sub.u32 %r5, %r5, 1;
    bra.uni LOOP;
OUT:
    shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
    """
    got = lanes(body + store("%r7"), seed=seed)
    assert got.tolist() == [(k := (t ^ 1) % 8) * (k + 1) // 2 for t in range(64)]


def test_code_placed_after_the_join_meets_at_the_shuffle() -> None:
    body = """
    mov.b32 %r1, 1;
    setp.lt.u32 %p1, %r0, 7;
    @%p1 bra FAR;
JOIN:
    shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
    """ + store("%r2") + """
    ret;
FAR:
    mov.b32 %r1, 5;
    bra JOIN;
    """  # fmt: skip
    assert lanes(body).tolist() == [5] * 32 + [1] * 32


def test_indexed_branch() -> None:
    body = """
    and.b32 %r1, %r0, 3;
    brx.idx %r1, T;
    T: .branchtargets A, B, C, B;
A:  mov.b32 %r2, 10; bra.uni END;
B:  mov.b32 %r2, 11; bra.uni END;
C:  mov.b32 %r2, 12;
END:
    """
    assert lanes(body + store("%r2")).tolist() == [[10, 11, 12, 11][t % 4] for t in range(64)]


def test_predicated_instructions_and_exit() -> None:
    body = "mov.b32 %r1, 1; setp.gt.u32 %p1, %r0, 9; @%p1 mov.b32 %r1, 2; @!%p1 add.u32 %r1, %r1, 10;" + store("%r1") + """
    setp.lt.u32 %p2, %r0, 5;
    @%p2 exit;
    mov.b32 %r1, 3;
    """ + store("%r1")  # fmt: skip
    assert lanes(body).tolist() == [11] * 5 + [3] * 59


def test_active_mask_and_special_registers() -> None:
    body = "setp.lt.u32 %p1, %r0, 8; mov.b32 %r1, 0; @%p1 activemask.b32 %r1;"
    assert lanes(body + store("%r1")).tolist() == [255] * 8 + [0] * 56
    body = "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mad.lo.u32 %r1, %r2, 1000, %r1; mov.u32 %r3, %lanemask_lt;"
    assert lanes(body + store("%r1")).tolist() == [t // 32 * 1000 + t % 32 for t in range(64)]
    assert lanes(body + store("%r3")).tolist() == [(1 << (t % 32)) - 1 for t in range(64)]


def test_a_shuffle_from_a_lane_outside_the_mask_is_found() -> None:
    text = "setp.lt.u32 %p1, %r0, 16; mov.b32 %r2, 0; @%p1 shfl.sync.idx.b32 %r2, %r0, {source}, 31, 0xFFFF;"
    found = findings(kernel(text.format(source=20)))
    assert [f.check for f in found] == [KernelCheck.WARP]
    assert "lane 20" in found[0].message and found[0].thread == (0, 0, 0)
    assert not findings(kernel(text.format(source=3)))


def test_a_shuffle_that_waits_for_ever_is_a_deadlock() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 16;
    @%p1 bra LOW;
    shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;
    bra.uni END;
LOW:
    shfl.sync.idx.b32 %r3, %r0, 0, 31, -1;
END:
    """
    with pytest.raises(EmulatorError, match=r"deadlock.*shfl.sync") as error:
        lanes(body)
    assert error.value.finding is not None and error.value.finding.check is KernelCheck.DEADLOCK
