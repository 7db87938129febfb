"""mbarriers, bulk tensor copies and wgmma by hand, and what the checks of the asynchronous proxy find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator.harness import HEADER, REGISTERS

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError, KernelCheck
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.program.tensor_map import TensorMap
from tilewright.runtime.tensor import DType

WAIT = """
{{ .reg .pred P1; AGAIN: mbarrier.try_wait.parity.shared.b64 P1, [{at}], {parity}, 10000000;
@P1 bra.uni DONE; bra.uni AGAIN; DONE: }}
"""
START = """
setp.ne.b32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared.b64 [{at}], {count}; fence.mbarrier_init.release.cluster;
READY: bar.sync 0;
"""


def launch(body: str, arguments: list[Any], threads: int = 32, maps: int = 0, seed: int | None = None,
           shared: int = 8192) -> EmulatorDevice:
    """Kernel `k`: %rd0... hold the arguments; the first `maps` of them are tensor maps. `buffer` is shared memory."""
    device = arguments[-1]
    given = arguments[:-1]
    names = [f".param .align 64 .b8 p{i}[128]" if i < maps else f".param .u64 p{i}" for i in range(len(given))]
    loads = [f"mov.b64 %rd60, p{i}; cvta.param.u64 %rd{i}, %rd60;" if i < maps else f"ld.param.b64 %rd{i}, [p{i}];"
             for i in range(len(given))]
    text = (f"{HEADER}.extern .shared .align 1024 .b8 buffer[];\n.visible .entry k({', '.join(names)})\n{{{REGISTERS}"
            f"{' '.join(loads)} mov.u32 %r0, %tid.x; {body} ret; }}\n")
    device.seed = seed
    device.launch(device.load(text).kernel("k"), (1, 1, 1), (threads, 1, 1), shared, given)
    return device


def tensor_map(device: EmulatorDevice, array: np.ndarray, box: tuple[int, ...], swizzle: int = 0) -> tuple[bytes, int]:
    """Of a C array: the parameter, and where the array lies."""
    address = device.upload(array)
    kind = DType.of(array.dtype)
    return device.tensor_map(TensorMap(kind, address, array.shape[::-1], array.strides[-2::-1], box, swizzle)), address


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_phase_completes_with_its_arrivals(seed: int | None) -> None:
    """Warp 1 writes after warp 0's threads, each of which arrives twice."""
    device = EmulatorDevice()
    out = device.alloc(256)
    body = START.format(at="buffer+1024", count=32) + """
    shl.b32 %r1, %r0, 2; cvt.u64.u32 %rd1, %r1; mov.b64 %rd2, buffer; add.s64 %rd3, %rd2, %rd1;
    setp.gt.u32 %p2, %r0, 31; @%p2 bra SECOND; st.shared.b32 [%rd3], %r0; mbarrier.arrive.shared.b64 %rd5, [buffer+1024]; bra END;
    SECOND: """ + WAIT.format(at="buffer+1024", parity=0) + """
    ld.shared.b32 %r2, [%rd3+-128]; add.s64 %rd6, %rd0, %rd1; st.global.b32 [%rd6+-128], %r2; END:"""
    launch(body, [out, device], 64, seed=seed)
    np.testing.assert_array_equal(device.copy_out(out, 32, np.int32), np.arange(32))


@pytest.mark.parametrize("count,parity,wanted", [(33, 0, "lacks 1 of 33 arrivals"), (31, 0, "32|1 arrivals at an mbarrier"),
                                                 (32, 1, "shared-memory-race|deadlock")])
def test_wrong_counts_and_phases_are_found(count: int, parity: int, wanted: str) -> None:
    device = EmulatorDevice()
    out = device.alloc(256)
    body = START.format(at="buffer+1024", count=count) + """
    shl.b32 %r1, %r0, 2; cvt.u64.u32 %rd1, %r1; mov.b64 %rd2, buffer; add.s64 %rd3, %rd2, %rd1;
    setp.gt.u32 %p2, %r0, 31; @%p2 bra SECOND; st.shared.b32 [%rd3], %r0; mbarrier.arrive.shared.b64 %rd5, [buffer+1024];
    mbarrier.arrive.shared.b64 %rd5, [buffer+1024]; bra END;
    SECOND: """ + WAIT.format(at="buffer+1024", parity=parity) + """
    ld.shared.b32 %r2, [%rd3+-128]; add.s64 %rd6, %rd0, %rd1; st.global.b32 [%rd6+-128], %r2; END:"""
    if count != 31:
        body = body.replace("""
    mbarrier.arrive.shared.b64 %rd5, [buffer+1024]; bra END;""", " bra END;")
    with pytest.raises(EmulatorError, match=wanted):
        launch(body, [out, device], 64)


