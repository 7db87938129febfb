"""The native table by itself, single kernels, and their times, on a fake driver."""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cuda_fake import models
from cuda_fake.fake_state import FakeState
from gpu_harness import build, check, random
from gpu_workloads import contraction, rows
from tensor_core_workloads import product

import tilewright as tw
from tilewright.compiler.builder.ptxas import find_tool
from tilewright.runtime.cuda.arena import gpu, native_table
from tilewright.runtime.cuda.cuda_device import CudaDevice, load_image
from tilewright.runtime.cuda.cuda_table import (
    ARENA_FIELDS,
    CONTEXT_FIELDS,
    EARLY,
    KEPT_MAPS,
    KEPT_WORDS,
    RECORD_FIELDS,
    cuda_table_ir,
)
from tilewright.runtime.cuda.timer import KernelTimer
from tilewright.runtime.device import CONTEXT, KERNELS, TABLE_WORDS
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.program.tensor_map import TensorMap

FILL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry fill(.param .u64 out, .param .u32 value)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  griddepcontrol.wait;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [value];
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r1;
  ret;
}
"""


@cache
def dense(target: str) -> tuple[tw.CompiledFunction, list[np.ndarray]]:
    """A model whose kernel takes bulk copies, and arguments."""
    text = (Path(__file__).parents[1] / "data" / "dense_768x2304_dyn_m.mlir").read_text()
    fn = tw.compile(text, {"arg0.0": (0, 64)}, target=target, options=tw.CompileOptions(precision="bf16"))
    assert "wgmma" in {call.family for call in fn.explain(arg0_0=24).calls}
    rng = np.random.default_rng(0)
    extents = [[d.evaluate({"arg0_0": 24}) for d in a.spec().dims] for a in fn.inputs]
    return fn, [rng.standard_normal(e).astype(np.float32) for e in extents]


class Bare:
    """The native functions over a table of our own, with one kernel of two launches, the second in clusters."""

    def __init__(self, fake: FakeState) -> None:
        from tilewright.runtime.host.host_target import lowest_level
        from tilewright.runtime.host.object_code import emit_object

        _, self.functions = native_table(emit_object(cuda_table_ir(), lowest_level("x86_64")))
        self.gpu = gpu(0)
        self.loads: list[int] = []
        self.records = (ctypes.c_uint64 * (2 * len(RECORD_FIELDS)))()
        for step, cluster in enumerate(((1, 1, 1), (2, 1, 1))):
            values = {"threads": 1 + step * EARLY, "most_x": 16,
                      **dict(zip(("cluster_x", "cluster_y", "cluster_z"), cluster, strict=True))}
            for name, value in values.items():
                self.records[step * len(RECORD_FIELDS) + RECORD_FIELDS.index(name)] = value
        self.kernels = (ctypes.c_uint64 * 2)(0, ctypes.addressof(self.records))  # launch 513 is kernel 1 of call 2
        self.calls = (ctypes.c_uint64 * 3)(0, 0, ctypes.addressof(self.kernels))
        self.arena = (ctypes.c_uint64 * len(ARENA_FIELDS))()
        self.words = (ctypes.c_uint64 * len(CONTEXT_FIELDS))()
        self._loader = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)(self.load)
        self.image = load_image(FILL.encode(), "sm_90a")
        values = {"stream": int(self.gpu.device.stream.handle), "cuda_context": self.gpu.device.context,
                  "arena": ctypes.addressof(self.arena), "load": ctypes.cast(self._loader, ctypes.c_void_p).value or 0,
                  **self.gpu.functions}
        for name, value in values.items():
            self.words[CONTEXT_FIELDS.index(name)] = value
        self.table = (ctypes.c_uint64 * TABLE_WORDS)()
        self.table[CONTEXT], self.table[KERNELS] = ctypes.addressof(self.words), ctypes.addressof(self.calls)

    def load(self, context: int, number: int) -> int:
        self.loads.append(number)
        step = number >> 32
        self.records[step * len(RECORD_FIELDS)] = int(self.image.kernel("fill").core.handle)
        return 0

    def launch(self, number: int, grid: tuple[int, int, int], slots: list[int]) -> None:
        types = [ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.c_void_p, *[ctypes.c_int64] * 2, ctypes.c_void_p, ctypes.c_int64]
        words = (ctypes.c_uint64 * len(slots))(*slots)
        ctypes.CFUNCTYPE(None, *types)(self.functions["tw_cuda_launch"])(self.table, number, *grid, words, len(slots), 1, None, 0)

    def word(self, name: str) -> int:
        return self.words[CONTEXT_FIELDS.index(name)]


def launches_of_one_kernel_and_clusters(fake: FakeState) -> None:
    bare = Bare(fake)
    out = bare.gpu.device.alloc(128)
    fake.launches.clear()
    fake.early.clear()
    bare.launch(513, (16, 1, 1), [out, 7])
    bare.launch(513 + (1 << 32), (4, 1, 1), [out, 9])
    assert fake.early == [False, True]
    bare.arena[ARENA_FIELDS.index("capture")] = 1
    bare.launch(513 + (1 << 32), (4, 1, 1), [out, 9])
    assert fake.early == [False, True, False]
    bare.launch(513, (0, 1, 1), [out, 5])
    bare.launch(513, (2, 0, 3), [out, 5])
    bare.launch(513, (1, 1, 1), [out + 60, 3])
    bare.launch(513, (1 << 30, 1, 1), [out + 64, 3])  # more than the record allows along x
    assert bare.loads == [513, 513 + (1 << 32)]
    assert [(grid[0], cluster[0]) for _, grid, _, _, cluster, _ in fake.launches] == [(16, 1), (4, 2), (4, 2), (1, 1), (16, 1)]
    np.testing.assert_array_equal(bare.gpu.device.copy_out(out, 16, np.uint32), [9] * 4 + [7] * 11 + [3])
    bare.gpu.device.free(out)


def blocks_that_take_work_in_turn_are_no_more_than_fit(fake: FakeState) -> None:
    """Of a device of 3 multiprocessors, and of one on which one cluster of two fits: the results are those of any grid."""
    case, dims = product("m k,n k,m n"), {"M": 200, "N": 136, "K": 72}
    arrays = [random(t, dims, i) for i, t in enumerate((*case.inputs, *case.results))]
    wanted = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64).T
    for cluster, multiprocessors, most in ((1, 3, 3), (2, 3, 2), (2, 40, 12)):
        fake.multiprocessors = multiprocessors
        timer = KernelTimer(CudaDevice())
        built = build(case.text, f"wgmma{{bm=64 bn=64 consumers=1 stages=8 blocks=40 cluster-m={cluster}}}", "sm_90a")
        fake.launches.clear()
        assert np.abs(timer.run(built.kernel, built.code, dims, arrays)[-1] - wanted).max() < 1e-4
        assert [grid[0] for _, grid, *_ in fake.launches] == [most]
    fake.multiprocessors = 132


def grids_beyond_31_bits_are_refused_and_errors_stop_what_follows(fake: FakeState) -> None:
    bare = Bare(fake)
    fake.launches.clear()
    bare.launch(513, (1 << 32, 1, 1), [0, 0])
    assert (bare.word("error"), bare.word("site")) == (1, 513)
    bare.launch(513, (1, 1, 1), [0, 0])
    assert not fake.launches


def maps_are_as_the_emulators(fake: FakeState) -> None:
    """Sizes of one, empty tensors, every swizzle and type: the words of the native program and TensorMap mean the same."""
    bare = Bare(fake)
    encode = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(bare.functions["tw_cuda_tensor_map"])
    room = (ctypes.c_uint8 * 256)()
    target = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    address = bare.gpu.device.alloc(1 << 16)
    bare.arena[0] = address + 1024
    cases = [(0, 128, [(64, 1, 64), (48, 64, 32)]), (1, 64, [(40, 1, 32), (1, 7, 1), (5, 120, 8)]),
             (2, 32, [(16, 1, 8), (9, 16, 4)]), (5, 0, [(64, 1, 16)]), (6, 0, [(8, 1, 4), (0, 8, 2)]),
             (7, 0, [(8, 1, 2), (3, 8, 1), (4, 32, 2), (2, 128, 1), (2, 256, 1)])]
    for dtype, swizzle, axes in cases:
        words = [address, dtype, len(axes), swizzle, *(x for axis in axes for x in axis)]
        encode(bare.table, target, (ctypes.c_int64 * len(words))(*words))
        assert not bare.word("error"), axes
        empty = any(size == 0 for size, _, _ in axes)
        wanted = TensorMap.from_words([bare.arena[0] if empty else address, *words[1:]])
        assert ctypes.string_at(target, 128) == fake.devices[0].tensor_map(wanted)
        assert bare.gpu.device.tensor_map(wanted) == fake.devices[0].tensor_map(wanted)
    encode(bare.table, target, (ctypes.c_int64 * 10)(address + 8, 0, 2, 0, 64, 1, 64, 48, 64, 32))
    assert (bare.word("error"), ctypes.c_int64(bare.word("site")).value) == (1, -1)


def maps_are_kept_by_what_they_are_made_of(fake: FakeState) -> None:
    """More of them than there are places: a map is made again only where another took its place, and is always the right one."""
    bare = Bare(fake)
    kept = (ctypes.c_uint64 * (KEPT_WORDS * KEPT_MAPS))()
    bare.words[CONTEXT_FIELDS.index("maps")] = ctypes.addressof(kept)
    encode = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(bare.functions["tw_cuda_tensor_map"])
    room = (ctypes.c_uint8 * 256)()
    target = ctypes.addressof(room) + -ctypes.addressof(room) % 64
    address = bare.gpu.device.alloc(1 << 16)
    plain = [address, 0, 2, 0, 64, 1, 64, 48, 64, 32]
    changed = [[address + 16, *plain[1:]], *([*plain[:n], value, *plain[n + 1 :]] for n, value in
                                             ((1, 1), (3, 128), (4, 48), (6, 32), (7, 47), (8, 80), (9, 16)))]
    many = [[address + 16 * n, *plain[1:]] for n in range(2, KEPT_MAPS + 200)]

    def calls(words: list[int]) -> int:
        before = fake.calls("cuTensorMapEncodeTiled")
        encode(bare.table, target, (ctypes.c_int64 * len(words))(*words))
        assert not bare.word("error")
        assert ctypes.string_at(target, 128) == fake.devices[0].tensor_map(TensorMap.from_words(words))
        return fake.calls("cuTensorMapEncodeTiled") - before

    for words in [plain, *changed]:
        assert [calls(words) for _ in range(2)] == [1, 0], words
    assert sum(map(calls, many)) == len(many)
    assert 200 <= sum(map(calls, many)) < len(many)
    empty = [*plain[:7], 0, *plain[8:]]
    bare.arena[0] = address
    encode(bare.table, target, (ctypes.c_int64 * 10)(*empty))
    bare.arena[0] = address + 1024
    encode(bare.table, target, (ctypes.c_int64 * 10)(*empty))
    assert ctypes.string_at(target, 128) == fake.devices[0].tensor_map(TensorMap.from_words([address + 1024, *empty[1:]]))


def single_kernels_through_the_device(fake: FakeState) -> None:
    device = CudaDevice()
    square = "m k,k n,m n"
    cases: list[tuple[Any, str, dict[str, int]]] = [
        (contraction(square), "simt{bm=32 bn=64 bk=16 tm=4 tn=4}", {"M": 36, "N": 60, "K": 20}),
        (contraction(square), "simt{bm=32 bn=32 bk=8 tm=4 tn=4 split-k=4}", {"M": 36, "N": 40, "K": 100}),
        (product(square), "mma{bm=32 bn=32 bk=32 wm=16 wn=32 stages=2}", {"M": 40, "N": 56, "K": 72}),
        (product(square), "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=2}", {"M": 136, "N": 72, "K": 200}),
        (rows("softmax"), "gpu_rows{vec=1}", {"M": 5, "N": 37}),
    ]
    for case, config, dims in cases:
        assert check(case.text, config, case.inputs, case.results, dims, case.reference, arch="sm_90a", device=device)
    device.close()
    assert not fake.errors


def kernels_are_timed(fake: FakeState) -> None:
    """The fake clock counts a microsecond a launch; operands rotate over twice the cache."""
    timer = KernelTimer(CudaDevice())
    case, dims = product("m k,k n,m n"), {"M": 64, "N": 64, "K": 64}
    built = build(case.text, "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=2}", "sm_90a")
    arrays = [random(t, dims, i) for i, t in enumerate((*case.inputs, *case.results))]
    wanted = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    assert np.abs(timer.run(built.kernel, built.code, dims, arrays)[-1] - wanted).max() < 1e-4
    timer.device.sync()
    gc.collect()  # what earlier scenarios left
    before = len(fake.live)
    fake.launches.clear()
    found = timer.time(built.kernel, built.code, dims, arrays, repeats=3, seconds=2e-5)
    np.testing.assert_allclose(found, [1e-6] * 3, rtol=1e-5)
    assert len(fake.launches) == 2 * (1 + 2 * (1 << 16) // sum(a.nbytes for a in arrays))  # once to load, once recorded
    timer.device.sync()
    copies = len(fake.live) - before
    assert copies == 3 * len(fake.launches) // 2
    for given in (arrays, [a + 1 for a in arrays]):  # the same stay; others take their place
        timer._room = 0
        timer.time(built.kernel, built.code, dims, given, repeats=1, seconds=2e-5)
        timer.device.sync()
        assert len(fake.live) - before == copies
    (takes,) = timer.resources(built.kernel, built.code)
    assert (takes.registers, takes.resident_blocks) == (40, 232448 // built.kernel.shared_bytes)


def strided_operands_keep_their_strides(fake: FakeState) -> None:
    timer = KernelTimer(CudaDevice())
    case, dims = contraction("k m,k n,m n"), {"M": 36, "N": 60, "K": 20}
    built = build(case.text, "simt{bm=32 bn=64 bk=16 tm=4 tn=4}", "sm_90a")
    a = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32)[:, :36]
    b = np.random.default_rng(1).standard_normal((20, 60)).astype(np.float32)
    x, _, c = timer.run(built.kernel, built.code, dims, [a, b, np.zeros((36, 64), np.float32)[:, :60]])
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x, a)


def kernels_are_loaded_when_first_launched(fake: FakeState) -> None:
    from cuda_fake.models import CHAIN, inputs

    fn = tw.compile(CHAIN.replace("40", "44"), {"M": (0, 4096)}, target="cuda:sm_90a")
    loaded = fn._caller.loaded(gpu(0))
    assert loaded.kernels_loaded() == 0
    v = inputs(1)[2]
    for extent, count in ((5, 2), (6, 2), (0, 2)):
        fn(np.ones((extent, 44), np.float32), np.ones((44, 24), np.float32), v)
        assert loaded.kernels_loaded() == count
    assert sum(len(fn.program.tables[c.table].kernels) for c in fn.program.calls) > 2


def machine_code_is_taken_where_it_fits_and_the_driver_reads_it(fake: FakeState, folder: Path) -> None:
    fn, given = models.chain(), models.inputs(5)
    images = [GpuImage.of(bytes(fn._bundle.code[k.object])) for t in fn.program.tables for k in t.kernels]
    if find_tool("ptxas") is None:
        assert not any(i.cubin for i in images)
        return
    assert all(i.cubin[:4] == b"\x7fELF" and i.arch == "sm_90a" for i in images)
    fn.save(folder / "chain.tw")
    fake.libraries.clear()
    np.testing.assert_array_equal(tw.load(folder / "chain.tw")(*given), models.product(*given))
    assert fake.libraries and all(library.assembled for library in fake.libraries)
    fake.libraries.clear()
    fake.assembled.clear()
    loaded = load_image(images[0].stored(), "sm_90a")
    fake.assembled.clear()  # as a driver older than the toolkit
    symbol = next(k.symbol for t in fn.program.tables for k in t.kernels)
    assert loaded.kernel(symbol).core.handle and [library.assembled for library in fake.libraries] == [False]
    fake.libraries.clear()
    assert load_image(images[0].stored(), "sm_100a").kernel(symbol).core.handle
    assert [library.assembled for library in fake.libraries] == [False]


def functions_are_kept_by_image(fake: FakeState) -> None:
    device = CudaDevice()
    images = [device.load(text.encode()) for text in (FILL, FILL + "\n")]
    out = device.alloc(16)
    for value, image in enumerate(images):
        device.launch(image.kernel("fill"), (4, 1, 1), (1, 1, 1), 0, [out, value])
        assert device.copy_out(out, 4, np.uint32).tolist() == [value] * 4
    before = fake.calls("cuKernelGetFunction")
    device.launch(images[1].kernel("fill"), (4, 1, 1), (1, 1, 1), 0, [out, 9])
    assert fake.calls("cuKernelGetFunction") == before
    again = device.load(FILL.encode())
    device.launch(again.kernel("fill"), (4, 1, 1), (1, 1, 1), 0, [out, 7])
    assert device.copy_out(out, 4, np.uint32).tolist() == [7] * 4
    assert fake.calls("cuKernelGetFunction") == before + 1
    device.close()
