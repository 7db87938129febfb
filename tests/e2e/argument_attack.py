"""Arguments that calls were not made for: values of every kind at every place of a call, drawn with a seed.

    python tests/e2e/argument_attack.py COUNT [SEED]

runs so many cases and counts their outcomes. A case is right when it gives what numpy gives of the same elements, refused when it
raises an error of ours (MemoryError too); anything else is a fault.
"""

from __future__ import annotations

import ctypes
import decimal
import fractions
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

Make = Callable[[np.random.Generator], Any]
ROWS, COLUMNS = 6, 4


MODEL = """
#rows = affine_map<(i, j) -> (i, j)>
#columns = affine_map<(i, j) -> (j)>
func.func @main(%x: tensor<?x4xf32> {tw.name = "x", tw.dims = ["M", 4]}, %w: tensor<4xf32> {tw.name = "w"},
                %l: index {tw.name = "L", tw.dims = ["L"]}, %f: f32 {tw.name = "f"}) -> (tensor<?x4xf32>, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%m) : tensor<?x4xf32>
  %y = linalg.generic {indexing_maps = [#rows, #columns, #rows], iterator_types = ["parallel", "parallel"]}
      ins(%x, %w : tensor<?x4xf32>, tensor<4xf32>) outs(%e : tensor<?x4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %product = arith.mulf %a, %f : f32
    %sum = arith.addf %product, %b : f32
    linalg.yield %sum : f32
  } -> tensor<?x4xf32>
  %part = tensor.extract_slice %x[0, 0] [%l, 4] [1, 1] : tensor<?x4xf32> to tensor<?x4xf32>
  %room = tensor.empty() : tensor<4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%room : tensor<4xf32>) -> tensor<4xf32>
  %total = linalg.generic {indexing_maps = [#rows, #columns], iterator_types = ["reduction", "parallel"]}
      ins(%part : tensor<?x4xf32>) outs(%start : tensor<4xf32>) {
  ^bb0(%a: f32, %c: f32):
    %s = arith.addf %c, %a : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %y, %total : tensor<?x4xf32>, tensor<4xf32>
}
"""


def function() -> CompiledFunction:
    """x [M, 4] * f + w [4] of a scalar f, and the first L rows of x summed."""
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    return tw.compile(MODEL, {"M": (0, 64), "L": (0, 64)}, options=options)


def wanted(x: Any, w: Any, length: Any, f: Any) -> tuple[np.ndarray, np.ndarray]:
    x, w, f, length = (np.array(plain(v), np.float32) for v in (x, w, f, getattr(length, "value", length)))
    return x * f.item() + w, x[: int(length.item())].sum(0)


def plain(value: Any) -> Any:
    if hasattr(value, "resolve_neg"):
        value = value.detach().resolve_neg().float()
        return (value if value.dim() <= len((ROWS, COLUMNS)) else value.flatten()).numpy()
    return getattr(value, "array", value)


class Exporter:
    """Exports memory through DLPack, with some of its answers replaced."""

    def __init__(self, array: np.ndarray, **answers: Any) -> None:
        self.array, self._answers = array, answers

    def __dlpack_device__(self) -> Any:
        return self._answers.get("device", (1, 0))

    def __dlpack__(self, **_: Any) -> Any:
        found = self._answers.get("capsule", self.array.__dlpack__)
        if isinstance(found, BaseException):
            raise found
        return found() if callable(found) else found


class Interface:
    """Has an attribute that numpy takes for an array's."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Index:
    """Says that it is an integer."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