LOAD = """
setp.ne.b32 %p2, %r0, 0; @%p2 bra LOADED; mov.b64 %rd40, buffer;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [buffer+4096], {bytes};
cvta.shared.u64 %rd41, %rd40; cvta.to.shared::cluster.u64 %rd42, %rd41;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%rd42], [%rd0, {{{x}, {y}}}], [buffer+4096];
LOADED:
"""
COPY = """
mov.b64 %rd44, buffer; mul.wide.u32 %rd45, %r0, 32; add.s64 %rd46, %rd44, %rd45; add.s64 %rd47, %rd1, %rd45;
ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%rd46]; st.global.v4.b32 [%rd47], {%r2, %r3, %r4, %r5};
ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%rd46+16]; st.global.v4.b32 [%rd47+16], {%r2, %r3, %r4, %r5};
"""


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("x,y", [(0, 0), (8, 3), (-3, -2), (60, 9), (200, 0)])
def test_tensor_load(x: int, y: int, swizzle: int) -> None:
    """A box of 8 rows of 128 bytes; zeros outside; chunks permuted by row."""
    for seed in (None, 0):
        device = EmulatorDevice()
        source = np.arange(1, 16 * 72 + 1, dtype=np.float16).reshape(16, 72)
        parameter, _ = tensor_map(device, source, (64, 8), swizzle)
        out = device.alloc(1024)
        body = START.format(at="buffer+4096", count=1) + LOAD.format(bytes=1024, x=x, y=y)
        launch(body + WAIT.format(at="buffer+4096", parity=0) + COPY, [parameter, out, device], 32, 1, seed)
        wanted = np.zeros((8, 64), np.float16)
        for r in range(8):
            for c in range(64):
                if 0 <= y + r < 16 and 0 <= x + c < 72:
                    wanted[r, c] = source[y + r, x + c]
        got = device.copy_out(out, (8, 8, 8), np.float16)
        if swizzle:
            got = np.stack([row[np.arange(8) ^ r] for r, row in enumerate(got)])
        np.testing.assert_array_equal(got.reshape(8, 64), wanted)


def test_loads_are_checked() -> None:
    good = START.format(at="buffer+4096", count=1) + LOAD.format(bytes=1024, x=0, y=0)
    wait = WAIT.format(at="buffer+4096", parity=0)
    cases = [
        (good + COPY, "shared-memory-race"),
        (good.replace("fence.mbarrier_init.release.cluster;", "") + wait + COPY, "missing-proxy-fence"),
        (good.replace(", 1024;", ", 1040;") + wait + COPY, "lacks .* 16 bytes"),
        (good.replace("mov.b64 %rd40, buffer;", "mov.b64 %rd40, buffer+64;") + wait + COPY, "misaligned"),
        (good.replace("mov.b64 %rd40, buffer;", "mov.b64 %rd40, buffer+7680;") + wait + COPY, "out-of-bounds"),
    ]
    for body, wanted in cases:
        device = EmulatorDevice()
        parameter, _ = tensor_map(device, np.zeros((16, 72), np.float16), (64, 8))
        with pytest.raises(EmulatorError, match=wanted):
            launch(body, [parameter, device.alloc(1024), device], 32, 1)


@pytest.mark.parametrize("fence,wanted", [("fence.proxy.async;", None), ("", KernelCheck.PROXY)])
@pytest.mark.parametrize("seed", [None, 3])
def test_tensor_store(fence: str, wanted: KernelCheck | None, seed: int | None) -> None:
    device = EmulatorDevice()
    parameter, address = tensor_map(device, np.zeros((10, 24), np.float32), (16, 8))
    body = f"""
    mov.b64 %rd44, buffer; mul.wide.u32 %rd45, %r0, 16; add.s64 %rd46, %rd44, %rd45; mul.lo.u32 %r2, %r0, 4; add.s32 %r3, %r2, 1;
    add.s32 %r4, %r2, 2; add.s32 %r5, %r2, 3; st.shared.v4.b32 [%rd46], {{%r2, %r3, %r4, %r5}}; {fence} bar.sync 0;
    setp.ne.b32 %p2, %r0, 0; @%p2 bra END;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {{16, 4}}], [buffer];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""
    if wanted is not None:
        with pytest.raises(EmulatorError, match=wanted.value):
            launch(body, [parameter, device], 32, 1, seed)
        return
    launch(body, [parameter, device], 32, 1, seed)
    got = device.copy_out(address, (10, 24), np.int32)
    box = np.arange(128).reshape(8, 16)
    np.testing.assert_array_equal(got[4:10, 16:24], box[:6, :8])
    assert not got[:4].any() and not got[:, :16].any()


@pytest.mark.parametrize("tail", ["", "cp.async.bulk.commit_group;"])
def test_a_block_waits_for_its_stores(tail: str) -> None:
    """Shared memory is another block's when its block has exited."""
    device = EmulatorDevice()
    parameter, _ = tensor_map(device, np.zeros((10, 24), np.float32), (16, 8))
    body = f"""
    mov.b64 %rd44, buffer; mul.wide.u32 %rd45, %r0, 16; add.s64 %rd46, %rd44, %rd45;
    st.shared.v4.b32 [%rd46], {{%r0, %r0, %r0, %r0}}; fence.proxy.async; bar.sync 0; setp.ne.b32 %p2, %r0, 0; @%p2 bra END;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {{16, 4}}], [buffer]; {tail} END:"""
    with pytest.raises(EmulatorError, match="the block exits while the copy may still read"):
        launch(body, [parameter, device], 32, 1)


