"""What cannot be compiled, found before any pass runs: each refusal names the operation, its location, the remedy."""

from __future__ import annotations

import math

from tilewright.compiler.dims.op_location import where
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, reassociation
from tilewright.passes.mlir import ir, owner, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.tensor import DType
from tilewright.runtime.wording import Wording

_ELEMENTS = {d.signless.value for d in DType} | {"index"}
_NARROW = {f"i{width}" for width in range(2, 8)}  # read and widened: passes/transforms/widen_sub_byte.py
_DIALECTS = ("arith", "math", "linalg", "tensor")
_MOST_ELEMENTS = 1 << 60  # their bytes are counted in 63 bits
_CONTROL = ("scf.if", "scf.for", "scf.while", "scf.index_switch", "scf.yield", "scf.condition")
_SINGLE_OPS = ("func.return", "cf.assert", "affine.apply", "affine.min", "affine.max", "ub.poison")
_TENSOR_OPS = {
    "cast",
    "dim",
    "rank",
    "empty",
    "extract",
    "extract_slice",
    "expand_shape",
    "collapse_shape",
    "reshape",
    "from_elements",
    "pad",
    "yield",
    "concat",
    "insert",
    "insert_slice",
    "generate",
    "splat",
    "gather",
}
_LISTS = {  # first segment of the operands that belong to lists, the lists
    "tensor.pad": (1, ("static_low", "static_high")),
    "linalg.pack": (3, ("static_inner_tiles",)),
    "linalg.unpack": (3, ("static_inner_tiles",)),
}
_REMEDIES: dict[str, Wording | str] = {
    "scf": "of control flow scf.if, scf.for, scf.while and scf.index_switch on tensors are compiled, outside of the bodies of "
    "other operations: write parallel loops as linalg operations",
    "cf": "control flow is not compiled: export a model of one block",
    "memref": "the model must be on tensors: export it before bufferization",
    "bufferization": "the model must be on tensors: export it before bufferization",
    "complex": "complex numbers are not supported: split the model into real and imaginary parts",
    "ml_program": "global state (a seed, a counter) is not supported: pass it as an argument and return its new value",
    "tm_tensor": "scans, sorts and scatters of torch-mlir's own dialect are not compiled: compile the PyTorch model itself, "
    + Wording("tw.compile(torch.export.export(...))", "the .pt2 file of torch.export.save")
    + ", which needs no torch-mlir",
    "torch": "lower it first, to linalg on tensors (torch-backend-to-linalg-on-tensors-backend-pipeline)",
    "stablehlo": "lower it first, to linalg on tensors (stablehlo-legalize-to-linalg)",
    "tosa": "lower it first, to linalg on tensors (tosa-to-linalg-pipeline)",
    "func": "only calls of functions in the same module are compiled, and recursion is not",
}


def refuse_unsupported(fn: ir.Operation) -> None:
    """Raise IngestError for the first operation or type of the function that cannot be compiled."""
    if len(fn.regions[0].blocks) != 1:
        raise IngestError(f"func.func @main at {where(fn)} has {len(fn.regions[0].blocks)} blocks: {_REMEDIES['cf']}")
    for index, argument in enumerate(fn.regions[0].blocks[0].arguments):
        at = f"argument {index} of @main at {where(fn)}"
        _refuse_type(argument.type, at)
        _refuse_index(argument.type, at)
        if str(argument.type) in _NARROW:
            raise IngestError(f"{at}: a scalar of type {argument.type}; pass it as i8")
    for op in walk(fn):
        _refuse_op(op)
        _refuse_axis(op)
        _refuse_groups(op)
        _refuse_lists(op)
        for value in op.operands if op.name == "func.return" else ():
            _refuse_index(value.type, f"a result of @main at {where(op)}")
        for value in op.results:
            _refuse_type(value.type, f"{op.name} at {where(op)}")


def refuse_data_dependent(fn: ir.Operation, shapes: SymbolicShapes) -> None:
    """Raise IngestError for the first tensor whose extents are not expressions of the arguments' shapes."""
    for op in walk(fn):
        for value in op.results:
            if isinstance(value.type, ir.RankedTensorType) and op.name != "tensor.from_elements":
                try:
                    shapes.dims(value)
                except ValueError as error:
                    raise IngestError(
                        f"{op.name} at {where(op)} makes a tensor whose shape does not follow from the arguments: "
                        f"{error}. Such extents are not compiled: return the padded result and its length, or pass the "
                        "length as an index argument that is a dimension"
                    ) from error


