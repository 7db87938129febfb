"""Random products and convolutions with weights in few bits and out of pools, against float64 or integers.

    python -m tools.few_bits [--cases 500] [--seed 0] [--target host:x86-64-v3] [--until 250]

Each model has a random format (1 to 8 bits with groups, scales and zero points, rows of f32 or bytes, some rows by two weights;
pools of 2 to 256 vectors, one to three books, of f32, f16 or bytes, rows or images of f32 or rounded to 1 to 8 bits), a random
shape with tails, and is called with several numbers of rows; a call is a case. Products of integers are to be exact, others
within a bound by their terms' magnitudes. Prints what was wrong and a line of counts; the exit code is 1 where anything was. A
model follows from its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops.packed_weight import packed

_ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33)
_FLOAT, _BYTES = 3e-6, 2e-5  # of the terms' magnitudes; where rows are scaled group by group
_WINDOW = 3


@dataclass(frozen=True)
class Outcome:
    """kind: of the model. wrong: what was, empty where nothing."""

    kind: str
    wrong: str = ""


@dataclass(frozen=True)
class Pooled:
    """A weight out of pools: what `decode_pool` is given, and its values, [n, ..., c]."""

    index: list[np.ndarray]
    pools: list[np.ndarray]
    scale: np.ndarray | float
    value: np.ndarray

    @staticmethod
    def random(rng: np.random.Generator, shape: tuple[int, ...], element: str, plain: bool) -> Pooled:
        """plain: with no scale."""
        books, entries = int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([2, 3, 8, 16, 37, 64, 128, 256]))
        index = [rng.integers(0, entries, (*shape[:-1], shape[-1] // 8), dtype=np.uint8) for _ in range(books)]
        drawn = [rng.integers(-128, 128, (entries, 8)) for _ in range(books)]
        pools = [(d if element == "i1" else d / 50).astype(element) for d in drawn]
        value = sum(p.astype(np.float64)[i].reshape(shape) for p, i in zip(pools, index, strict=True))
        choice = 0 if plain else int(rng.integers(3))
        scale: np.ndarray | float = 1.0 if choice == 0 else 0.25 if choice == 1 else (rng.random(shape[0]) + 0.5).astype("f4")
        wide = scale if isinstance(scale, float) else scale.astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
        return Pooled(index, pools, scale, np.asarray(value * wide))

    def decoded(self, g: ops.Graph) -> ops.Tensor:
        rows = self.scale if isinstance(self.scale, np.ndarray) else np.full(1, self.scale)
        scale = g.constant(rows) if len(rows) > 1 else float(rows[0])
        return ops.decode_pool([g.constant(i) for i in self.index], [g.constant(p) for p in self.pools], scale)


def products_of_pools(rng: np.random.Generator, target: str) -> Iterator[Outcome]:
    """Rows of f32."""
    n, k, element = int(rng.integers(2, 150)), 8 * int(rng.integers(1, 40)), str(rng.choice(["f4", "f2", "i1"]))
    made = Pooled.random(rng, (n, k), element, plain=False)
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["M", k]), made.decoded(g), transposed=True))
    fn = tw.compile(g, {"M": (0, 40)}, target=target)
    for rows in _ROWS:
        x = rng.standard_normal((rows, k)).astype("f4")
        yield _near(f"pool {element} {n}x{k} rows {rows}", fn(x), x @ made.value.T, np.abs(x) @ np.abs(made.value).T, _FLOAT)


def products_of_bits(rng: np.random.Generator, target: str) -> Iterator[Outcome]:
    """Rows rounded to 1 to 8 bits, by pools of bytes: exact."""
    n, k = int(rng.integers(2, 150)), 8 * int(rng.integers(1, 40))
    made = Pooled.random(rng, (n, k), "i1", plain=True)
    g = ops.Graph()
    top = float(1 << 20)
    x = g.input("x", ["M", k])
    values, _ = ops.round_to_bits(x, g.dim("A"), per=str(rng.choice(["row", "tensor"])))
    y = ops.dense(values, made.decoded(g), transposed=True)
    g.output(y)
    g.output(values)
    fn = tw.compile(g, {"M": (1, 40), "A": tw.Dim(1, 8)}, target=target)
    for rows in _ROWS[1:]:
        for bits in range(1, 9):
            x_ = rng.standard_normal((rows, k)).astype("f4")
            got, whole = fn(x_, bits)
            want = np.rint(whole).astype(np.int64) @ np.rint(made.value).astype(np.int64).T
            what = f"bits {bits} {n}x{k} rows {rows} entries {len(made.pools[0])} books {len(made.pools)}"
            if np.abs(whole).max(initial=0) >= 1 << bits:
                yield Outcome("bits", f"{what}: values up to {np.abs(whole).max()}")
            exact = np.abs(want).max(initial=0) < 1 << 24
            same = np.array_equal(got, want) if exact else np.abs(got - want).max() <= np.abs(want).max() / top
            yield Outcome("bits", "" if same else f"{what}: off by {np.abs(got - want).max()}")


def convolutions(rng: np.random.Generator, target: str) -> Iterator[Outcome]:
    """Windows of 1 to 3, steps and padding, channels first or last."""
    f, c = int(rng.integers(1, 70)), 8 * int(rng.integers(1, 5))
    kh, kw = (int(v) for v in rng.integers(1, _WINDOW + 1, 2))
    stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, 2))
    h, w, last = int(rng.integers(3, 12)), int(rng.integers(3, 12)), bool(rng.integers(2))
    made = Pooled.random(rng, (f, kh, kw, c), str(rng.choice(["f4", "i1"])), plain=False)
    g = ops.Graph()
    image = g.input("x", ["B", h, w, c] if last else ["B", c, h, w])
    weight = ops.transpose(made.decoded(g), (1, 2, 3, 0) if last else (0, 3, 1, 2))
    g.output(ops.conv2d(image, weight, layout="nhwc" if last else "nchw", stride=stride, padding=pad))
    fn = tw.compile(g, {"B": (0, 4)}, target=target)
    for count in (0, 1, 2, 3):
        x = rng.standard_normal((count, h, w, c))
        want, room = (_convolved(a, b, stride, pad) for a, b in ((x.astype("f4"), made.value), (np.abs(x), np.abs(made.value))))
        got = fn(np.ascontiguousarray(x.astype("f4") if last else x.astype("f4").transpose(0, 3, 1, 2)))
        what = f"convolution {f}x{kh}x{kw}x{c} of {h}x{w} step {stride} pad {pad} {'last' if last else 'first'} images {count}"
        yield _near(what, got if last else got.transpose(0, 2, 3, 1), want, room, _FLOAT)


def convolutions_of_bits(rng: np.random.Generator, target: str) -> Iterator[Outcome]:
    """Images rounded to 1 to 8 bits, channels last, by pools of bytes: exact."""
    f, c = int(rng.integers(1, 80)), 8 * int(rng.integers(1, 9))
    kh, kw = (int(v) for v in rng.integers(1, _WINDOW + 1, 2))
    stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, 2))
    h, w, images = int(rng.integers(3, 18)), int(rng.integers(3, 18)), int(rng.integers(1, 3))
    made = Pooled.random(rng, (f, kh, kw, c), "i1", plain=True)
    g = ops.Graph()
    values, _ = ops.round_to_bits(g.input("x", [images, h, w, c]), g.dim("A"))
    g.output(ops.conv2d(values, ops.transpose(made.decoded(g), (1, 2, 3, 0)), layout="nhwc", stride=stride, padding=pad))
    g.output(values)
    fn = tw.compile(g, {"A": tw.Dim(1, 8)}, target=target)
    for bits in range(1, 9):
        got, whole = fn(rng.standard_normal((images, h, w, c)).astype("f4"), bits)
        want = _convolved(whole, np.rint(made.value), stride, pad)
        what = (f"whole bits {bits} {f}x{kh}x{kw}x{c} of {images}x{h}x{w} step {stride} pad {pad} entries {len(made.pools[0])} "
                f"books {len(made.pools)}")
        exact = np.abs(want).max(initial=0) < 1 << 24
        same = np.array_equal(got, want) if exact else np.abs(got - want).max() <= np.abs(want).max() / (1 << 20)
        yield Outcome("whole", "" if same else f"{what}: off by {np.abs(got - want).max()}")


def products_of_codes(rng: np.random.Generator, target: str) -> Iterator[Outcome]:
    """1 to 8 bits, with groups and zero points, rows of f32 and of bytes."""
    bits, n = int(rng.integers(1, 9)), int(rng.integers(1, 120))
    group = int(rng.choice([0, 16, 32, 48, 64]))
    k = int(rng.integers(1, 300)) if not group or rng.integers(2) else group * int(rng.integers(1, 7))
    groups = max(1, -(-k // group)) if group else 1
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scale = ((rng.random((n, groups)) + 0.5) / 8).astype("f4")
    zero = [None, "u8", "f4"][int(rng.integers(3))]
    whole, real = rng.integers(0, 1 << bits, (n, groups), dtype=np.uint8), rng.normal(2, 1, (n, groups)).astype("f4")
    points = whole if zero == "u8" else real
    at = np.arange(k) // (group or k)
    middle = points[:, at].astype(np.float64) if zero else float(1 << (bits - 1))
    weight, other = ((c - middle) * scale.astype(np.float64)[:, at] for c in (codes, codes[::-1]))
    twice = n > 1 and bool(rng.integers(2))
    for activations in ("f32", "int8"):
        g = ops.Graph()
        given = [a if groups > 1 else a[:, 0] for a in (scale, *([points] if zero else []))]
        stored = packed(codes, bits)
        if n == 1 and min(a.size for a in (*given, *stored)) == 1:
            return
        kept = [g.constant(np.ascontiguousarray(a)) for a in given]
        w = ops.decode([g.constant(c) for c in stored], kept[0], kept[1] if zero else None, bits=bits, group=group, depth=k)
        given_rows = g.input("x", ["M", k])
        g.output(ops.dense(given_rows, w, transposed=True))
        if twice:
            g.output(ops.dense(given_rows, ops.decode([g.constant(c[::-1].copy()) for c in stored], *kept[:1], *(
                kept[1:] if zero else [None]), bits=bits, group=group, depth=k), transposed=True))
        fn = tw.compile(g, {"M": (0, 40)}, target=target, options={"activations": activations})
        for rows in _ROWS:
            x = rng.standard_normal((rows, k)).astype("f4")
            size = group if group and k % group == 0 else k
            held = _rounded_bytes(x, size) if activations == "int8" else x.astype(np.float64)
            room = np.abs(x.astype(np.float64)) @ np.abs(weight).T
            what = f"codes {bits} bits group {group} zero {zero} {n}x{k} rows {rows} {activations}"
            bound, found = _FLOAT if activations == "f32" else 1 / 127, fn(x)
            yield _near(what, found[0] if twice else found, held @ weight.T, room, bound)
            if twice:
                yield _near(f"codes, twice{what[5:]}", found[1], held @ other.T, np.abs(x.astype(np.float64)) @ np.abs(other).T,
                            bound)


KINDS = (products_of_pools, products_of_bits, convolutions, convolutions_of_bits, products_of_codes)


def _rounded_bytes(x: np.ndarray, size: int) -> np.ndarray:
    """Rows as `activations="int8"` rounds them."""
    parts = x.reshape(len(x), x.shape[1] // size, size).astype(np.float64)
    top = np.abs(parts).max(-1, keepdims=True, initial=1e-30)
    return np.asarray((np.rint(parts * (127 / top)) * top / 127).reshape(x.shape))


def _convolved(x: np.ndarray, weight: np.ndarray, stride: int, pad: int) -> np.ndarray:
    """Channels last, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    _, kh, kw, _ = weight.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (1, 2))[:, ::stride, ::stride]
    return np.asarray(np.einsum("bhwcij,fijc->bhwf", windows, weight))