def f4(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(np.float32)


def _foreign_capsule(used: bytes) -> Any:
    """A capsule of another name than DLPack's; its pointer is never followed."""
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
    return new(1, used, None)


_USED, _OTHER = b"used_dltensor", b"pointer"


def tensors(rows: int) -> dict[str, Make]:
    """What a tensor argument of [rows, 4] may be; rows 0: one of [4]."""
    shape = (rows, COLUMNS) if rows else (COLUMNS,)
    found: dict[str, Make] = {
        "plain": lambda r: f4(r, *shape),
        "column-major": lambda r: np.asfortranarray(f4(r, *shape)),
        "negative strides": lambda r: f4(r, *shape)[..., ::-1],
        "apart": lambda r: np.repeat(f4(r, *shape), 3, axis=-1)[..., ::3],
        "zero strides": lambda r: np.broadcast_to(f4(r, 1), shape),
        "byte-swapped": lambda r: f4(r, *shape).astype(">f4"),
        "unaligned": lambda r: np.frombuffer(b"\0" + f4(r, *shape).tobytes(), np.uint8)[1:].view("f4").reshape(shape),
        "read-only": lambda r: _frozen(f4(r, *shape)),
        "matrix": lambda r: f4(r, *shape).view(np.matrix) if rows else f4(r, *shape),
        "masked": lambda r: np.ma.masked_less(f4(r, *shape), 0),
        "unmasked": lambda r: np.ma.masked_array(f4(r, *shape)),
        "recarray": lambda r: np.rec.fromarrays([f4(r, *shape)]),
        "structured": lambda r: np.zeros(shape, [("a", "f4")]),
        "object": lambda r: f4(r, *shape).astype(object),
        "text": lambda r: f4(r, *shape).astype("U"),
        "bytes": lambda r: f4(r, *shape).tobytes(),
        "complex": lambda r: f4(r, *shape).astype(complex),
        "double": lambda r: f4(r, *shape).astype(float),
        "long double": lambda r: f4(r, *shape).astype(np.longdouble),
        "integers": lambda r: f4(r, *shape).astype(int),
        "dates": lambda r: np.zeros(shape, "M8[s]"),
        "nothing": lambda r: np.zeros((0, *shape), np.float32),
        "scalar": lambda r: np.float32(2),
        "rank 0": lambda r: np.array(2, np.float32),
        "rank 64": lambda r: np.zeros((1,) * 64, np.float32),
        "too wide": lambda r: f4(r, *shape[:-1], COLUMNS + 1),
        "too long": lambda r: np.broadcast_to(np.float32(1), (1 << 40, COLUMNS)),
        "no rows": lambda r: np.zeros((0, COLUMNS), np.float32),
        "list": lambda r: f4(r, *shape).tolist(),
        "ragged": lambda r: [[1.0], [1.0, 2.0]],
        "none": lambda r: None,
        "number": lambda r: 1.0,
        "text alone": lambda r: "x",
        "class": lambda r: np.ndarray,
        "generator": lambda r: (i for i in range(4)),
        "dict": lambda r: {"x": 1},
        "memoryview": lambda r: memoryview(f4(r, *shape)),
        "dlpack": lambda r: Exporter(f4(r, *shape)),
        "dlpack strided": lambda r: Exporter(np.asfortranarray(f4(r, *shape))),
        "dlpack twice": lambda r: _same_capsule(f4(r, *shape)),
        "dlpack used": lambda r: Exporter(f4(r, *shape), capsule=lambda: _foreign_capsule(_USED)),
        "dlpack other": lambda r: Exporter(f4(r, *shape), capsule=lambda: _foreign_capsule(_OTHER)),
        "dlpack no capsule": lambda r: Exporter(f4(r, *shape), capsule=3),
        "dlpack refuses": lambda r: Exporter(f4(r, *shape), capsule=BufferError("no")),
        "dlpack device": lambda r: Exporter(f4(r, *shape), device=(2, 0)),
        "dlpack odd device": lambda r: Exporter(f4(r, *shape), device=None),
        "interface": lambda r: _through_interface(f4(r, *shape)),
        "bad interface": lambda r: Interface(__array_interface__={"version": 3}),
        "odd interface": lambda r: Interface(__array_interface__=7),
        "bad array": lambda r: Interface(__array__=3),
    }
    return {**found, **_of_torch(shape)}


def _of_torch(shape: tuple[int, ...]) -> dict[str, Make]:
    try:
        import torch
    except ImportError:
        return {}

    def tensor(rng: np.random.Generator) -> Any:
        return torch.from_numpy(f4(rng, *shape))

    return {
        "torch": tensor,
        "torch flipped": lambda r: tensor(r).flip(-1),
        "torch scattered": lambda r: torch.as_strided(tensor(r), shape, (1,) * len(shape)),
        "torch gradient": lambda r: tensor(r).requires_grad_(),
        "torch parameter": lambda r: torch.nn.Parameter(tensor(r)),
        "torch half": lambda r: tensor(r).half(),
        "torch sparse": lambda r: tensor(r).to_sparse(),
        "torch csr": lambda r: torch.ones(3, 3).to_sparse_csr(),
        "torch meta": lambda r: torch.empty(shape, device="meta"),
        "torch complex": lambda r: tensor(r).to(torch.complex64).conj(),
        "torch negative": lambda r: torch.imag(torch.complex(tensor(r), tensor(r)).conj()),
        "torch quantised": lambda r: torch.quantize_per_tensor(tensor(r), 0.1, 0, torch.qint8),
        "torch nested": lambda r: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "torch rank 70": lambda r: torch.zeros((1,) * 70),
        "torch mkldnn": lambda r: tensor(r).to_mkldnn(),
        "torch rank 0": lambda r: torch.tensor(1.0),
    }


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _through_interface(array: np.ndarray) -> Interface:
    return Interface(array=array, __array_interface__=array.__array_interface__)


def _same_capsule(array: np.ndarray) -> Exporter:
    made = array.__dlpack__()
    return Exporter(array, capsule=made)


INTEGERS: dict[str, Make] = {
    "plain": lambda r: int(r.integers(0, ROWS)), "numpy": lambda r: r.integers(0, ROWS), "array": lambda r: np.array(3),
    "one element": lambda r: np.array([3]), "several": lambda r: np.array([3, 4]), "float": lambda r: 3.0, "nan": lambda r: np.nan,
    "numpy float": lambda r: np.float32(3), "bool": lambda r: True, "numpy bool": lambda r: np.True_, "negative": lambda r: -1,
    "beyond": lambda r: 65, "63 bits": lambda r: 1 << 63, "70 bits": lambda r: -(1 << 70), "huge": lambda r: 1 << 20000,
    "text": lambda r: "3", "none": lambda r: None, "list": lambda r: [3], "complex": lambda r: 3j, "index": lambda r: Index(3),
    "bad index": lambda r: Index("3"), "decimal": lambda r: decimal.Decimal(3), "masked": lambda r: np.ma.masked,
    "date": lambda r: np.datetime64(3, "s"), "unsigned": lambda r: np.uint64(1 << 63), "item": lambda r: Interface(item=3),
    "bad item": lambda r: Interface(item=lambda: "3"), "class": lambda r: int,
}  # fmt: skip
FLOATS: dict[str, Make] = {
    **{name: make for name, make in tensors(0).items() if name.startswith("torch") or name in ("masked", "object", "list", "none")},
    "plain": lambda r: float(r.integers(1, 9)), "numpy": lambda r: np.float32(3), "double": lambda r: np.float64(3), "int": lambda r: 3,
    "rank 0": lambda r: np.array(3, np.int8), "nan": lambda r: np.nan, "bool": lambda r: True, "infinite": lambda r: np.inf,
    "tiny": lambda r: 1e-320, "large": lambda r: 1e300, "complex": lambda r: 1j, "class": lambda r: float, "huge": lambda r: 1 << 20000, "text": lambda r: "3",
    "fraction": lambda r: fractions.Fraction(1, 3), "one element": lambda r: np.ones(1, np.float32),
}  # fmt: skip
THREADS: dict[str, Make] = {
    "one": lambda r: 1, "none": lambda r: None, "many": lambda r: 1 << 70, "numpy": lambda r: np.int64(2), "array": lambda r: np.array(2),
    "unsigned": lambda r: np.uint8(2), "zero": lambda r: 0, "negative": lambda r: -1, "bool": lambda r: True, "numpy bool": lambda r: np.True_,
    "float": lambda r: 2.0, "nan": lambda r: np.nan, "text": lambda r: "2", "list": lambda r: [2], "index": lambda r: Index(2),
    "bad index": lambda r: Index("2"), "huge negative": lambda r: -(1 << 20000), "bytes": lambda r: b"2", "class": lambda r: int,
}  # fmt: skip


def outs(rows: int) -> dict[str, Make]:
    """What `out=` may be, for results of [rows, 4] and [4]."""
    def pair(first: Any) -> tuple[Any, np.ndarray]:
        return first, np.empty(COLUMNS, np.float32)

    room = np.empty((rows + 1, COLUMNS), np.float32)
    made: dict[str, Make] = {
        "none": lambda r: None,
        "pair": lambda r: pair(np.empty((rows, COLUMNS), np.float32)),
        "list": lambda r: list(pair(np.empty((rows, COLUMNS), np.float32))),
        "one": lambda r: np.empty((rows, COLUMNS), np.float32),
        "three": lambda r: (None, None, None),
        "empty": lambda r: (),
        "text": lambda r: "xy",
        "overlapping": lambda r: (room[:rows], room[rows - 1]) if rows else (),
        "same": lambda r: (room[:rows], room[0]),
    }
    return {**made, **{f"{n} first": (lambda r, m=m: pair(m(r))) for n, m in tensors(rows or 1).items()}}


def cases(seed: int) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """(name, arguments, keywords): one or two things of a call are odd."""
    rng = np.random.default_rng(seed)
    while True:
        rows = int(rng.integers(1, ROWS))
        kinds: list[dict[str, Make]] = [tensors(rows), tensors(0), INTEGERS, FLOATS, outs(rows), THREADS]
        odd = rng.choice(len(kinds), rng.choice([1, 1, 2]), replace=False)
        names = ["plain", "plain", "plain", "plain", "none", "none"]
        for place in odd:
            names[place] = str(rng.choice(list(kinds[place])))
        values = [kind[name](rng) for kind, name in zip(kinds, names, strict=True)]
        keywords = {key: value for key, value, name in zip(("out", "threads"), values[4:], names[4:], strict=True) if name != "none"}
        places = ("x", "w", "L", "f", "out", "threads")
        yield ", ".join(f"{places[p]}: {names[p]}" for p in odd), tuple(values[:4]), keywords


def outcome(fn: CompiledFunction, args: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    """ "right", "refused", or what is wrong."""
    try:
        found = fn(*args, **keywords)
    except (TilewrightError, MemoryError) as error:
        return "refused" if len(str(error)) < 1000 else f"a message of {len(str(error))} characters"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        with np.errstate(all="ignore"):
            want = wanted(*args)
    except Exception as error:
        return f"taken, and numpy says {type(error).__name__}: {error}"
    good = all(np.array_equal(plain(f), w, equal_nan=True) for f, w in zip(found, want, strict=True))
    return "right" if good else f"wrong values {found}, not {want}"


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    fn, found = function(), Counter[str]()
    for _, (name, args, keywords) in zip(range(count), cases(seed), strict=False):
        said = outcome(fn, args, keywords)
        found[said if said in ("right", "refused") else "fault"] += 1
        if said not in ("right", "refused"):
            print(f"{name}: {said}", flush=True)
    print(dict(found))
    return 1 if found["fault"] else 0


if __name__ == "__main__":
    sys.exit(main())