def test_an_mbarrier_is_initialised_once() -> None:
    again = "mbarrier.init.shared.b64 [buffer+1024], 1;"
    once = START.format(at="buffer+1024", count=1)
    device = EmulatorDevice()
    launch(once.replace("fence", f"mbarrier.inval.shared.b64 [buffer+1024]; {again} fence"), [device.alloc(16), device])
    for body in (once.replace("fence", f"{again} fence"), once.replace("@%p1 bra READY;", "")):
        with pytest.raises(EmulatorError, match="initialises an mbarrier that is in use"):
            launch(body, [device.alloc(16), device])


@pytest.mark.parametrize("between,found", [
    ("bar.warp.sync -1;", False), ("", True), ("fence.proxy.async;", True),
    ("setp.ne.b32 %p2, %r0, 0; @%p2 bra ON; mbarrier.arrive.shared.b64 %rd5, [buffer+1024]; ON:", True),
    ("mbarrier.arrive.shared.b64 %rd5, [buffer+1024];" + WAIT.format(at="buffer+1024", parity=0), False)])
def test_neither_fences_nor_one_arrival_order_the_threads_of_a_warp(between: str, found: bool) -> None:
    device = EmulatorDevice()
    body = START.format(at="buffer+1024", count=32) + f"""
    shl.b32 %r1, %r0, 2; cvt.u64.u32 %rd1, %r1; mov.b64 %rd2, buffer; add.s64 %rd3, %rd2, %rd1; st.shared.b32 [%rd3], %r0;
    {between} ld.shared.b32 %r2, [%rd3+4]; st.shared.b32 [%rd3+2048], %r2;"""
    body = body.replace("bar.sync 0;", "setp.ne.b32 %p3, %r0, 0; @%p3 bra NEXT; st.shared.b32 [buffer+128], 0; NEXT: bar.sync 0;")
    if not found:
        launch(body, [device.alloc(16), device])
        return
    with pytest.raises(EmulatorError, match="shared-memory-race"):
        launch(body, [device.alloc(16), device])


@pytest.mark.parametrize("copies,multiplies,wanted", [(40, 232, ""), (40, 240, "deadlock: .* waits for 240 registers"),
                                                      (44, 232, "multiple of 8"), (248, 232, "where the warp holds")])
@pytest.mark.parametrize("seed", [None, 1])
def test_registers_change_hands(copies: int, multiplies: int, wanted: str, seed: int | None) -> None:
    """Two warpgroups of a block of three take what the first gives back."""
    device = EmulatorDevice()
    body = f"""setp.gt.u32 %p1, %r0, 127; @%p1 bra MORE; setmaxnreg.dec.sync.aligned.u32 {copies}; bra END;
    MORE: setmaxnreg.inc.sync.aligned.u32 {multiplies}; END:"""
    if not wanted:
        launch(body, [device.alloc(16), device], 384, seed=seed)
        return
    with pytest.raises(EmulatorError, match=wanted):
        launch(body, [device.alloc(16), device], 384, seed=seed)


def test_tensor_maps_are_checked() -> None:
    for problem, change in [("multiples of 16", {"strides": (24,)}), ("multiples of 16", {"address": 8}),
                            ("1 to 256", {"box": (512, 1)}), ("swizzle of 64", {"swizzle": 64}), ("axes", {"box": (8,)})]:
        given = {"dtype": DType.F16, "address": 0, "sizes": (64, 8), "strides": (128,), "box": (64, 8), "swizzle": 128}
        with pytest.raises(DeviceError, match=problem):
            TensorMap(**{**given, **change})  # type: ignore[arg-type]