def _near(what: str, got: np.ndarray, want: np.ndarray, room: np.ndarray, bound: float) -> Outcome:
    kind = what.split()[0]
    if got.shape != want.shape:
        return Outcome(kind, f"{what}: shape {got.shape}, wanted {want.shape}")
    off = (np.abs(got - want) / (room + 1e-30)).max(initial=0)
    return Outcome(kind, "" if off <= bound else f"{what}: off by {off:.2g} of the terms' magnitudes")


def sweep(cases: int, seed: int, target: str, until: float) -> tuple[Counter[str], list[str]]:
    """Counts of right cases by kind, and what was wrong, of models from `seed` on."""
    counts, wrong, begin, number = Counter[str](), list[str](), time.monotonic(), seed
    while sum(counts.values()) + len(wrong) < cases and time.monotonic() - begin < until:
        rng = np.random.default_rng(number)
        for found in KINDS[number % len(KINDS)](rng, target):
            if found.wrong:
                wrong.append(f"seed {number}: {found.wrong}")
            else:
                counts[found.kind] += 1
        number += 1
    counts["seeds"] = number - seed
    return counts, wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("few_bits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--target", default="host")
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no further model is begun")
    given = parser.parse_args(argv)
    counts, wrong = sweep(given.cases, given.seed, given.target, given.until)
    seeds = counts.pop("seeds")
    print("\n".join(wrong))
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    print(f"{sum(counts.values()) + len(wrong)} cases of {seeds} models (seeds {given.seed} to {given.seed + seeds - 1}): "
          f"{len(wrong)} wrong; right: {shown}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
