"""What the GPU benchmarks run: operators with their shapes, and the artifacts of our side, built on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[3]
BATCH, HEADS, HEAD, WIDTH, INNER = 16, 12, 64, 768, 3072
LENGTHS = (5, 24, 43, 62, 81, 100, 119, 128)  # DietCode's sequence lengths at a batch of 16
TOLERANCE = {"f32": 2e-5, "tf32": 2e-3, "f16": 5e-3}
Extent = int | Literal["T"]  # the dim that varies
Shapes = tuple[tuple[Extent, ...], ...]


@dataclass(frozen=True)
class Case:
    """An operator in one precision. inputs: shapes of the arguments; points: values of T, a multiple of `step` up to `largest`.

    precision: "f32", "tf32" (f32 arrays) or "f16" (f16 arrays, but for a model, whose arrays stay f32).
    flops: of a call at a value of T; 0 where they say nothing. model: a file of examples/, else tw.ops builds it.
    """

    name: str
    kind: str
    precision: str
    inputs: Shapes
    points: tuple[int, ...]
    largest: int
    flops: Callable[[int], int] = lambda at: 0
    model: str = ""
    step: int = 1

    @property
    def file(self) -> str:
        return f"{self.name}_{self.precision}.tw"

    @property
    def element(self) -> str:
        return "f16" if self.precision == "f16" and not self.model else "f32"

    @property
    def tolerance(self) -> float:
        """Of a result, in the 2-norm."""
        return TOLERANCE[self.precision]

    def shapes(self, at: int) -> list[tuple[int, ...]]:
        """Of the arguments at a value of T."""
        return [tuple(at if e == "T" else e for e in shape) for shape in self.inputs]


def matmul(name: str, precision: str, k: int, n: int, points: Sequence[int], step: int = 1) -> Case:
    """x [T, k] @ w [k, n]."""
    return Case(name, "matmul", precision, (("T", k), (k, n)), tuple(points), max(points), lambda at: 2 * at * k * n, step=step)


def cases() -> Iterator[Case]:
    """All of them."""
    three = ("f32", "tf32", "f16")
    for k, n in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH)):
        points = sorted({*(BATCH * t for t in LENGTHS), *((16, 128) if k > n else ())})  # few tiles with a long k too
        yield from (matmul(f"dense_{k}x{n}", p, k, n, points, BATCH) for p in three)
    many = BATCH * HEADS
    for p in ("f32", "f16"):
        yield Case("scores", "scores", p, ((many, "T", HEAD), (many, "T", HEAD)), LENGTHS, 128,
                   lambda at: 2 * many * at * at * HEAD)
        yield Case("values", "values", p, ((many, "T", "T"), (many, "T", HEAD)), LENGTHS, 128,
                   lambda at: 2 * many * at * at * HEAD)
    for size in (4096, 8192):
        yield from (matmul(f"square_{size}", p, size, size, (size,)) for p in three)
    for n in (4096, 14336):
        yield from (matmul(f"decode_4096x{n}", p, 4096, n, (1, 2, 4, 8, 16)) for p in three)
    for columns in (768, 4096):
        for p in ("f32", "f16"):
            yield Case(f"softmax_{columns}", "softmax", p, (("T", columns),), (128, 2048, 16384), 16384)
            norm: Shapes = (("T", columns), (columns,), (columns,))
            yield Case(f"layernorm_{columns}", "layernorm", p, norm, (128, 2048, 16384), 16384)
    for name, head in (("attention", HEAD), ("attention_128", 2 * HEAD)):
        heads: tuple[Extent, ...] = (BATCH, WIDTH // head, "T", head)
        yield Case(name, "attention", "f16", (heads, heads, heads), (32, 128, 512, 2048), 2048,
                   lambda at: 4 * many * at * at * HEAD)
    weights = ((WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, INNER), (INNER,), (INNER, WIDTH), (WIDTH,),
               *[(WIDTH,)] * 4)
    yield from (Case("bert_layer", "bert_layer", p, ((1, "T", WIDTH), *weights), (16, 64, 128), 128, model="bert_layer.mlir")
                for p in three)


def build(case: Case, folder: Path, target: str, log: str | None = None) -> None:
    """Compile a case for a target and save it in the folder. Needs the compiler, not a GPU."""
    import tilewright as tw

    source, dims, options = source_of(case)
    tw.compile(source, dims, target=target, options={**options, "log": log}).save(folder / case.file)


def source_of(case: Case) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The model, its dims and the options that it is compiled with."""
    import tilewright as tw

    precision = case.precision if case.precision == "tf32" or case.model else "f32"
    source: Any = ROOT / "examples" / case.model if case.model else graph(case)
    return source, {"T": tw.Dim(case.step, case.largest, case.step)}, {"precision": precision}


def graph(case: Case) -> Any:
    """The operator as tw.ops builds it."""
    import tilewright as tw

    ops, made = tw.ops, tw.ops.Graph()
    given = [made.input(f"a{i}", list(shape), case.element) for i, shape in enumerate(case.inputs)]
    kinds: Mapping[str, Callable[..., Any]] = {
        "matmul": ops.matmul, "scores": lambda q, k: ops.batch_matmul(q, k, transpose_b=True), "values": ops.batch_matmul,
        "softmax": ops.softmax, "layernorm": ops.layernorm, "attention": ops.attention,
        "matmul_transposed": lambda x, w: ops.matmul(x, w, transpose_b=True), "rmsnorm": ops.rmsnorm, "gelu": ops.gelu,
        "attention_causal": lambda q, k, v: ops.attention(q, k, v, causal=True),
        "bias_relu": lambda x, b: ops.relu(ops.add(x, b)), "swiglu": lambda a, b: ops.multiply(ops.silu(a), b),
    }
    made.output(kinds[case.kind](*given))
    return made
