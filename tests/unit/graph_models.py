"""Small models in MLIR for the tests of fusion and outlining, and how to run passes over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tilewright.compiler.reference import compare, evaluate
from tilewright.passes.base import Pass, PassPipeline
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.linalg.symbolic import DIMS, argument_attributes, read_dims
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.workload import Workload

ADD = "%r = arith.addf %a0, %a1 : f32\n    linalg.yield %r : f32"
EXP = "%r = math.exp %a0 : f32\n    linalg.yield %r : f32"
DOUBLE = "%r = arith.addf %a0, %a0 : f32\n    linalg.yield %r : f32"
SUM = "%r = arith.addf %a0, %o : f32\n    linalg.yield %r : f32"
MAPS = """#id = affine_map<(d0, d1) -> (d0, d1)>
#swap = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
"""
START = """  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %B = tensor.dim %x, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%B) : tensor<?x8xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  %e1 = tensor.empty(%B) : tensor<?xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<?xf32>) -> tensor<?xf32>
"""
X = '%x: tensor<?x8xf32> {tw.dims = ["B", 8]}'
W = "%w: tensor<8x8xf32> {tw.dims = [8, 8]}"
T = "tensor<?x8xf32>"
R = "tensor<?xf32>"


def generic(
    name: str, inputs: str, types: str, out: str, result: str, body: str, maps: str, iterators: str = "pp"
) -> str:
    """One linalg.generic; iterators "pr" = parallel, reduction."""
    kinds = ", ".join({"p": '"parallel"', "r": '"reduction"'}[i] for i in iterators)
    count = inputs.count("%")
    arguments = ", ".join(f"%a{i}: f32" for i in range(count))
    attributes = f"{{indexing_maps = [{maps}], iterator_types = [{kinds}]}}"
    return f"""  %{name} = linalg.generic {attributes} ins({inputs} : {types}) outs({out} : {result}) {{
  ^bb0({arguments}, %o: f32):
    {body}
  }} -> {result}
"""


def matmul(name: str, left: str, right: str = "%w") -> str:
    return f"  %{name} = linalg.matmul ins({left}, {right} : {T}, tensor<8x8xf32>) outs(%f : {T}) -> {T}\n"


def model(arguments: Sequence[str], body: str, results: str, types: str, start: str = START) -> str:
    head = f"{MAPS}func.func @main({', '.join(arguments)}) -> ({types}) {{\n"
    return f"{head}{start}{body}  return {results} : {types}\n}}\n"


def run(text: str, passes: Sequence[Pass]) -> str:
    """The module after the passes, as text."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        PassPipeline(passes).run(module)
        return str(module)


def workloads(text: str) -> dict[str, Workload]:
    with ir.Context(), ir.Location.unknown():
        return workloads_of(ir.Module.parse(text))


def main_ops(text: str) -> list[str]:
    """Operation names of @main of an outlined module; calls as "call <name>"."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main = next(f for f in functions(module) if "sym_visibility" not in f.attributes)
        return [
            f"call {ir.FlatSymbolRefAttr(o.attributes['callee']).value}" if o.name == "func.call" else o.name
            for o in main.regions[0].blocks[0].operations
        ]


def arguments_of(text: str, dims: Mapping[str, int], seed: int = 0) -> list[npt.NDArray[np.generic] | float]:
    """Random arguments for the shapes that the dims give."""
    random = np.random.default_rng(seed)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        main = next(f for f in functions(module) if "sym_visibility" not in f.attributes)
        found: list[npt.NDArray[np.generic] | float] = []
        for value, named in zip(main.regions[0].blocks[0].arguments, argument_attributes(main), strict=True):
            if isinstance(value.type, ir.RankedTensorType):
                found.append(random.standard_normal([d.evaluate(dims) for d in read_dims(named[DIMS])]))
            else:
                found.append(read_dims(named[DIMS])[0].evaluate(dims) if DIMS in named else 1.5)
        return found


def assert_same(before: str, after: str, *shapes: Mapping[str, int]) -> None:
    """Both modules give the same results at these shapes."""
    for dims in shapes:
        inputs = arguments_of(before, dims)
        wanted, got = evaluate(before, inputs), evaluate(after, inputs, function="main")
        assert len(wanted) == len(got)
        for a, b in zip(wanted, got, strict=True):
            assert a.shape == b.shape
            assert compare(b, a).norm_error <= 1e-12, f"{dims}: {compare(b, a)}"
