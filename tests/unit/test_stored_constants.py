"""Constants exist once while a model is compiled and stored, and what their owners do afterwards changes nothing."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import bundles, ops
from tilewright.compiler.builder.cache import Cache
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.builder.model_cache import ModelCache
from tilewright.compiler.bundles import compile_bundle, in_memory
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.constants.stored_constants import StoredConstants
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.artifact import ALIGNMENT, Bundle, raw_bytes
from tilewright.runtime.program.artifact_writer import write_artifact
from tilewright.runtime.program.program import Program
from tilewright.runtime.target import Target

LAYERS, WIDTH = 12, 512
KEY = "ab" * 32


class Compiled:
    """A chain of layers with packed weights and biases as they are, compiled in this process."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        graph = ops.Graph()
        self.constants: dict[str, np.ndarray] = {}
        x = graph.input("x", ["M", WIDTH])
        for i in range(LAYERS):
            w, b = graph.input(f"w{i}", [WIDTH, WIDTH]), graph.input(f"b{i}", [WIDTH])
            x = ops.dense(x, w, b)
            self.constants[f"w{i}"] = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 32
            self.constants[f"b{i}"] = rng.standard_normal(WIDTH, dtype=np.float32)
        graph.output(x)
        self.bytes = sum(a.nbytes for a in self.constants.values())
        options = CompileOptions(builder=LocalBuilder(Target.parse("host")))
        self.compilation = Compilation(graph, {"M": (1, 8)}, full_target("host"), options, self.constants)
        self.bundle, self.traced = traced(lambda: compile_bundle(self.compilation))


def traced(work):  # type: ignore[no-untyped-def]
    """What `work` gives, and the most bytes that Python and numpy held on its way."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled()


def without_constants(bundle: Bundle) -> Program:
    return msgspec.structs.replace(bundle.program, constants=())


def cache(tmp_path: Path, limit: int = 1 << 30) -> ModelCache:
    return ModelCache(Cache(tmp_path, limit))


def test_a_compile_holds_no_second_copy(compiled: Compiled) -> None:
    one = WIDTH * WIDTH * 4
    assert compiled.bytes > 11 * one
    assert compiled.traced < 0.6 * compiled.bytes  # the code of passes and kernels, and the constant at hand
    key, memory = traced(compiled.compilation.key)
    assert key and memory < one


def test_a_stored_model_maps_its_constants(compiled: Compiled, tmp_path: Path) -> None:
    stored, memory = traced(lambda: cache(tmp_path).put(KEY, compiled.bundle))
    assert memory < 0.4 * compiled.bytes
    assert isinstance(stored, Bundle) and set(stored.constants) == set(compiled.bundle.constants)
    for digest, data in stored.constants.items():
        assert isinstance(data, memoryview) and data.readonly
        assert raw_bytes(data) == raw_bytes(compiled.bundle.constants[digest])


def test_no_room_in_the_cache_leaves_them_in_memory(compiled: Compiled, tmp_path: Path) -> None:
    assert cache(tmp_path, limit=compiled.bytes // 2).put(KEY, compiled.bundle) is None
    assert cache(tmp_path, limit=compiled.bytes + 1).put(KEY, compiled.bundle) is None  # no room for its code
    assert cache(tmp_path, limit=0).put(KEY, replace(compiled.bundle, program=without_constants(compiled.bundle))) is None
    assert not [f for f in tmp_path.rglob("*") if f.is_file()]
    held, memory = traced(lambda: in_memory(compiled.bundle))
    assert memory < 1.3 * compiled.bytes
    given = [raw_bytes(a) for a in compiled.constants.values()]
    for digest, data in held.constants.items():
        assert isinstance(data, np.ndarray) and data.ctypes.data % ALIGNMENT == 0
        assert not any(np.shares_memory(data, np.frombuffer(g, np.uint8)) for g in given), digest


def test_arrays_that_change_meanwhile_are_told_of(compiled: Compiled, tmp_path: Path) -> None:
    digest = compiled.bundle.program.constants[0].digest
    assert isinstance(compiled.bundle.constants, StoredConstants)
    array, layout = compiled.bundle.constants.sources[digest]
    changed = Bundle(compiled.bundle.program, compiled.bundle.code,
                     StoredConstants({**compiled.bundle.constants.sources, digest: (array + 1, layout)}))
    with pytest.raises(ArtifactError, match=r"constant/.*has changed since"):
        write_artifact(tmp_path / "model.tw", [changed])
    assert not list(tmp_path.iterdir())
    with pytest.warns(UserWarning, match="has changed since"):
        assert cache(tmp_path / "cache").put(KEY, changed) is None


@pytest.mark.parametrize("builds_here", [True, False])
def test_the_owner_may_change_an_array_later(builds_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = ops.Graph()
    graph.output(graph.input("x", ["M", 4]) + graph.input("b", [4]))
    bias = np.arange(4, dtype=np.float32)
    options = CompileOptions(builder=LocalBuilder(Target.parse("host"))) if builds_here else None
    fn = tw.compile(graph, {"M": (1, 8)}, constants={"b": bias}, options=options)
    x, wanted = np.ones((2, 4), np.float32), 1 + np.arange(4, dtype=np.float32)
    bias[:] = -7
    np.testing.assert_array_equal(fn(x), np.stack([wanted, wanted]))
    fn.save(tmp_path / "model.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "model.tw")(x), np.stack([wanted, wanted]))


def test_a_transposed_array_is_bound_as_it_is() -> None:
    w = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32).T
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["M", 64]), graph.input("w", [64, 96])))
    options = CompileOptions(builder=LocalBuilder(Target.parse("host")))
    fn = tw.compile(graph, {"M": (1, 8)}, constants={"w": w}, options=options)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose(fn(x), x @ w, rtol=1e-4, atol=1e-4)


def test_a_compile_for_another_device_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    graph = ops.Graph()
    graph.output(ops.relu(graph.input("x", ["T", 8])))
    compilation = Compilation(graph, {"T": tw.Dim(1, 4)}, Target.parse("cuda:sm_90a"))
    made = bundles.bundle_of(compilation)
    monkeypatch.delattr(bundles, "compile_bundle")
    found = bundles.bundle_of(compilation)
    assert found.program == made.program and found.program.target == "cuda:sm_90a"
    assert {d: bytes(c) for d, c in found.code.items()} == {d: bytes(c) for d, c in made.code.items()}
