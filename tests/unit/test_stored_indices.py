"""Indices of pools in as few bits as they need: as they are stored and read, in files, and where a file's bytes are no such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.artifact import Artifact
from tilewright.runtime.program.stored_indices import may_be_narrow, narrowed, stored_size, widened, widened_size

RNG = np.random.default_rng(3)
K, N = 64, 72
X = RNG.standard_normal((5, K)).astype(np.float32)


@pytest.mark.parametrize("entries", [1, 2, 3, 5, 8, 9, 16, 31, 33, 48, 64, 65, 127, 128])
@pytest.mark.parametrize("size", [0, 8, 16, 4096 * 8, 4096 * 16 + 40])
def test_what_is_stored_is_read_again(entries: int, size: int) -> None:
    given = RNG.integers(0, entries, size).astype(np.uint8)
    stored, found = narrowed(given, entries), np.full(size, 255, np.uint8)
    widened(stored, entries, found)
    assert np.array_equal(found, given)
    bits = max(1, int(np.ceil(np.log2(entries))))
    assert stored.nbytes == stored_size(entries, size) == size * bits // 8 and widened_size(entries, stored.nbytes) == size


def test_the_bits_are_where_the_format_says() -> None:
    given = np.arange(8, dtype=np.uint8) * 9 % 64
    assert narrowed(given, 64).tobytes() == sum(int(v) << 6 * n for n, v in enumerate(given)).to_bytes(6, "little")


def test_what_takes_a_byte() -> None:
    assert may_be_narrow(128, 16) and not may_be_narrow(129, 16) and not may_be_narrow(64, 12) and not may_be_narrow(0, 16)


def test_an_index_beyond_its_pool_is_named() -> None:
    given = np.zeros(4096 * 8 + 8, np.uint8)
    given[32771] = 60
    with pytest.raises(ValueError, match="index 32771 is 60, beyond its pool of 48"):
        widened(narrowed(given, 64), 48, np.empty_like(given))


def weight(entries: int, books: int = 1) -> tuple[ops.Graph, np.ndarray]:
    """A product with a weight out of pools, and what it has to give."""
    g = ops.Graph()
    indices = [RNG.integers(0, entries, (N, K // 8)).astype(np.uint8) for _ in range(books)]
    pools = [RNG.integers(-127, 128, (entries, 8)).astype(np.int8) for _ in range(books)]
    w = ops.decode_pool([g.constant(i) for i in indices], [g.constant(p) for p in pools], 0.01)
    g.output(ops.matmul(g.input("x", ["M", K]), w, transpose_b=True))
    values = sum(p[i].reshape(N, K).astype(np.float64) for i, p in zip(indices, pools, strict=True)) * 0.01
    return g, X @ values.T


@pytest.mark.parametrize("entries,books,narrow", [(16, 1, True), (48, 1, True), (64, 2, True), (128, 1, True), (200, 1, False)])
def test_files_hold_few_bits(entries: int, books: int, narrow: bool, tmp_path: Path) -> None:
    g, wanted = weight(entries, books)
    path = tmp_path / "m.tw"
    tw.compile(g, {"M": (1, 9)}).save(path)
    tw.load(path).save(tmp_path / "again.tw")
    for name in ("m.tw", "again.tw"):
        found = [s for s in Artifact(tmp_path / name).manifest.sections if s.entries]
        assert len(found) == (books if narrow else 0)
        assert all(s.size == 96 * 8 * (entries - 1).bit_length() // 8 and s.entries == entries for s in found)
        for verify in ("lazy", "none", "full"):
            for shared in (False, True):
                fn = tw.load(tmp_path / name, verify=verify, shared=shared)
                assert np.allclose(fn(X), wanted, rtol=1e-4, atol=1e-3)


def test_equal_bytes_of_different_pools_are_stored_alike(tmp_path: Path) -> None:
    g = ops.Graph()
    x, index = g.input("x", ["M", K]), np.full((N, K // 8), 3, np.uint8)
    pools = [RNG.integers(-127, 128, (n, 8)).astype(np.int8) for n in (16, 64)]
    for pool in pools:
        g.output(ops.matmul(x, ops.decode_pool([g.constant(index.copy())], [g.constant(pool)], 0.01), transpose_b=True))
    tw.compile(g, {"M": (1, 9)}).save(tmp_path / "m.tw")
    for found, pool in zip(tw.load(tmp_path / "m.tw")(X), pools, strict=True):
        assert np.allclose(found, X @ (pool[index].reshape(N, K) * 0.01).T, rtol=1e-4, atol=1e-3)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A model whose indices are all ones."""
    path = tmp_path / "m.tw"
    tw.compile(weight(48)[0], {"M": (1, 9)}).save(path)
    opened = Artifact(path)
    (section,) = [s for s in opened.manifest.sections if s.entries]
    content = bytearray(path.read_bytes())
    content[opened.start + section.offset : opened.start + section.offset + section.size] = b"\xff" * section.size
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("shared", [False, True])
def test_damaged_bytes_are_named(damaged: Path, shared: bool) -> None:
    with pytest.raises(ArtifactError, match=r"section constant/.*/48 does not match its hash"):
        tw.load(damaged, shared=shared)(X)
    with pytest.raises(ArtifactError, match=r"section constant/.*/48: index 0 is 63, beyond its pool of 48"):
        tw.load(damaged, shared=shared, verify="none")(X)


def test_a_file_is_as_large_as_its_indices_say(tmp_path: Path) -> None:
    """A pool of 64 takes three quarters of the bytes that one of 256 takes."""
    sizes = []
    for entries in (64, 256):
        g = ops.Graph()
        w = ops.decode_pool([g.constant(RNG.integers(0, 64, (1024, 128)).astype(np.uint8))],
                            [g.constant(np.zeros((entries, 8), np.int8))], 0.01)
        g.output(ops.matmul(g.input("x", ["M", 1024]), w, transpose_b=True))
        tw.compile(g, {"M": (1, 2)}).save(tmp_path / "m.tw")
        sizes.append(sum(s.size for s in Artifact(tmp_path / "m.tw").manifest.sections if s.name.startswith("constant/")))
    assert sizes == [1024 * 128 * 6 // 8 + 64 * 8, 1024 * 128 + 256 * 8]
