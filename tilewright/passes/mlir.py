"""The one module that names the MLIR bindings; everything else imports `ir` and the dialects from here."""

from torch_mlir import ir
from torch_mlir.dialects import (
    affine,
    arith,
    builtin,
    func,
    linalg,
    llvm,
    math,
    nvvm,
    scf,
    tensor,
    vector,
)
from torch_mlir.passmanager import PassManager

__all__ = [
    "PassManager",
    "affine",
    "arith",
    "attributes",
    "builtin",
    "flat_operations",
    "func",
    "functions",
    "ir",
    "linalg",
    "llvm",
    "maps_of",
    "math",
    "new_context",
    "nvvm",
    "operations",
    "owner",
    "position",
    "replace_all_uses",
    "scf",
    "tensor",
    "vector",
    "walk",
]

from collections.abc import Iterator

_DIALECTS = ("builtin", "func", "arith", "math", "linalg", "tensor", "affine", "scf", "cf", "memref", "vector", "llvm",
             "nvvm", "ub")


def new_context(unknown: bool = False) -> ir.Context:
    """A context with the dialects that passes make operations of. Others are loaded as they are parsed or lowered to: loading
    all that there are takes 6 ms, as long as the passes over a small model.

    unknown: operations of unknown dialects parse, so that they can be refused by name.
    """
    context = ir.Context(load_on_create_dialects=[*_DIALECTS])
    context.allow_unregistered_dialects = unknown
    return context


def owner(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`; None for a block argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def walk(op: ir.Operation, name: str = "") -> list[ir.Operation]:
    """All operations below `op` (not itself), or those of a name, in program order; a list, so that the caller may erase and
    insert. Of an operation that was erased not even the name may be read: who erases others than the one at hand asks by name."""
    found: list[ir.Operation] = []

    def take(inner: ir.Operation) -> ir.WalkResult:
        if not name or inner.name == name:
            found.append(inner.operation)
        return ir.WalkResult.ADVANCE

    op.operation.walk(take, ir.WalkOrder.PRE_ORDER)
    return found[1:] if name in ("", op.operation.name) else found


def operations(block: ir.Block) -> list[ir.Operation]:
    """The operations of one block, as a list."""
    return [o.operation for o in block.operations]


def flat_operations(block: ir.Block) -> list[ir.Operation]:
    """The operations of a block and of the branches and loops in it, in order."""
    found: list[ir.Operation] = []
    for op in operations(block):
        found.append(op)
        if op.name.startswith("scf."):
            found += [o for region in op.regions for inner in region.blocks for o in flat_operations(inner)]
    return found


def attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}


def maps_of(op: ir.Operation) -> list[ir.AffineMap]:
    """Indexing maps of a linalg op, one per operand (inputs, then outputs)."""
    return [ir.AffineMapAttr(a).value for a in linalg.get_indexing_maps(op)]


def position(expr: ir.AffineExpr) -> int | None:
    """The loop dimension when `expr` is just that dimension."""
    return ir.AffineDimExpr(expr).position if isinstance(expr, ir.AffineDimExpr) else None


def replace_all_uses(old: ir.Value, new: ir.Value) -> None:
    old.replace_all_uses_with(new)


def functions(module: ir.Module) -> Iterator[ir.Operation]:
    for op in operations(module.body):
        if op.name == "func.func":
            yield op
