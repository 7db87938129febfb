"""The identity of a workload: a description of its function in which no name, no printed text and no range occurs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tilewright.passes.analysis.signs import NONPOSITIVE
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import attributes, ir, maps_of, operations

KEY, KIND = "tw.key", "tw.kind"
SPEC_VERSION = 1
_ARGUMENT = ("tw.dims", "tw.unit", "tw.constant", "tw.zeros")


def key_of(fn: ir.Operation) -> str:
    """sha256 of the canonical spec, in hex."""
    text = json.dumps(canonical_spec(fn), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_spec(fn: ir.Operation) -> dict[str, Any]:
    """Arguments (type, extents, unit axis, constness), operations in order with values numbered, results.

    Equal for functions that differ in value names, symbol names and ranges only.
    """
    numbers: dict[ir.Value, int] = {}
    block = fn.regions[0].blocks[0]
    arguments = []
    for value, named in zip(block.arguments, argument_attributes(fn), strict=True):
        numbers[value] = len(numbers)
        entry: dict[str, Any] = {"type": str(value.type)}
        for name in _ARGUMENT:
            if name in named:
                entry[name] = [str(d) for d in read_dims(named[name])] if name == "tw.dims" else _attribute(named[name])
        arguments.append(entry)
    results = (
        [{n.name: _attribute(n.attr) for n in ir.DictAttr(a)} for a in fn.attributes["res_attrs"]]
        if "res_attrs" in fn.attributes
        else []
    )
    return {
        "version": SPEC_VERSION,
        "kind": _attribute(fn.attributes[KIND]) if KIND in fn.attributes else "",
        "arguments": arguments,
        "results": results,
        "body": _block(block, numbers),
    }


def _block(block: ir.Block, numbers: dict[ir.Value, int]) -> list[dict[str, Any]]:
    return [_operation(op, numbers) for op in operations(block)]


def _operation(op: ir.Operation, numbers: dict[ir.Value, int]) -> dict[str, Any]:
    maps: list[ir.AffineMap] = []
    if op.name.startswith("linalg.") and op.name not in (
        "linalg.yield",
        "linalg.index",
        "linalg.fill",
        "linalg.softmax",
    ):
        maps = maps_of(op)
    found: dict[str, Any] = {
        "op": op.name,
        "in": [numbers[v] for v in op.operands],
        "types": [str(r.type) for r in op.results],
    }
    if maps:
        found["maps"] = [[m.n_dims, *map(str, m.results)] for m in maps]
    kept = {n: _attribute(a) for n, a in attributes(op).items()
            if n == NONPOSITIVE or (not n.startswith("tw.") and n != "indexing_maps")}
    if kept:
        found["attributes"] = kept
    for result in op.results:
        numbers[result] = len(numbers)
    regions = []
    for region in op.regions:
        for inner in region.blocks:
            for argument in inner.arguments:
                numbers[argument] = len(numbers)
            regions.append(_block(inner, numbers))
    if regions:
        found["regions"] = regions
    return found


def _attribute(attribute: ir.Attribute) -> Any:
    if isinstance(attribute, ir.ArrayAttr):
        return [_attribute(a) for a in attribute]
    if isinstance(attribute, ir.StringAttr):
        return ir.StringAttr(attribute).value
    return str(attribute)
