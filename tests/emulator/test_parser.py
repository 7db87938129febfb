"""PTX text -> Module: declarations, operands, scopes, and errors that name the line."""

from __future__ import annotations

import pytest

from tilewright.runtime.emulator import EmulatorError
from tilewright.runtime.emulator.ptx.ptx_parser import parse_ptx
from tilewright.runtime.emulator.ptx.ptx_syntax import Address, Immediate, Instruction, Negated, Pair, Register, Symbol, Vector

TEXT = """
// comment
.version 8.3
.target sm_90a, debug
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 0, 0, 255, 0};
.visible .global .u64 link = table+4;
.const .f32 half[2] = {0f3F000000, 0f40000000};
.func (.param .b32 out) twice(.param .b32 in);
.visible .entry k(
    .param .u64 .ptr .global .align 16 a,
    .param .align 64 .b8 map[128],
    .param .f32 x
)
.reqntid 64, 2, 1
.minnctapersm 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>, %extra;
    .reg .b64 %rd<4>;
    .shared .align 16 .b8 buffer[256];
    .loc 1 2 3
    ld.param.b64 %rd1, [a]; ld.param.f32 %extra, [x];
    @!%p1 bra $L__1;
    ld.shared.v4.b32 {%r1, %r2, _, %r4}, [%rd1+-16];
    setp.lt.and.s32 %p1|%p2, %r1, -5, !%p2;
    {
        .reg .pred done;
        wait: mbarrier.try_wait.parity.shared.b64 done, [buffer+8], %r1;
        @done bra wait;
    }
    { .reg .pred done; wait: @done bra wait; }
    cp.async.bulk.tensor.2d.shared::cluster.global.tile [%rd1], [%rd2, {%r1, %r2}], [%rd3];
    mov.b32 %r1, 0f3F800000;
    brx.idx %r1, targets;
    targets: .branchtargets $L__1, $L__2;
$L__1:
$L__2:
    ret;
}
"""


def body() -> list[Instruction]:
    return [i for i in parse_ptx(TEXT).kernels["k"].body if isinstance(i, Instruction)]


def test_module_and_kernel_declarations() -> None:
    module = parse_ptx(TEXT)
    kernel = module.kernels["k"]
    assert (module.version, module.target, module.address_size) == ("8.3", ("sm_90a", "debug"), 64)
    assert [(v.name, v.space, v.size, v.align) for v in module.variables] == [
        ("dyn", "shared", 0, 1024),
        ("table", "global", 8, 4),
        ("link", "global", 8, 8),
        ("half", "const", 8, 4),
    ]
    assert module.variables[1].initial == (1, 2, 3, 4, 0, 0, 255, 0)
    assert module.variables[2].initial == (Symbol("table", 4),)
    assert [(p.name, p.size, p.align) for p in kernel.parameters] == [("a", 8, 8), ("map", 128, 64), ("x", 4, 4)]
    assert kernel.directives == {"reqntid": (64, 2, 1), "minnctapersm": (1,)}
    assert kernel.registers["%r7"] == "b32" and kernel.registers["%extra"] == "b32"
    assert [v.name for v in kernel.variables] == ["buffer"]


def test_operands() -> None:
    found = body()
    load, compare = found[3], found[4]
    assert load.parts == ("ld", "shared", "v4", "b32")
    assert load.operands[0] == Vector((Register("%r1"), Register("%r2"), Register("_"), Register("%r4")))
    assert load.operands[1] == Address(Register("%rd1"), -16)
    assert found[2].predicate == Register("%p1") and found[2].negated
    assert compare.operands[0] == Pair(Register("%p1"), Register("%p2"))
    assert compare.operands[2:] == (Immediate(-5), Negated(Register("%p2")))
    tensor = next(i for i in found if i.opcode.startswith("cp.async"))
    assert tensor.operands[1] == Address(Register("%rd2"), 0, (Register("%r1"), Register("%r2")))
    assert next(i for i in found if i.opcode == "mov.b32").operands[1] == Immediate(0x3F800000, 32)


def test_names_of_nested_scopes_are_unique() -> None:
    waits = [i for i in body() if i.opcode == "bra" and isinstance(i.operands[0], Symbol) and "wait" in i.operands[0].name]
    assert len(waits) == 2
    assert waits[0].operands[0] != waits[1].operands[0]
    assert waits[0].predicate is not None and waits[1].predicate is not None
    assert waits[0].predicate.name != waits[1].predicate.name


def test_line_and_text_travel_with_an_instruction() -> None:
    branch = body()[2]
    assert TEXT.split("\n")[branch.line - 1].strip() == branch.text == "@!%p1 bra $L__1;"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("add.s32 %r1, %r2 %r3;", "line 5"),
        ("mov.b32 %r1, 1.5;", "0f"),
        ("#bad", "unexpected character"),
        (".reg .q32 %x;", "q32"),
        ("ld.global.b32 %r1, [%rd1;", "expected ']'"),
        ("4;", "expected an instruction"),
    ],
)
def test_errors_name_the_line(line: str, wanted: str) -> None:
    text = f".version 8.0\n.target sm_80\n.visible .entry k()\n{{\n{line}\n}}\n"
    with pytest.raises(EmulatorError, match=r"line 5|q32") as error:
        parse_ptx(text)
    assert wanted in str(error.value)


def test_a_text_that_ends_early_is_an_error() -> None:
    with pytest.raises(EmulatorError, match="ends in the middle"):
        parse_ptx(".version 8.0\n.visible .entry k()\n{\n ret;\n")
