"""Block barriers, shared-memory races, and kernels that do not end."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import findings, kernel, run

from tilewright.runtime.emulator import EmulatorError, KernelCheck

SHARED = ".shared .align 16 .b8 buffer[1024];"
REVERSE = """
    mul.wide.u32 %rd10, %r0, 4; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10;
    st.shared.b32 [%rd11], %r0;
    {sync}
    xor.b32 %r1, %r0, {flip}; mul.wide.u32 %rd12, %r1, 4; add.s64 %rd12, %rd20, %rd12; ld.shared.b32 %r2, [%rd12];
    add.s64 %rd13, %rd0, %rd10; st.global.b32 [%rd13], %r2;
"""


def reverse(sync: str, flip: int) -> str:
    return kernel(REVERSE.format(sync=sync, flip=flip), shared=SHARED)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("threads", [128, 100])
def test_a_barrier_orders_the_block(seed: int | None, threads: int) -> None:
    flip = 127 if threads == 128 else 3
    got = run(reverse("bar.sync 0;", flip), (), [((threads,), np.uint32)], block=(threads, 1, 1), seed=seed)[0]
    np.testing.assert_array_equal(got, np.arange(threads) ^ flip)


def test_a_missing_barrier_is_a_race() -> None:
    out = [((128,), np.uint32)]
    found = findings(reverse("", 127), (), out, block=(128, 1, 1))
    assert [f.check for f in found] == [KernelCheck.RACE]
    assert found[0].site.text.startswith("xor.b32") and found[0].thread == (0, 0, 0)
    assert "thread (127, 0, 0) has written" in found[0].message
    assert not findings(reverse("bar.sync 0;", 127), (), out, block=(128, 1, 1))


def test_a_warp_barrier_orders_the_warp_only() -> None:
    out = [((64,), np.uint32)]
    assert not findings(reverse("bar.warp.sync -1;", 31), (), out, block=(64, 1, 1))
    assert [f.check for f in findings(reverse("bar.warp.sync -1;", 32), (), out, block=(64, 1, 1))] == [KernelCheck.RACE]
    assert [f.check for f in findings(reverse("", 1), (), out, block=(64, 1, 1))] == [KernelCheck.RACE]
    assert not findings(reverse("", 0), (), out, block=(64, 1, 1))


def test_writes_race_with_earlier_reads_and_writes() -> None:
    start = "mul.wide.u32 %rd10, %r0, 4; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10;"
    start += "st.shared.b32 [%rd11], %r0; bar.sync 0;"
    read_then_write = start + "xor.b32 %r1, %r0, 63; mul.wide.u32 %rd12, %r1, 4; add.s64 %rd12, %rd20, %rd12;" + """
    ld.shared.b32 %r2, [%rd12]; {sync} st.shared.b32 [%rd11], %r2;
    """  # fmt: skip
    found = findings(kernel(read_then_write.format(sync=""), shared=SHARED), block=(64, 1, 1))
    assert [f.check for f in found] == [KernelCheck.RACE] and "has read" in found[0].message
    assert not findings(kernel(read_then_write.format(sync="bar.sync 0;"), shared=SHARED), block=(64, 1, 1))
    same_cell = kernel("{p} st.shared.b32 [buffer], %r0;", shared=SHARED)
    found = findings(same_cell.replace("{p}", ""), block=(64, 1, 1))
    assert [f.check for f in found] == [KernelCheck.RACE]
    assert not findings(same_cell.replace("{p}", "setp.eq.u32 %p1, %r0, 9; @%p1"), block=(64, 1, 1))


def test_bytes_of_one_word_are_tracked_apart() -> None:
    body = "mov.b16 %rs1, 7; "
    body += "cvt.u64.u32 %rd10, %r0; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10; st.shared.b8 [%rd11{o}], %rs1;"
    assert not findings(kernel(body.format(o=""), shared=SHARED), block=(64, 1, 1))
    wide = body.format(o="") + "add.s64 %rd12, %rd20, 128; setp.eq.u32 %p1, %r0, 5; @%p1 ld.shared.b32 %r5, [buffer+32];"
    assert [f.check for f in findings(kernel(wide, shared=SHARED), block=(64, 1, 1))] == [KernelCheck.RACE]


def test_atomics_do_not_race_with_each_other() -> None:
    body = """
    setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.b32 [buffer], 0; bar.sync 0;
    red.shared.add.u32 [buffer], 1; {sync} ld.shared.b32 %r1, [buffer];
    """
    assert not findings(kernel(body.format(sync="bar.sync 0;"), shared=SHARED), block=(64, 1, 1))
    assert KernelCheck.RACE in [f.check for f in findings(kernel(body.format(sync=""), shared=SHARED), block=(64, 1, 1))]


def test_named_barriers_hand_data_over() -> None:
    body = """
    mul.wide.u32 %rd10, %r0, 4; mov.b64 %rd20, buffer; add.s64 %rd11, %rd20, %rd10;
    setp.ge.u32 %p1, %r0, 64;
    @%p1 bra CONSUMER;
    st.shared.b32 [%rd11], %r0;
    {arrive}
    bra.uni END;
