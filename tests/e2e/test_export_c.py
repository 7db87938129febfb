"""Models as C libraries: the example, and calls by the header, give what Python gives."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from floats import mode, state
from msgspec.structs import replace

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.cli.main import main
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.export.c_library import write_c_library
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.artifact import Bundle
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler `cc` on PATH")
ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(3)
OK, BAD_ARGUMENT, BAD_DIM, BAD_SHAPE, CHECK_FAILED, MISALIGNED, OVERLAP, SMALL_ARENA = range(8)
UNSUPPORTED_CPU = 9


def built(g: ops.Graph | str, dims: Mapping[str, tw.Dim | tuple[int, int]], **given: Any) -> CompiledFunction:
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")), threads=2)
    return tw.compile(g, dims, options=options, **given)


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


class Model:
    """A library through its C functions."""

    def __init__(self, library: Path, program: Program) -> None:
        self.name, self.program, self.dll = library.stem.removeprefix("lib"), program, ctypes.CDLL(str(library))

    def __call__(self, function: str, *args: Any) -> int:
        return int(getattr(self.dll, f"{self.name}_{function}")(*args))

    def error(self) -> str:
        last = getattr(self.dll, f"{self.name}_last_error")
        last.restype = ctypes.c_char_p
        return str(last().decode())

    def arena_bytes(self, dims: Sequence[int], threads: int = 0) -> int:
        found = ctypes.c_int64()
        assert self("arena_bytes", words(dims), threads, ctypes.byref(found)) == OK
        return found.value

    def infer(self, dims: Sequence[int]) -> tuple[int, list[list[int]]]:
        """The status, and the extents of the outputs."""
        shapes = [words([-1] * len(a.dims or ())) for a in self.program.outputs]
        status = self("infer_shapes", words(dims), None, pointers(shapes))
        return status, [list(s)[: len(a.dims or ())] for s, a in zip(shapes, self.program.outputs, strict=True)]

    def run(self, dims: Sequence[int], inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]],
            arena: int | None = None, size: int = 0, threads: int = 0) -> int:
        memory = ctypes.c_void_p(arena), ctypes.c_int64(size)
        return self("run", words(dims), pointers(inputs), pointers(outputs), *memory, threads)


def words(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def pointers(memory: Sequence[Any]) -> Any:
    places = [m.ctypes.data if isinstance(m, np.ndarray) else ctypes.addressof(m) for m in memory]
    return (ctypes.c_void_p * max(len(places), 1))(*places)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that takes no warning."""
    path = tmp_path_factory.mktemp("cc") / "cc"
    path.write_text('#!/bin/sh\nexec cc -Wall -Wextra -Werror -Wno-cast-function-type "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def mlp() -> CompiledFunction:
    """Two layers with a temporary between them, weights as constants, rows counted by a scalar, a cache that is donated."""
    g = ops.Graph()
    x, cache, length = g.input("x", ["M", 24]), g.input("cache", [16, "N"]), g.dim("L")
    hidden = ops.dense(x, g.input("w", [24, 40]), g.input("b", [40]), "relu")
    g.output(ops.softmax(ops.matmul(hidden, g.input("v", [40, 10]))), ops.sum(ops.slice(cache, [None, None], [length, None]), 0),
             cache * 0.5)
    names = {f"arg{3 + i}": a for i, a in enumerate((f32(24, 40), f32(40), f32(40, 10)))}
    return built(g, {"M": (0, 64), "N": (1, 20), "L": (0, 16)}, constants=names, donate=("arg1",))


@pytest.fixture(scope="module")
def folder(mlp: CompiledFunction, strict: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "c"
    mlp.export_c(folder, name="mlp", compiler=strict)
    return folder


@pytest.fixture(scope="module")
def model(mlp: CompiledFunction, folder: Path) -> Model:
    return Model(folder / "libmlp.so", mlp.program)


def arguments(m: int, n: int, length: int) -> list[np.ndarray[Any, Any]]:
    return [f32(m, 24), f32(16, n), np.asarray(length, np.int64)]


def results(m: int, n: int) -> list[np.ndarray[Any, Any]]:
    return [np.full((m, 10), 7, "f4"), np.full(n, 7, "f4"), np.full((16, n), 7, "f4")]


def dims_of(model: Model, **values: int) -> list[int]:
    return [values[d.name] for d in model.program.dims]


def test_the_example_at_several_shapes(mlp: CompiledFunction, folder: Path, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler `c++` on PATH")
    program = tmp_path / "example"
    subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", str(folder / "example.cpp"), "-o", str(program),
                    f"-L{folder}", "-lmlp", f"-Wl,-rpath,{folder}"], check=True)  # fmt: skip
    for m, n, length in ((0, 1, 0), (1, 3, 16), (7, 20, 5), (64, 8, 11)):
        given = arguments(m, n, length)
        for argument, array in zip(mlp.inputs, given, strict=True):
            (tmp_path / f"{argument.name}.bin").write_bytes(array.tobytes())
        values = {"M": m, "N": n, "L": length}
        command = [str(program), *(str(values[d.name]) for d in mlp.program.dims), str(tmp_path)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        wanted = mlp(given[0], given[1].copy(), length)
        lines = [f"{o.name}: {' '.join(map(str, w.shape))}" for o, w in zip(mlp.outputs, wanted, strict=True)]
        assert printed.splitlines() == lines
        for argument, array in zip(mlp.outputs, wanted, strict=True):
            got = np.frombuffer((tmp_path / f"{argument.name}.bin").read_bytes(), "f4").reshape(array.shape)
            np.testing.assert_array_equal(got, array)
    done = subprocess.run([str(program), *["65"] * 3], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "= 65; wanted 0..64" in done.stderr
    assert subprocess.run([str(program)], capture_output=True, check=False).returncode == 2


def test_the_library_shows_its_functions_and_aligns_its_constants(folder: Path) -> None:
    shown = subprocess.run(["nm", "-D", "--defined-only", str(folder / "libmlp.so")], check=True, capture_output=True, text=True)
    assert {line.split()[2].partition("_")[0] for line in shown.stdout.splitlines()} == {"mlp"}
    inside = subprocess.run(["nm", str(folder / "libmlp.so")], check=True, capture_output=True, text=True).stdout
    places = [line.split()[0] for line in inside.splitlines() if "tw_constant_" in line]
    assert len(places) == 3 and all(int(p, 16) % 64 == 0 for p in places)


def test_what_the_library_tells_of_itself(model: Model, folder: Path, tmp_path: Path) -> None:
    """In C as old as C99, through the header."""
    (tmp_path / "tell.c").write_text("""
#include <stdio.h>
#include "mlp.h"
#include "mlp.h"
static void tell(const tw_argument *table, int count) {
  for (int i = 0; i < count; i++) {
    printf("%s %d %d", table[i].name, table[i].dtype == TW_F32 ? 32 : table[i].dtype == TW_I64 ? 64 : 0, table[i].element_bytes);
    for (int j = 0; j < table[i].rank; j++) printf(" %s", table[i].extents[j]);
    puts("");
  }
}
int main(void) {
  const tw_dim *dims;
  const tw_argument *inputs, *outputs;
  int count = mlp_dims(&dims);
  for (int i = 0; i < count; i++) printf("%s %d %d\\n", dims[i].name, (int)dims[i].lowest, (int)dims[i].highest);
  int many = mlp_inputs(&inputs);
  tell(inputs, many);
  many = mlp_outputs(&outputs);
  tell(outputs, many);
  printf("%d %s\\n", mlp_abi() == TILEWRIGHT_ABI && mlp_dims(0) == count, mlp_error_string(TW_OVERLAP));
  return 0;
}
""")
    subprocess.run(["cc", "-std=c99", "-pedantic", "-Wall", "-Werror", f"-I{folder}", "tell.c", "-o", "tell",
                    f"-L{folder}", "-lmlp", f"-Wl,-rpath,{folder}"], check=True, cwd=tmp_path)  # fmt: skip
    lines = subprocess.run([str(tmp_path / "tell")], check=True, capture_output=True, text=True).stdout.splitlines()
    program = model.program
    assert lines[: len(program.dims)] == [f"{d.name} {d.lo} {d.hi}" for d in program.dims]
    wanted = [" ".join([a.name, str(8 * a.dtype.bytes), str(a.dtype.bytes), *(a.dims or ())])
              for a in (*program.inputs, *program.outputs)]
    assert lines[len(program.dims) : -1] == wanted
    assert lines[-1] == "1 an output shares memory with an input or with another output"


def test_dims_are_read_off_shapes(model: Model) -> None:
    """The dim that a scalar gives stays as it was."""
    dims = words(dims_of(model, M=-1, N=-1, L=5))
    assert model("read_dims", pointers([words([7, 24]), words([16, 9]), words([])]), dims) == OK
    assert list(dims) == dims_of(model, M=7, N=9, L=5)
    assert model("read_dims", pointers([words([7, 25]), words([16, 9]), words([])]), dims) == BAD_SHAPE
    assert model.error() == f"input {model.program.inputs[0].name}, axis 1: wanted extent 24 (24), got 25"
    assert model("read_dims", pointers([words([65, 24]), words([16, 9]), words([])]), dims) == BAD_DIM
    assert model("read_dims", pointers([words([-7, 24]), words([16, 9]), words([])]), dims) == BAD_SHAPE
    assert model("read_dims", None, dims) == BAD_ARGUMENT
    assert model("read_dims", (ctypes.c_void_p * 3)(), dims) == BAD_ARGUMENT and "is null" in model.error()


def test_calls_that_do_not_fit_are_refused_and_change_nothing(model: Model) -> None:
    dims = dims_of(model, M=5, N=9, L=3)
    given, made = arguments(5, 9, 3), results(5, 9)
    size = model.arena_bytes(dims)
    memory = np.zeros(size + 128, np.uint8)
    arena = memory.ctypes.data + -memory.ctypes.data % 64

    def refused(status: int, says: str, **changed: Any) -> None:
        call = {"dims": dims, "inputs": given, "outputs": made, "arena": arena, "size": size, **changed}
        assert model.run(**call) == status
        assert says in model.error()
        assert all((array == 7).all() for array in made)

    refused(BAD_DIM, "dim M = 65; wanted 0..64", dims=dims_of(model, M=65, N=9, L=3))
    refused(BAD_DIM, "dim N = 0; wanted 1..20", dims=dims_of(model, M=5, N=0, L=3))
    refused(BAD_SHAPE, "they must be equal", dims=dims_of(model, M=5, N=9, L=4))
    refused(MISALIGNED, "wanted a multiple of 64 bytes", arena=arena + 4)
    refused(SMALL_ARENA, f"{size - 1} bytes; wanted {size}", size=size - 1)
    refused(BAD_ARGUMENT, "threads = -1", threads=-1)
    shifted = np.zeros(5 * 24 * 4 + 1, np.uint8)[1:]
    refused(MISALIGNED, f"input {model.program.inputs[0].name}", inputs=[shifted, *given[1:]])
    refused(OVERLAP, "shares memory with input", outputs=[given[0], *made[1:]])
    refused(OVERLAP, "share memory", outputs=[made[0], made[2], made[2]])
    assert model("run", words(dims), None, pointers(made), None, ctypes.c_int64(0), 0) == BAD_ARGUMENT
    assert model("run", None, pointers(given), pointers(made), None, ctypes.c_int64(0), 0) == BAD_ARGUMENT
    assert model("run", words(dims), (ctypes.c_void_p * 3)(), pointers(made), None, ctypes.c_int64(0), 0) == BAD_ARGUMENT
    assert model.run(dims, given, made, arena, size) == OK


def test_a_donated_input_is_its_result(mlp: CompiledFunction, model: Model) -> None:
    given, made = arguments(5, 9, 3), results(5, 9)
    cache = given[1].copy()
    assert model.run(dims_of(model, M=5, N=9, L=3), given, [made[0], made[1], given[1]]) == OK
    np.testing.assert_array_equal(given[1], cache * np.float32(0.5))
    np.testing.assert_array_equal(made[1], mlp(given[0], cache, 3)[1])


def test_calls_at_the_same_time(mlp: CompiledFunction, model: Model) -> None:
    """From more threads than the pool keeps arenas for, with and without arenas of their own."""
    wrong: list[int] = []

    def calls(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            m, n, length = int(rng.integers(0, 65)), int(rng.integers(1, 21)), int(rng.integers(0, 17))
            given = [rng.standard_normal((m, 24)).astype("f4"), rng.standard_normal((16, n)).astype("f4"), np.asarray(length)]
            made, dims = results(m, n), dims_of(model, M=m, N=n, L=length)
            size = model.arena_bytes(dims)
            memory = np.empty(size + 64, np.uint8)
            arena = memory.ctypes.data + -memory.ctypes.data % 64 if seed % 2 else None
            status = model.run(dims, given, made, arena, size if arena else 0, threads=seed % 3)
            wanted = mlp(given[0], given[1].copy(), length)
            if status or not all(np.array_equal(a, b) for a, b in zip(made, wanted, strict=True)):
                wrong.append(seed)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["up, both", "to zero", "traps"])
def test_the_mode_of_the_caller_changes_no_bits_and_stays(model: Model, name: str) -> None:
    given, dims = [f32(64, 24) * np.float32(1e-19), *arguments(5, 20, 2)[1:]], dims_of(model, M=64, N=20, L=2)
    size = model.arena_bytes(dims)
    memory = np.empty(size + 64, np.uint8)
    arena = memory.ctypes.data + -memory.ctypes.data % 64
    wanted, *made = (results(64, 20) for _ in range(3))
    assert model.run(dims, given, wanted) == OK
    with mode(name):
        kept = state()
        found = [model.run(dims, given, made[0]), model.run(dims, given, made[1], arena, size, 1),
                 model.run(dims, given, made[0], 1), state()]
    assert found == [OK, OK, MISALIGNED, kept]
    for some in made:
        assert [a.tobytes() for a in some] == [a.tobytes() for a in wanted]


def test_a_scalar_without_a_sign(mlp: CompiledFunction, tmp_path: Path, strict: str) -> None:
    *tensors, length = mlp.inputs
    program = replace(mlp.program, inputs=(*tensors, replace(length, dtype=DType.U8)))
    other = Model(exported(mlp, program, tmp_path, "unsigned", strict), program)
    given = [f32(5, 24), f32(16, 9), np.asarray(200, np.uint8)]
    assert other.run(dims_of(other, M=5, N=9, L=4), given, results(5, 9)) == BAD_SHAPE
    assert " is 200 and dim L is 4" in other.error()


def test_a_model_without_dims(tmp_path: Path, strict: str) -> None:
    g = ops.Graph()
    g.output(g.input("x", [3, 5]) * 2.0)
    fn = built(g, {})
    fn.export_c(tmp_path, name="fixed", compiler=strict)
    x, found = f32(3, 5), np.zeros((3, 5), np.float32)
    assert Model(tmp_path / "libfixed.so", fn.program).run([], [x], [found]) == OK
    assert np.array_equal(found, fn(x))


def test_a_cpu_that_lacks_instructions(mlp: CompiledFunction, tmp_path: Path) -> None:
    """As the compiler makes it that is told that the CPU has none of them."""
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexec cc '-D__builtin_cpu_supports(name)=0' \"$@\"\n")
    compiler.chmod(0o755)
    program = replace(mlp.program, features="+sse3,+avx2,+fma")
    other = Model(exported(mlp, program, tmp_path / "out", "old", str(compiler)), program)
    assert other.run(dims_of(other, M=5, N=9, L=3), arguments(5, 9, 3), results(5, 9)) == UNSUPPORTED_CPU
    assert other.error() == "this CPU has no avx2, which old was compiled for; export the model for this CPU"


@pytest.mark.skipif(not may_use_tiles(), reason="no tile registers here")
def test_tile_registers_are_asked_for(tmp_path: Path) -> None:
    """In a process that nothing else asked for them."""
    g = ops.Graph()
    index, pool = RNG.integers(0, 64, (64, 3, 3, 8), dtype=np.uint8), RNG.integers(-128, 128, (64, 8)).astype(np.int8)
    values, _ = ops.round_to_bits(g.input("x", [1, 8, 8, 64]), 5)
    w = ops.transpose(ops.decode_pool(g.constant(index), g.constant(pool)), (1, 2, 3, 0))
    g.output(ops.conv2d(values, w, layout="nhwc", padding=1))
    fn, x = built(g, {}), f32(1, 8, 8, 64)
    assert any(kernel.tiles for table in fn.program.tables for kernel in table.kernels)
    fn.export_c(tmp_path / "c", name="pooled")
    np.save(tmp_path / "x.npy", x)
    script = f"""
import ctypes, numpy as np
x, y = np.load("{tmp_path}/x.npy"), np.empty((1, 8, 8, 64), "f4")
run = ctypes.CDLL("{tmp_path}/c/libpooled.so").pooled_run
words, null = (ctypes.c_int64 * 1)(), ctypes.c_void_p(None)
each = [(ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y)]
assert run(words, *each, null, ctypes.c_int64(0), 1) == 0
np.save("{tmp_path}/y.npy", y)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert np.array_equal(np.load(tmp_path / "y.npy"), fn(x))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize(("files", "threads"), [
    ({"cpu.max": "150000 100000"}, 1), ({"cpu.max": "max 100000"}, 2),
    ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
])  # fmt: skip
def test_the_default_of_threads_keeps_to_the_control_group(mlp: CompiledFunction, tmp_path: Path, files: Mapping[str, str],
                                                           threads: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\nexec cc '-DCGROUPS=\"{tmp_path}\"' \"$@\"\n")
    compiler.chmod(0o755)
    os.sched_setaffinity(0, sorted(cores := os.sched_getaffinity(0))[:2])
    try:
        other = Model(exported(mlp, mlp.program, tmp_path / "out", f"group{threads}", str(compiler)), mlp.program)
        dims = dims_of(other, M=5, N=9, L=3)
        bytes_of = [other.arena_bytes(dims, n) for n in (0, 1, 2)]
    finally:
        os.sched_setaffinity(0, cores)
    assert bytes_of[0] == bytes_of[min(threads, 2)]
    assert (bytes_of[0] == bytes_of[1]) == (threads == 1)


EXPRS = ("3*M - 2*N", "M*N // 7", "(M - 9) // 4 + 9", "(5 - M) % 6", "ceildiv(M, 4)", "max(M, N, 3)", "min(M*M, 50) + 1",
         "M % (0 - 7) + 7", "(M - 30) // (0 - 5) + 30", "64")


def test_sizes_are_what_python_says(mlp: CompiledFunction, tmp_path: Path, strict: str) -> None:
    """Every form of a size, and inputs whose extents are not the dims themselves."""
    odd = (Argument("a", DType.F32, ("2*M + 1", "N")), Argument("b", DType.I8, ("M", "M + N")),
           Argument('l "1"', DType.I64, None))
    outputs = (Argument("sizes", DType.F32, EXPRS),
               Argument("c?", DType.F64, ("12 // (M - 3)", "1099511627776 // (M*M*N + 1)")))
    fn = mlp.program
    dims = tuple(replace(d, lo=0, hi=1 << 62, at=('l "1"',) if d.name == "L" else ()) for d in fn.dims)
    program = replace(fn, inputs=odd, outputs=outputs[:1], dims=dims, donated=(), out_of_range="fallback")
    other = Model(exported(mlp, program, tmp_path, "odd", strict), program)
    for m, n in ((0, 0), (1, 5), (13, 2), (40, 31), (64, 20)):
        want = [Expr.parse(e).evaluate({"M": m, "N": n}) for e in EXPRS]
        status, shapes = other.infer(dims_of(other, M=m, N=n, L=0))
        assert (status, shapes) == ((OK, [want]) if min(want) >= 0 else (BAD_DIM, [[-1] * len(EXPRS)]))
    read = words(dims_of(other, M=0, N=0, L=2))
    assert other("read_dims", pointers([words([15, 40]), words([7, 47]), words([])]), read) == OK
    assert list(read) == dims_of(other, M=7, N=40, L=2)
    assert other("read_dims", pointers([words([15, 40]), words([7, 46]), words([])]), read) == BAD_SHAPE
    assert other("read_dims", pointers([words([13, 40]), words([7, 47]), words([])]), read) == BAD_SHAPE
    assert other.infer(dims_of(other, M=-1, N=1, L=0))[0] == BAD_DIM and other.error() == "dim M = -1; wanted 0 or more"
    assert other.infer(dims_of(other, M=1 << 33, N=1 << 33, L=0))[0] == BAD_DIM and "63 bits" in other.error()
    program = replace(program, outputs=outputs[1:])
    other = Model(exported(mlp, program, tmp_path, "zero", strict), program)
    assert other.infer(dims_of(other, M=5, N=2, L=0)) == (OK, [[6, (1 << 40) // 51]])
    assert other.infer(dims_of(other, M=3, N=2, L=0))[0] == BAD_DIM
    program = replace(program, dims=tuple(replace(d, multiple_of=4) for d in dims), out_of_range="error")
    other = Model(exported(mlp, program, tmp_path, "DIMS", strict), program)
    assert other.infer(dims_of(other, M=5, N=4, L=0))[0] == BAD_DIM and other.error() == "dim M = 5; wanted a multiple of 4"
    assert other.infer(dims_of(other, M=8, N=4, L=0))[0] == OK


def exported(fn: CompiledFunction, program: Program, folder: Path, name: str, compiler: str) -> Path:
    bundle = Bundle(program, fn._bundle.code, fn._bundle.constants)
    return write_c_library(bundle, folder, name, compiler).library


def test_two_models_in_one_process_and_a_check(mlp: CompiledFunction, model: Model, tmp_path: Path) -> None:
    """The second one, exported by the command, asserts what does not hold at all shapes."""
    fn = built("""
func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %zero = arith.constant 0 : index
  %n = tensor.dim %x, %zero : tensor<?xf32>
  %m = tensor.dim %y, %zero : tensor<?xf32>
  %four = arith.constant 4 : index
  %rest = arith.remui %n, %four : index
  %even = arith.cmpi eq, %rest, %zero : index
  cf.assert %even, "wanted a multiple of four"
  %sum = linalg.add ins(%x, %x : tensor<?xf32>, tensor<?xf32>) outs(%x : tensor<?xf32>) -> tensor<?xf32>
  return %sum : tensor<?xf32>
}""", {"arg0.0": (0, 64), "arg1.0": (0, 64)})
    fn.save(tmp_path / "second model.tw")
    assert main(["export", str(tmp_path / "second model.tw"), "--c", str(tmp_path / "out")]) == 0
    second = Model(tmp_path / "out" / "libsecond_model.so", fn.program)
    x, y, out = f32(8), f32(3), np.empty(8, "f4")
    assert second.run([8, 3], [x, y], [out]) == OK
    np.testing.assert_array_equal(out, x + x)
    assert second.run([7, 3], [f32(7), y], [np.empty(7, "f4")]) == CHECK_FAILED
    assert second.error() == fn.program.checks[0].message
    given, made = arguments(5, 9, 3), results(5, 9)
    assert model.run(dims_of(model, M=5, N=9, L=3), given, made) == OK
    np.testing.assert_array_equal(made[0], mlp(given[0], given[1].copy(), 3)[0])


def test_what_cannot_beexported(mlp: CompiledFunction, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "9lives", "a-b", "tw"):
        with pytest.raises(OptionError, match="C identifier"):
            mlp.export_c(tmp_path, name=name)
    with pytest.raises(BuildError, match=r"no C compiler: no-such-cc .*apt-get install gcc"):
        mlp.export_c(tmp_path, compiler="no-such-cc")
    with pytest.raises(BuildError, match="cannot build the library") as failed:
        mlp.export_c(tmp_path, compiler="false")
    assert "library.c" in failed.value.log
    assert not list(tmp_path.iterdir())
    with pytest.raises(OptionError, match=r"compiled for cuda:sm_90a.*compile for host"):
        exported(mlp, replace(mlp.program, target="cuda:sm_90a"), tmp_path, "gpu", "cc")
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"cannot write to .*file: File exists; choose a folder"):
        mlp.export_c(tmp_path / "file")
    (tmp_path / "not.tw").write_bytes(b"no model")
    assert main(["export", str(tmp_path / "not.tw"), "--c", str(tmp_path)]) == 1
    assert "is not a Tilewright model" in capsys.readouterr().err


def test_the_page_on_deploying(tmp_path: Path) -> None:
    """Its program in C++ compiles and prints what it says; its table lists the functions of the header."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler `c++` on PATH")
    page = (ROOT / "docs" / "deploy.md").read_text()
    blocks = dict(re.findall(r"```(cpp|sh)\n(.*?)```", page, re.DOTALL))
    fn = built(Path(ROOT / "tests" / "data" / "dense_768x2304_dyn_m.mlir").read_text(), {"M": tw.Dim(1, 512, at=("arg0.0",))})
    made = fn.export_c(tmp_path / "dense", name="dense")
    (tmp_path / "main.cpp").write_text(blocks["cpp"])
    subprocess.run(["sh", "-c", blocks["sh"]], cwd=tmp_path, check=True)
    lines = subprocess.run([str(tmp_path / "main")], check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[:3] == ["1 rows: 384", "57 rows: 384", "512 rows: 384"]
    assert lines[3] == "dim M = 513; wanted 1..512, for which dense was compiled"
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert listed == re.findall(r"dense_(\w+)\(", re.sub(r"/\*.*?\*/", "", made.header.read_text(), flags=re.DOTALL))
