"""fuse: each operation gets the number of its dispatch region, `tw.region`; cheap producers are copied to readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import Groups
from tilewright.passes.analysis.op_kinds import OpKind
from tilewright.passes.analysis.window_reduction import rows_for_filters
from tilewright.passes.analysis.windows import zeros_of
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.regions import Partition, Region
from tilewright.passes.linalg.clone import clone, erase_dead
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, operations, owner

REGION = "tw.region"


@dataclass(frozen=True)
class Fuse(Pass):
    """Regions by the rules of passes/dispatch_creation/regions.py.

    epilogues: elementwise operations and further reductions join their producers.
    loads: cheap producers are computed at load.
    """

    name: ClassVar[str] = "fuse"
    epilogues: bool = True
    loads: bool = True

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            partition = Partition(fn, join=self.epilogues)
            regions = partition.regions()
            if self.loads:
                for region in regions:
                    _copy_loads(partition, region)
            for number, region in enumerate(regions):
                for op in region.ops:
                    op.attributes[REGION] = _number(number)
            erase_dead(fn.regions[0].blocks[0])
            renumber_regions(fn.regions[0].blocks[0])


def _copy_loads(partition: Partition, region: Region) -> None:
    """Copy the cheap producers of each operand from other regions in front of its reader."""
    copies: dict[ir.Operation, ir.Operation] = {}

    def value(v: ir.Value) -> ir.Value:
        source = owner(v)
        if source is None or source not in copies:
            return v
        return copies[source].results[list(source.results).index(v)]

    for op in list(region.ops):
        for i, operand in enumerate(op.operands):
            producer = owner(operand)
            if producer is None or partition.region_of.get(producer) in (None, region):
                continue
            chain = partition.loads(producer)
            if chain is None or _padded_factor(partition, region, op, chain):
                continue
            with ir.InsertionPoint(op):
                for link in chain:
                    if link not in copies:
                        copies[link] = clone(link, value)
                        partition.adopt(copies[link], link, region)
            op.operands[i] = value(operand)


def _padded_factor(partition: Partition, region: Region, op: ir.Operation, chain: list[ir.Operation]) -> bool:
    """Is this an operand of a contraction behind a pad? Each element is read many times, so the pad is paid for once; not where
    no loop reads it again for other columns, as in a convolution of each channel by itself, nor where rows of pixels are copied
    with their padding for the filters of a group."""
    if op != region.root or region.kind is not OpKind.CONTRACTION or not any(o.name == "tensor.pad" for o in chain):
        return False
    if zeros_of(chain[-1].results[0]) is None:
        return True
    return bool(Groups.of(op).n) and not rows_for_filters(op, partition.shapes)


def _number(number: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def renumber_regions(block: ir.Block) -> None:
    """Numbers 0, 1, ... in the order of the first operation of each region."""
    seen: dict[int, int] = {}
    for op in operations(block):
        if REGION in op.attributes:
            op.attributes[REGION] = _number(seen.setdefault(integer(op.attributes[REGION]), len(seen)))