CONSUMER:
    bar.sync 1, 128;
    ld.shared.b32 %r2, [%rd11+-256];
    add.s64 %rd13, %rd0, %rd10; st.global.b32 [%rd13+-256], %r2;
END:
    """
    for seed in (None, 0, 5):
        text = kernel(body.format(arrive="bar.arrive 1, 128;"), shared=SHARED)
        got = run(text, (), [((64,), np.uint32)], block=(128, 1, 1), seed=seed)[0]
        np.testing.assert_array_equal(got, np.arange(64))
    early = body.format(arrive="").replace("st.shared.b32", "bar.arrive 1, 128; st.shared.b32")
    for seed in (None, 0):
        found = findings(kernel(early, shared=SHARED), (), block=(128, 1, 1), seed=seed)
        assert KernelCheck.RACE in [f.check for f in found]


def test_barrier_reductions() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 10; barrier.cta.red.popc.u32 %r1, 0, %p1; bar.red.or.pred %p2, 0, %p1; bar.red.and.pred %p3, 0, %p1;
    selp.b32 %r2, 100, 0, %p2; add.u32 %r1, %r1, %r2; selp.b32 %r2, 1000, 0, %p3; add.u32 %r1, %r1, %r2;
    mul.wide.u32 %rd10, %r0, 4; add.s64 %rd11, %rd0, %rd10; st.global.b32 [%rd11], %r1;
    """
    got = run(kernel(body), (), [((96,), np.uint32)], block=(96, 1, 1))[0]
    np.testing.assert_array_equal(got, 110)


def test_a_thread_that_exited_is_missed() -> None:
    body = "setp.eq.u32 %p1, %r0, {who}; @%p1 exit; bar.sync 0;"
    found = findings(kernel(body.format(who=5)), block=(64, 1, 1))
    assert {f.check for f in found} == {KernelCheck.BARRIER}
    assert any("thread (5, 0, 0) has exited" in f.message for f in found)
    assert not findings(kernel(body.format(who=64)), block=(64, 1, 1))


def test_a_barrier_in_half_of_a_warp_is_found() -> None:
    body = "setp.lt.u32 %p1, %r0, {who}; @%p1 bra A; bar.sync 0; bra.uni END;\nA: bar.sync 0;\nEND:"
    found = findings(kernel(body.format(who=16)), block=(64, 1, 1))
    assert found and {f.check for f in found} == {KernelCheck.BARRIER}
    assert "of the warp arrived here" in found[0].message
    assert not findings(kernel(body.format(who=32)), block=(64, 1, 1))


def test_threads_that_wait_at_different_barriers_are_found() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync {other}; bra.uni END;\nA: bar.sync 0;\nEND:"
    with pytest.raises(EmulatorError, match=r"barrier-divergence.*waits at barrier 0 .*waits at barrier 1"):
        run(kernel(body.format(other=1)), block=(64, 1, 1))
    run(kernel(body.format(other=0)), block=(64, 1, 1))


def test_an_endless_loop_is_stopped() -> None:
    body = "mov.b32 %r1, 0;\nLOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, {n}; @%p1 bra LOOP;"
    with pytest.raises(EmulatorError, match=r"runaway.*more than 20000 instructions"):
        run(kernel(body.format(n=1 << 30)), budget=20000)
    run(kernel(body.format(n=100)), budget=20000)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_warp_that_polls_does_not_starve_the_other(seed: int | None) -> None:
    body = """
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra LATE;
POLL:
    ld.volatile.global.b32 %r1, [%rd0];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra POLL;
    bra.uni END;
LATE:
    st.volatile.global.b32 [%rd0], 1;
END:
    """
    run(kernel(body), [np.zeros(1, np.uint32)], block=(64, 1, 1), seed=seed, budget=100_000)


def test_trap_stops_the_launch() -> None:
    with pytest.raises(EmulatorError, match=r"trap: k, line \d+"):
        run(kernel("setp.eq.u32 %p1, %r0, 3; @%p1 trap;"))
    run(kernel("setp.eq.u32 %p1, %r0, 99; @%p1 trap;"))