def _refuse_op(op: ir.Operation) -> None:
    dialect, _, name = op.name.partition(".")
    if "rng" in name or "random" in name:
        raise IngestError(
            f"{op.name} at {where(op)} makes random numbers, which are not compiled: make them outside and pass "
            "them as an argument"
        )
    known = op.name in _SINGLE_OPS or (dialect in _DIALECTS and (dialect != "tensor" or name in _TENSOR_OPS))
    if op.name in _CONTROL and op.parent.name.startswith(("func.", "scf.")):
        return
    if not known:
        remedy = _REMEDIES.get(dialect, "the model must use the dialects linalg, tensor, arith and math only")
        raise IngestError(f"{op.name} at {where(op)} is not supported: " + remedy)


def _refuse_index(kind: ir.Type, at: str) -> None:
    """Of what a caller passes and gets: arrays have no elements of the machine's own width."""
    if isinstance(kind, ir.RankedTensorType) and str(kind.element_type) == "index":
        raise IngestError(f"{at}: type {kind}; a caller has no arrays of index: cast it to i64 in the model (arith.index_cast)")


def _refuse_axis(op: ir.Operation) -> None:
    """Of tensor.dim: one that the tensor does not have."""
    axis = owner(op.operands[1]) if op.name == "tensor.dim" else None
    if axis is None or axis.name != "arith.constant":
        return
    asked, t = integer(axis.attributes["value"]), op.operands[0].type
    if isinstance(t, ir.RankedTensorType) and not 0 <= asked < t.rank:
        raise IngestError(f"tensor.dim at {where(op)} asks for axis {asked} of {t}; wanted one from 0 to {t.rank - 1}: correct "
                          "the model, or export it again")


def _refuse_groups(op: ir.Operation) -> None:
    """Of tensor.collapse_shape and tensor.expand_shape: groups that are not the axes in their order, which MLIR lets pass."""
    if op.name not in ("tensor.collapse_shape", "tensor.expand_shape"):
        return
    t = (op.operands if op.name == "tensor.collapse_shape" else op.results)[0].type
    groups = reassociation(op)  # none between rank 0 and axes of extent 1
    if groups and isinstance(t, ir.RankedTensorType) and [axis for group in groups for axis in group] != list(range(t.rank)):
        raise IngestError(f"{op.name} at {where(op)} groups axes as {groups}; wanted each of the {t.rank} axes of {t} once, in "
                          "order: correct the model, or export it again")


def _refuse_size(kind: ir.RankedTensorType, at: str) -> None:
    """Of a tensor: known extents that have no product, even without those of 0, as passes multiply some of them."""
    known = [kind.get_dim_size(axis) for axis in range(kind.rank) if not kind.is_dynamic_dim(axis)]
    if math.prod(max(1, size) for size in known) >= _MOST_ELEMENTS:
        raise IngestError(f"{at}: type {kind} has more than 2**60 elements, which no memory holds; correct its extents")


def _refuse_type(kind: ir.Type, at: str) -> None:
    if isinstance(kind, ir.UnrankedTensorType):
        raise IngestError(f"{at}: unranked type {kind}; export the model with ranked types such as tensor<?x?xf32>")
    if isinstance(kind, ir.RankedTensorType):
        _refuse_size(ir.RankedTensorType(kind), at)
        if ir.RankedTensorType(kind).encoding is not None:
            raise IngestError(f"{at}: type {kind} has an encoding, of another compiler; export plain tensors")
        kind = kind.element_type
    elif isinstance(kind, ir.ShapedType):
        raise IngestError(f"{at}: type {kind}; the model must be on tensors")
    if str(kind) not in _ELEMENTS | _NARROW:
        raise IngestError(
            f"{at}: element type {kind} is not supported; use one of "
            f"{', '.join(d.value for d in DType if not d.is_unsigned)}, and cast the model's inputs and weights to it"
        )


def _refuse_lists(op: ir.Operation) -> None:
    """Of tensor.pad, linalg.pack and linalg.unpack: places for operands in their lists of numbers without an operand. MLIR marks
    a place by the least i64, which a text can hold as a number, and counts them for other operations only."""
    if op.name not in _LISTS:
        return
    first, names = _LISTS[op.name]
    marked = ir.ShapedType.get_dynamic_size()
    places = sum(number == marked for name in names for number in ir.DenseI64ArrayAttr(op.attributes[name]))
    given = sum(list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[first:])
    if places != given:
        raise IngestError(f"{op.name} at {where(op)} has {given} operands for the {places} places in {' and '.join(names)}; "
                          f"wanted as many, and no number {marked}, which marks a place: correct the model, or export it again")
