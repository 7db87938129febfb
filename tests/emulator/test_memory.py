"""Loads, stores, atomics and spaces; device memory; the checks of bounds, alignment and initialisation."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import findings, kernel, run

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError, KernelCheck

INDEX = "mul.wide.u32 %rd10, %r0, {size}; add.s64 %rd11, %rd0, %rd10; add.s64 %rd12, %rd1, %rd10;\n"


@pytest.mark.parametrize(
    ("width", "count"), [("b8", 1), ("b16", 1), ("b32", 1), ("b64", 1), ("b32", 2), ("b32", 4), ("b16", 4), ("b64", 2), ("b8", 4)]
)
def test_copies_of_every_width(width: str, count: int) -> None:
    bits = int(width[1:])
    file = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}[bits]
    first = 20
    registers = ", ".join(f"{file}{first + i}" for i in range(count))
    registers, vector = (f"{{{registers}}}", f".v{count}") if count > 1 else (registers, "")
    size = bits // 8 * count
    body = INDEX.format(size=size) + f"ld.global.nc{vector}.{width} {registers}, [%rd11];"
    body += f"st.global{vector}.{width} [%rd12], {registers};"
    data = np.random.default_rng(0).integers(0, 256, 32 * size, dtype=np.uint8)
    np.testing.assert_array_equal(run(kernel(body, 2), [data], [(data.shape, np.uint8)])[0], data)


def test_narrow_loads_extend() -> None:
    body = INDEX.format(size=1).replace("%rd12, %rd1, %rd10", "%rd12, %rd10, 0") + """
    mul.wide.u32 %rd12, %r0, 4; add.s64 %rd12, %rd1, %rd12;
    ld.global.{kind} %r1, [%rd11]; st.global.b32 [%rd12], %r1;
    """  # fmt: skip
    data = np.arange(112, 144, dtype=np.uint8)
    for kind, wanted in [("s8", data.view(np.int8).astype(np.int32)), ("u8", data.astype(np.int32))]:
        got = run(kernel(body.replace("{kind}", kind), 2), [data], [((32,), np.int32)])[0]
        np.testing.assert_array_equal(got, wanted)


def test_generic_addresses_reach_every_space() -> None:
    body = """
    mov.b64 %rd21, buffer; cvta.shared.u64 %rd21, %rd21;
    mov.b64 %rd22, stack; cvta.local.u64 %rd22, %rd22;
    isspacep.shared %p1, %rd21; isspacep.local %p2, %rd22; isspacep.global %p3, %rd0; isspacep.global %p4, %rd21;
    mul.wide.u32 %rd10, %r0, 4; add.s64 %rd21, %rd21, %rd10;
    add.u32 %r1, %r0, 7;
    st.b32 [%rd21], %r1; st.b32 [%rd22+4], %r1;
    ld.b32 %r2, [%rd21]; ld.local.b32 %r3, [stack+4];
    add.u32 %r4, %r2, %r3;
    selp.b32 %r5, 1000, 0, %p1; add.u32 %r4, %r4, %r5; selp.b32 %r5, 1000, 0, %p2; add.u32 %r4, %r4, %r5;
    selp.b32 %r5, 1000, 0, %p3; add.u32 %r4, %r4, %r5; selp.b32 %r5, 50000, 0, %p4; add.u32 %r4, %r4, %r5;
    setp.lt.u32 %p5, %r0, 16; add.s64 %rd23, %rd0, %rd10; selp.b64 %rd24, %rd23, %rd21, %p5;
    st.b32 [%rd24], %r4; @!%p5 ld.b32 %r6, [%rd24]; @!%p5 st.global.b32 [%rd23], %r6;
    """
    text = kernel(body, 1, shared=".shared .align 16 .b8 buffer[128]; .local .align 8 .b8 stack[16];")
    np.testing.assert_array_equal(run(text, (), [((32,), np.uint32)])[0], 2 * (np.arange(32) + 7) + 3000)


def test_constants_and_initialised_globals() -> None:
    module = ".const .align 4 .b32 table[4] = {5, 6, 7, 8}; .global .align 8 .u64 link = table+8; .global .b32 counter;"
    body = """
    and.b32 %r1, %r0, 1; mul.wide.u32 %rd10, %r1, 4; mov.b64 %rd11, table; add.s64 %rd11, %rd11, %rd10;
    ld.const.b32 %r2, [%rd11]; mov.b64 %rd12, link; ld.global.b64 %rd13, [%rd12]; ld.global.b32 %r3, [%rd13];
    ld.global.b32 %r4, [counter]; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
    mul.wide.u32 %rd14, %r0, 4; add.s64 %rd14, %rd0, %rd14; st.global.b32 [%rd14], %r2;
    """
    got = run(kernel(body, module=module), (), [((32,), np.uint32)])[0]
    np.testing.assert_array_equal(got, 12 + np.arange(32) % 2)


def test_parameters_as_memory() -> None:
    text = kernel("""
    mov.b64 %rd10, blob; cvta.param.u64 %rd11, %rd10; ld.param.b32 %r1, [blob+4]; ld.b32 %r2, [%rd11+8];
    add.u32 %r1, %r1, %r2; st.global.b32 [%rd0], %r1;
    """).replace(".param .u64 p0)", ".param .u64 p0, .param .align 8 .b8 blob[16])")  # fmt: skip
    device = EmulatorDevice()
    out = device.alloc(4)
    blob = np.arange(4, dtype=np.uint32).tobytes()
    device.launch(device.load(text).kernel("k"), (1, 1, 1), (1, 1, 1), 0, [out, blob])
    assert device.copy_out(out, 1, np.uint32)[0] == 3


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [("add", 64 * 65 // 2 + 5), ("min", 1), ("max", 64), ("or", 127), ("xor", 64 ^ 5), ("and", 0)],
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_reductions(operation: str, wanted: int, space: str) -> None:
    target = "%rd0" if space == "global" else "cell"
    kind = "b32" if operation in ("or", "xor", "and") else "u32"
    body = f"""
    add.u32 %r1, %r0, 1; setp.eq.u32 %p1, %r0, 0;
    @%p1 st.{space}.b32 [{target}], 5;
    bar.sync 0;
    red.{space}.{operation}.{kind} [{target}], %r1;
    bar.sync 0;
    @%p1 ld.{space}.b32 %r2, [{target}]; @%p1 st.global.b32 [%rd0], %r2;
    """
    text = kernel(body, shared=".shared .align 4 .b8 cell[4];")
    assert run(text, (), [((1,), np.uint32)], block=(64, 1, 1))[0][0] == wanted


@pytest.mark.parametrize("seed", [None, 3])
def test_atomics_return_what_was_there(seed: int | None) -> None:
    body = """
    atom.global.add.u32 %r1, [%rd1], 1; mul.wide.u32 %rd10, %r1, 4; add.s64 %rd10, %rd0, %rd10; st.global.b32 [%rd10], %r0;
    """
    text = kernel(body, 2).replace("[p1]", "[p1]")
    device = EmulatorDevice(seed=seed)
    out, counter = device.alloc(4 * 192), device.upload(np.zeros(1, np.uint32))
    device.launch(device.load(text).kernel("k"), (2, 1, 1), (96, 1, 1), 0, [out, counter])
    got = device.copy_out(out, 192, np.uint32)
    assert sorted(got.tolist()) == sorted(list(range(96)) * 2)
    assert seed is None or got.tolist() != list(range(96)) * 2


def test_compare_and_swap_lock_free_sum() -> None:
    body = """
    cvt.rn.f32.u32 %f1, %r0;
    ld.global.b32 %r1, [%rd0];
