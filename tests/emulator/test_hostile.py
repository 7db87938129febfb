"""PTX that is damaged, forged or does not end: each gives a typed error or a finding that names line and instruction."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from emulator.harness import findings, kernel, run
from emulator.ptx_attacks import attack, far, judge
from emulator.test_samples import DATA, KERNELS, matmul

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError, KernelCheck
from tilewright.runtime.emulator.emulator_device import KernelLaunch
from tilewright.runtime.emulator.launch_budget import LaunchBudget
from tilewright.runtime.emulator.ptx.ptx_parser import parse_ptx

ATTACKS = 8  # of each sample; python -m tools.attack ptx --count 200 for more
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


@pytest.mark.parametrize("name", KERNELS)
def test_damaged_kernels_end_in_an_answer(name: str) -> None:
    text = (DATA / f"{name}.ptx").read_text()
    once = partial(matmul, name, 17, 8, 24)
    found = [(seed, judge(lambda ptx: once(text=ptx), attack(text, seed).ptx)) for seed in range(ATTACKS)]
    assert [(seed, v.detail) for seed, v in found if v.kind == "raw"] == []
    assert max(v.seconds for _, v in found) < 20
    assert {"refused", "result"} <= {v.kind for _, v in found}


@pytest.mark.parametrize("name", KERNELS)
def test_an_access_that_is_far_off_stays_a_finding(name: str) -> None:
    text = (DATA / f"{name}.ptx").read_text()
    once = partial(matmul, name, 17, 8, 24)
    executed = 0
    for seed in range(5):
        moved, trapped = far(text, seed)
        if judge(lambda ptx: once(text=ptx), trapped).kind == KernelCheck.TRAP.value:
            executed += 1
            assert judge(lambda ptx: once(text=ptx), moved).kind == KernelCheck.BOUNDS.value
    assert executed > 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (".version 99.0\n", "line 1: version 99.0 is later than"),
        (".version eight\n", "line 1: 'eight' is no version"),
        (".version 8.0\n.target sm_999\n", "line 2: target 'sm_999' is unknown"),
        (".address_size 32\n", "line 1: 32 is not from 64 to 64"),
        (HEAD + ".entry k() { ret; }\n.entry k() { ret; }\n", "line 5: k is declared twice"),
        (HEAD + ".global .b8 k[4];\n.entry k() { ret; }\n", "line 5: k is declared twice"),
        (HEAD + ".entry k(.param .u32 a, .param .u32 a) { ret; }\n", "line 4: parameter a is declared twice"),
        (HEAD + ".entry k() {\nL: nop;\nL: ret;\n}\n", "line 6: L is declared twice"),
        (HEAD + ".entry k() {\n.reg .b32 %r<4>;\n.reg .b64 %r3;\nret;\n}\n", "line 6: %r3 is declared twice"),
        (HEAD + ".entry k() {\n.shared .align 3 .b8 x[4];\nret;\n}\n", "line 5: alignment 3 is no power of two"),
        (HEAD + ".entry k() {\n.shared .align 65536 .b8 x[4];\nret;\n}\n", "line 5: 65536 is not from 1 to 4096"),
        (HEAD + ".entry k() {\nnop;\n}\n", "line 5: the body of k goes on past its end"),
        (HEAD + ".entry k() {\n.reg .pred %p;\n@%p ret;\n}\n", "line 6: the body of k goes on past its end"),
        (HEAD + ".entry k() {\nret;\nL:\n}\n", "line 6: the body of k goes on past its end"),
        (HEAD + ".entry k() {\n.reg .b32 %r<2000000000>;\nret;\n}\n", "line 5: 2000000000 is not from 0 to 262144"),
        (HEAD + ".entry k() {\n.reg .b32 %a<200000>, %b<200000>;\nret;\n}\n", "line 5: k declares more than 262144 registers"),
        (HEAD + ".entry k() {\n.reg .b128 %r;\nret;\n}\n", "line 5: registers of type .b128 are not modelled"),
        (HEAD + ".global .b8 x[-4];\n", "line 4: -4 is not from 0"),
        (HEAD + ".global .b8 x[2] = {1, 2, 3};\n", "line 4: x has 2 bytes and 3 values of 1"),
        (HEAD + ".global .pred x;\n", "line 4: variables of type .pred are not modelled"),
        (HEAD + ".global .u64 x = y;\n", "line 4: x begins with the address of y"),
        (HEAD + ".global .b8 x[1000000000000];\n", "emulated memory holds"),
        (HEAD + ".entry k() {\n" + "{" * 2000 + "ret;\n}\n", "line 5: more than 64 braces within braces"),
        (HEAD + ".entry k() {\nmov.b32 %r1, " + "{" * 20_000 + ";\n}\n", "line 5: operands or values are nested too deeply"),
        (HEAD + ".entry k() .reqntid 1, 2, 3, 4 { ret; }\n", "line 4: .reqntid has 4 numbers"),
        (HEAD.replace("sm_90a", "sm_100a"), "the module is for sm_100a, which sm_90a does not run"),
    ],
)
def test_declarations_that_cannot_be_are_refused_by_line(text: str, told: str) -> None:
    with pytest.raises(EmulatorError, match=r"PTX line|emulated memory|emulator:sm_90a") as error:
        EmulatorDevice().load(text)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("bra;", "no label"),
        ("bra NOWHERE;", "no label NOWHERE"),
        ("brx.idx %r0, NOWHERE;", "not modelled|no table"),
        ("call;", "calls a function that the module does not define"),
        ("add.s32 %r1;", "2 sources wanted, 0 given"),
        ("add.s32;", "is not modelled"),
        ("mov.b32 {%r1, %r2, %r3}, %r0;", "32 bits are not 3 parts"),
        ("cp;", "does not know|not modelled"),
        ("ld.global.q7 %r1, [%rd0];", "q7"),
        ("st.shared.pred [%rd0], %p1;", "line 1"),
        (".local .b8 big[1000000]; ld.local.b8 %rs1, [big];", "a thread has 524288 bytes of local memory"),
    ],
)
def test_instructions_that_cannot_be_are_refused_by_line(line: str, told: str) -> None:
    with pytest.raises(EmulatorError, match=told) as error:
        run(kernel(line))
    assert "line" in str(error.value)


@pytest.mark.parametrize("options", [{"grid": (0, 1, 1)}, {"block": (1025, 1, 1)}, {"block": (1, 1, 65)}, {"shared": 300_000},
                                     {"shared": -1}, {"grid": (1 << 31, 1, 1)}, {"grid": (1, 65536, 1)}])
def test_launches_that_no_gpu_takes_are_refused(options: dict[str, tuple[int, int, int]]) -> None:
    with pytest.raises(EmulatorError, match="k: "):
        run(kernel(""), **options)


def test_registers_are_bounded_by_the_register_file() -> None:
    text = kernel("").replace("\n{", "\n.maxnreg {n}\n{", 1)
    run(text.replace("{n}", "128"), block=(512, 1, 1))
    for most, threads in ((256, 32), (128, 1024)):
        with pytest.raises(EmulatorError, match=f"maxnreg {most} in {threads} threads; sm_90a has 65536 registers"):
            run(text.replace("{n}", str(most)), block=(threads, 1, 1))


def test_a_loop_that_does_not_end_is_stopped_where_it_is() -> None:
    text = kernel("LOOP: add.s32 %r1, %r0, 1; bra LOOP;")
    for options in ({"budget": 10_000}, {"seconds": 0.05}):
        with pytest.raises(EmulatorError, match=r"runaway: k, line \d+: `LOOP: add.s32 .*a loop does not end"):
            run(text, **options)  # type: ignore[arg-type]


def test_the_budget_follows_from_the_size_of_the_launch() -> None:
    program = EmulatorDevice().load(kernel("")).kernel("k")
    small, large = LaunchBudget.of(program, 0, 1, None, None), LaunchBudget.of(program, 1 << 20, 1000, None, None)
    assert small.instructions < 2_000_000 < 10_000_000 < large.instructions
    assert small.seconds < large.seconds < LaunchBudget.of(program, 0, 1 << 31, None, None).seconds < 3600
    given = LaunchBudget.of(program, 1 << 20, 1000, 7, 0.5)
    assert (given.instructions, given.seconds) == (7, 0.5)


def test_a_grid_of_all_blocks_that_there_may_be_is_made_block_by_block() -> None:
    """2^31 - 1 blocks: no list of them is made, the clock ends the launch."""
    with pytest.raises(EmulatorError, match=r"runs for more than 0\.1 s, with \d+ of 2147483647 blocks to come"):
        run(kernel(""), grid=((1 << 31) - 1, 1, 1), seconds=0.1)


def test_calls_that_grow_without_end_are_refused() -> None:
    calls = "".join(f".func f{i}() {{ call f{i + 1}; call f{i + 1}; ret; }}\n" for i in range(40))
    with pytest.raises(EmulatorError, match="instructions together"):
        run(kernel("call f0;", module=calls + ".func f40() { " + "nop; " * 50 + " ret; }"))


@pytest.mark.parametrize(
    ("body", "name", "count"),
    [
        ("add.s32 %r1, %r2, 1;", "%r2", 1),
        ("mov.u32 %r2, 5; add.s32 %r1, %r2, 1;", "", 0),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 mov.u32 %r2, 5; @%p1 add.s32 %r1, %r2, 1;", "", 0),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 mov.u32 %r2, 5; @!%p1 add.s32 %r1, %r2, 1;", "%r2", 1),
        ("setp.eq.u32 %p1, %r0, 0; @%p1 bra L; mov.u32 %r2, 5; L: add.s32 %r1, %r2, 1;", "%r2", 1),
        ("setp.ge.u32 %p1, %r0, 0; @%p1 bra L; bra M; L: mov.u32 %r2, 5; M: add.s32 %r1, %r2, 1;", "", 0),
        ("mov.u32 %r3, 0; L: add.s32 %r2, %r2, 1; add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 9; @%p1 bra L;", "%r2", 1),
        ("@%p3 mov.u32 %r2, 5;", "%p3", 1),
        ("@%p3 bra L; L: mov.u32 %r2, 5;", "%p3", 1),
        ("st.shared.b32 [%r4], %r0;", "%r4", 1),
        ("add.f32 %f1, %f2, %f3; add.f32 %f4, %f5, %f6;", "%f2", 1),
        ("{ .reg .b32 %t; add.s32 %r1, %t, 1; }", "%t", 1),
        ("shfl.sync.bfly.b32 %r1, %r9, 1, 31, -1;", "%r9", 1),
    ],
)
def test_registers_that_nothing_wrote_are_found(body: str, name: str, count: int) -> None:
    """By thread, whatever way led there; the line is that of the read."""
    shared = ".shared .align 4 .b8 buffer[4096];"
    found = [f for f in findings(kernel(body, shared=shared)) if f.check is KernelCheck.UNSET]
    assert bool(found) == bool(count)
    if count:
        assert found[0].message == f"{name} is read, and nothing has written it"
        assert found[0].site.text == body and found[0].thread is not None


def test_a_kernel_that_sets_what_it_reads_is_not_slowed_down() -> None:
    text = kernel("mov.u32 %r1, 1; LOOP: add.s32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra LOOP;")
    program = EmulatorDevice().load(text).kernel("k")
    assert "checked" not in {r.__name__ for segment in program.segments for r in (*segment.body, segment.end) if r is not None}


def test_registers_that_no_instruction_names_take_no_room() -> None:
    text = kernel("").replace("%r<64>", "%r<200000>")
    program = EmulatorDevice().load(text).kernel("k")
    assert sum(program.registers.values()) < 8


def test_a_long_line_is_read_in_linear_time() -> None:
    """Instructions that share one line carry its beginning, not a copy of all of it."""
    module = parse_ptx(HEAD + ".entry k() { .reg .b32 %r<9>; " + "add.s32 %r1, %r2, 3; " * 20_000 + "ret; }")
    body = module.kernels["k"].body
    assert len(body) == 20_001
    assert len({id(item.text) for item in body}) == 1 and len(body[0].text) < 200  # type: ignore[union-attr]


def test_all_blocks_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    inner = EmulatorDevice._run_batch

    def note(self: EmulatorDevice, launch: KernelLaunch, blocks: np.ndarray, budget: object) -> None:
        seen.extend(blocks.tolist())
        inner(self, launch, blocks, budget)  # type: ignore[arg-type]

    monkeypatch.setattr(EmulatorDevice, "_run_batch", note)
    run(kernel(""), grid=(1000, 3, 1))
    assert seen == list(range(3000))
