"""cp.async: zero fill, groups, and the races and early reads that a missing wait or barrier makes."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import findings, kernel, run

from tilewright.runtime.emulator import EmulatorError, KernelCheck

SHARED = ".shared .align 16 .b8 buffer[4096];"
COPY = """
    mul.wide.u32 %rd10, %r0, 16; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10; add.s64 %rd12, %rd0, %rd10;
    {size}
    cp.async.cg.shared.global [%rd11], [%rd12], 16{count};
    cp.async.commit_group;
    {wait}
    xor.b32 %r1, %r0, {flip}; mul.wide.u32 %rd13, %r1, 16; add.s64 %rd13, %rd20, %rd13;
    ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd13];
    add.s64 %rd14, %rd1, %rd10; st.global.v4.b32 [%rd14], {{%r2, %r3, %r4, %r5}};
"""
WAIT = "cp.async.wait_group 0; bar.sync 0;"


def copy(wait: str = WAIT, size: str = "", count: str = "", flip: int = 63) -> str:
    return kernel(COPY.format(wait=wait, size=size, count=count, flip=flip), 2, shared=SHARED)


DATA = np.arange(256, dtype=np.uint32)
OUT = [((256,), np.uint32)]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_copy_and_wait(seed: int | None) -> None:
    got = run(copy(), [DATA], OUT, block=(64, 1, 1), seed=seed)[0]
    np.testing.assert_array_equal(got.reshape(64, 4), DATA.reshape(64, 4)[np.arange(64) ^ 63])
    got = run(copy(wait="cp.async.wait_all; bar.sync 0;"), [DATA], OUT, block=(64, 1, 1), seed=seed)[0]
    np.testing.assert_array_equal(got.reshape(64, 4), DATA.reshape(64, 4)[np.arange(64) ^ 63])


def test_source_size_fills_with_zeros_and_reads_no_more() -> None:
    size = "and.b32 %r9, %r0, 3; shl.b32 %r9, %r9, 2; setp.ge.u32 %p1, %r0, 60; selp.b32 %r9, 0, %r9, %p1;"
    got = run(copy(size=size, count=", %r9", flip=0), [DATA[:240]], OUT, block=(64, 1, 1))[0].reshape(64, 4)
    for thread in range(64):
        words = thread % 4 if thread < 60 else 0
        assert got[thread].tolist() == [4 * thread + i if i < words else 0 for i in range(4)]
    with pytest.raises(EmulatorError, match=r"out-of-bounds: .*cp.async.*thread \(60, 0, 0\)"):
        run(copy(), [DATA[:240]], OUT, block=(64, 1, 1))


def test_ignored_source() -> None:
    size = "setp.lt.u32 %p3, %r0, 32;"
    got = run(copy(size=size, count=", %p3", flip=0), [DATA], OUT, block=(64, 1, 1))[0].reshape(64, 4)
    assert not got[:32].any() and (got[32:] == DATA.reshape(64, 4)[32:]).all()


@pytest.mark.parametrize("wait", ["", "bar.sync 0;", "cp.async.wait_group 1; bar.sync 0;", "cp.async.wait_group 0;"])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_missing_wait_or_barrier_is_found(wait: str, seed: int | None) -> None:
    found = {f.check for f in findings(copy(wait=wait), [DATA], OUT, block=(64, 1, 1), seed=seed)}
    assert KernelCheck.RACE in found
    assert found <= {KernelCheck.RACE, KernelCheck.UNINITIALISED}


def test_own_copy_needs_a_wait_only() -> None:
    assert not findings(copy(wait="cp.async.wait_group 0;", flip=0), [DATA], OUT, block=(64, 1, 1))
    assert KernelCheck.RACE in {f.check for f in findings(copy(wait="", flip=0), [DATA], OUT, block=(64, 1, 1))}


def test_a_ring_of_stages_keeps_groups_in_order() -> None:
    body = """
    mul.wide.u32 %rd10, %r0, 16; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10; add.s64 %rd12, %rd0, %rd10;
    cp.async.cg.shared.global [%rd11], [%rd12], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%rd11+1024], [%rd12+1024], 16; cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.b32 %r2, [%rd11]; {extra}
    cp.async.wait_group 0;
    ld.shared.b32 %r3, [%rd11+1024]; add.u32 %r2, %r2, %r3;
    mul.wide.u32 %rd10, %r0, 4; add.s64 %rd14, %rd1, %rd10; st.global.b32 [%rd14], %r2;
    """
    data = np.arange(512, dtype=np.uint32)
    text = kernel(body.format(extra=""), 2, shared=SHARED)
    for seed in (None, 0, 3):
        got = run(text, [data], [((64,), np.uint32)], block=(64, 1, 1), seed=seed)[0]
        np.testing.assert_array_equal(got, data[::4][:64] + data[::4][64:])
    early = kernel(body.format(extra="ld.shared.b32 %r4, [%rd11+1024];"), 2, shared=SHARED)
    assert KernelCheck.RACE in {f.check for f in findings(early, [data], [((64,), np.uint32)], block=(64, 1, 1))}


def test_a_copy_over_what_others_still_read_is_a_race() -> None:
    body = """
    mul.wide.u32 %rd10, %r0, 16; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10; add.s64 %rd12, %rd0, %rd10;
    cp.async.cg.shared.global [%rd11], [%rd12], 16; cp.async.wait_all; bar.sync 0;
    xor.b32 %r1, %r0, 63; mul.wide.u32 %rd13, %r1, 16; add.s64 %rd13, %rd20, %rd13;
    ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd13];
    {sync} cp.async.cg.shared.global [%rd11], [%rd12+16], 16; cp.async.wait_all;
    """
    data = np.arange(260, dtype=np.uint32)
    assert not findings(kernel(body.format(sync="bar.sync 0;"), 1, shared=SHARED), [data], block=(64, 1, 1))
    found = findings(kernel(body.format(sync=""), 1, shared=SHARED), [data], block=(64, 1, 1))
    assert [f.check for f in found] == [KernelCheck.RACE] and "has read" in found[0].message


def test_sizes_and_alignment() -> None:
    with pytest.raises(EmulatorError, match="copies 16 bytes"):
        run(copy().replace("], 16", "], 8"), [DATA], OUT)
    found = findings(copy(size="add.s64 %rd12, %rd12, 4;"), [np.arange(260, dtype=np.uint32)], OUT, block=(64, 1, 1))
    assert KernelCheck.ALIGNMENT in {f.check for f in found}