AGAIN:
    mov.b32 %f2, %r1; add.f32 %f3, %f1, %f2; mov.b32 %r2, %f3; mov.b32 %r3, %r1;
    atom.global.cas.b32 %r1, [%rd0], %r3, %r2;
    setp.ne.u32 %p1, %r1, %r3;
    @%p1 bra AGAIN;
    atom.global.add.f32 %f5, [%rd0+4], %f1; atom.global.exch.b32 %r6, [%rd0+8], %r0; red.global.inc.u32 [%rd0+12], 9;
    """
    device = EmulatorDevice()
    cells = device.upload(np.zeros(4, np.float32))
    device.launch(device.load(kernel(body)).kernel("k"), (1, 1, 1), (40, 1, 1), 0, [cells])
    got = device.copy_out(cells, 4, np.float32)
    assert got[:2].tolist() == [780.0, 780.0]
    assert got.view(np.uint32)[2:].tolist() == [39, 0]


READ = "mul.wide.u32 %rd10, %r0, 4; add.s64 %rd11, %rd0, %rd10; ld.global.b32 %r1, [%rd11{offset}];"


def test_out_of_bounds_is_found() -> None:
    data = np.arange(32, dtype=np.uint32)
    assert not findings(kernel(READ.format(offset="")), [data])
    found = findings(kernel(READ.format(offset="+4")), [data])
    assert [f.check for f in found] == [KernelCheck.BOUNDS]
    assert found[0].thread == (31, 0, 0) and found[0].block == (0, 0, 0)
    assert found[0].site.text.startswith("mul.wide") and found[0].site.line > 0
    assert "0 bytes past the end of an allocation of 128" in found[0].message
    with pytest.raises(EmulatorError, match=r"out-of-bounds: k, line \d+: .*thread \(31, 0, 0\), address 0x"):
        run(kernel(READ.format(offset="+4")), [data])
    assert run(kernel(READ.format(offset="+4")), [data], checks=()) == []


def test_out_of_bounds_of_shared_and_local_memory_is_found() -> None:
    text = "mul.wide.u32 %rd10, %r0, 4; mov.b64 %rd11, buffer; add.s64 %rd11, %rd11, %rd10; st.{space}.b32 [%rd11{offset}], %r0;"
    for space, room in [("shared", 128), ("local", 256)]:
        declared = f".{space} .align 4 .b8 buffer[{room}];"
        inside = {"shared": 0, "local": 128}[space]
        assert not findings(kernel(text.format(space=space, offset=f"+{inside}"), shared=declared))
        found = findings(kernel(text.format(space=space, offset=f"+{inside + 4}"), shared=declared))
        assert [f.check for f in found] == [KernelCheck.BOUNDS] and space in found[0].message
        assert [f.check for f in findings(kernel(text.format(space=space, offset="-4"), shared=declared))] == [KernelCheck.BOUNDS]


def test_an_address_after_free_is_found() -> None:
    device = EmulatorDevice()
    address = device.upload(np.arange(32, dtype=np.uint32))
    program = device.load(kernel(READ.format(offset=""))).kernel("k")
    device.launch(program, (1, 1, 1), (32, 1, 1), 0, [address])
    device.free(address)
    with pytest.raises(EmulatorError, match="out-of-bounds"):
        device.launch(program, (1, 1, 1), (32, 1, 1), 0, [address])
    with pytest.raises(EmulatorError, match="not the start"):
        device.free(address)


def test_misalignment_is_found() -> None:
    data = np.zeros(64, dtype=np.uint32)
    body = "mul.wide.u32 %rd10, %r0, 4; add.s64 %rd11, %rd0, %rd10; ld.global.v2.b32 {%r1, %r2}, [%rd11];"
    found = findings(kernel(body), [data])
    assert [f.check for f in found] == [KernelCheck.ALIGNMENT] and found[0].thread == (1, 0, 0)
    assert not findings(kernel(body.replace("%r0, 4", "%r0, 8")), [data])


@pytest.mark.parametrize("space", ["shared", "local", "global"])
def test_uninitialised_reads_are_found(space: str) -> None:
    base = "%rd0" if space == "global" else "buffer"
    shared = "" if space == "global" else f".{space} .align 4 .b8 buffer[128];"
    read = f"mul.wide.u32 %rd10, %r0, 4; mov.b64 %rd11, {base}; add.s64 %rd11, %rd11, %rd10; {{}} ld.{space}.b32 %r1, [%rd11];"
    device = EmulatorDevice(collect=True)
    for text, wanted in [("", [KernelCheck.UNINITIALISED]), (f"st.{space}.b32 [%rd11], %r0;", [])]:
        device.report.findings.clear()
        program = device.load(kernel(read.format(text), shared=shared)).kernel("k")
        device.launch(program, (1, 1, 1), (32, 1, 1), 0, [device.alloc(128)])
        assert [f.check for f in device.report.findings] == wanted
    half = f"mov.b16 %rs1, 7; st.{space}.b16 [%rd11], %rs1;"
    program = device.load(kernel(read.format(half), shared=shared).replace(".entry k", ".entry h")).kernel("h")
    device.launch(program, (1, 1, 1), (32, 1, 1), 0, [device.alloc(128)])
    assert [f.check for f in device.report.findings] == [KernelCheck.UNINITIALISED]


def test_output_that_was_never_written_is_found() -> None:
    body = "setp.gt.u32 %p1, %r0, 20; mul.wide.u32 %rd10, %r0, 4; add.s64 %rd11, %rd0, %rd10; @!%p1 st.global.b32 [%rd11], %r0;"
    found = findings(kernel(body), (), [((4, 8), np.uint32)])
    assert [f.check for f in found] == [KernelCheck.NEVER_WRITTEN]
    assert "11 of 32 elements" in found[0].message and "(2, 5)" in found[0].message
    assert not findings(kernel(body.replace(", 20;", ", 31;")), (), [((4, 8), np.uint32)])


def test_equal_code_is_made_ready_once_for_each_place_of_its_variables() -> None:
    """Devices share what they hold nothing in; where a variable lies elsewhere, its kernel is another one."""
    text = kernel("ld.global.b32 %r1, [number]; st.global.b32 [%rd0], %r1;", module=".global .b32 number[1] = {7};")
    programs = []
    for before in (0, 0, 4096):
        device = EmulatorDevice()
        if before:
            device.upload(np.full(before, 1, np.uint8))
        result = device.alloc(4)
        programs.append(device.load(text).kernel("k"))
        device.launch(programs[-1], (1, 1, 1), (1, 1, 1), 0, [result])
        assert device.copy_out(result, 1, np.int32).tolist() == [7]
    assert programs[0] is programs[1] is not programs[2]


def test_launch_is_refused() -> None:
    device = EmulatorDevice("sm_80")
    empty = kernel("").replace("sm_90a", "sm_80")
    program = device.load(empty).kernel("k")
    for grid, block, shared, args, wanted in [
        ((0, 1, 1), (32, 1, 1), 0, [0], "positive"),
        ((1, 1, 1), (2048, 1, 1), 0, [0], "1024"),
        ((1, 70000, 1), (32, 1, 1), 0, [0], "65535"),
        ((1, 1, 1), (32, 1, 1), 200_000, [0], "shared memory"),
        ((1, 1, 1), (32, 1, 1), 0, [], "1 arguments wanted, 0 given"),
    ]:
        with pytest.raises(EmulatorError, match=wanted):
            device.launch(program, grid, block, shared, args)
    required = device.load(empty.replace(")\n{", ")\n.reqntid 64, 1, 1\n{")).kernel("k")
    with pytest.raises(EmulatorError, match="reqntid"):
        device.launch(required, (1, 1, 1), (32, 1, 1), 0, [0])
    with pytest.raises(EmulatorError, match="no kernel 'other'"):
        device.load(empty).kernel("other")
    with pytest.raises(EmulatorError, match=r"line \d+: `frob.b32 %r1, %r2;`.*does not know 'frob'"):
        device.load(kernel("frob.b32 %r1, %r2;").replace("sm_90a", "sm_80")).kernel("k")
