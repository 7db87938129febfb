"""Loads: which producers are so cheap that each reader computes them again where it loads."""

from __future__ import annotations

from tilewright.passes.analysis.contraction import Groups
from tilewright.passes.analysis.gates import Running, gated
from tilewright.passes.analysis.op_kinds import OpKind, arithmetic, expensive
from tilewright.passes.analysis.window_reduction import rows_for_filters
from tilewright.passes.analysis.windows import zeros_of
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.passes.partition.partition import Partition
from tilewright.passes.partition.region import Region
from tilewright.passes.transforms.find_codes import CODES

LOAD_ARITHMETIC = 2


class Loads:
    """The chains of a partition that does not change any more."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._chains: dict[ir.Operation, list[ir.Operation] | None] = {}

    def read_by(self, op: ir.Operation, operand: ir.Value, region: Region) -> list[ir.Operation] | None:
        """The chain that `op` of `region` computes in place of loading `operand`; None where it loads."""
        producer = owner(operand)
        if producer is None or self.partition.region_of.get(producer) in (None, region) or CODES in op.attributes:
            return None
        chain = self.chain(producer) or self._once_a_step(op, operand, region)
        return None if chain is None or self._padded_factor(region, op, chain) else chain

    def chain(self, op: ir.Operation) -> list[ir.Operation] | None:
        """`_chain`, found once: copies that are made of a chain change no answer."""
        if op not in self._chains:
            self._chains[op] = self._chain(op)
        return self._chains[op]

    def _chain(self, op: ir.Operation) -> list[ir.Operation] | None:
        """The chain of cheap producers up to `op` that a reader may compute at each load; None when it must be a value.

        Rule "cheap-load": casts, permutations, broadcasts and constant pads always; up to LOAD_ARITHMETIC scalar
        operations when nothing else reads the value; never a function of math, a division or a lookup, nor arithmetic on
        constants alone, which runs once at compile time; but weights in few bits are decoded at each load (find-codes).
        """
        region, graph = self.partition.region_of.get(op), self.partition.graph
        if CODES in op.attributes:
            inner = owner(op.operands[0]) if op.name == "tensor.pad" else None
            return [op] if inner is None else [inner, op]
        if region is None or region.kind is not OpKind.ELEMENTWISE or op.name == "linalg.fill" or graph.constant(op):
            return None
        if COPY in op.attributes or graph.kinds[op] is OpKind.PARTS:
            return None
        if graph.kinds[op] is OpKind.MOVEMENT:
            return [op] if op.name in ("tensor.collapse_shape", "tensor.extract_slice") or constant_pad(op) else None
        if expensive(op) or len(op.results) != 1:
            return None
        chain = self._behind(op)
        count = sum(arithmetic(o) for o in chain)
        if count > LOAD_ARITHMETIC or (count and len(graph.users(op.results[0])) > 1):
            return None
        return chain

    def _once_a_step(self, op: ir.Operation, operand: ir.Value, region: Region) -> list[ir.Operation] | None:
        """The chain up to an operand of a walk whose states are summed at each step, of which each element is read at one step of
        one place, for all the states there: dear operations are computed there as often as by themselves."""
        producer, gate = owner(operand), gated(op)
        if producer is None or not isinstance(gate, Running) or not region.columns or op != region.root:
            return None
        graph, maps = self.partition.graph, maps_of(op)
        axes = [position(e) for e in maps[-1].results]
        places = {gate.over, *(d for a, d in enumerate(axes) if a not in region.columns and d != gate.along)}
        reads = [m for v, m in zip(op.operands, maps, strict=True) if v == operand]
        if len(reads) != 1 or len(reads[0].results) != len(places) or {position(e) for e in reads[0].results} != places:
            return None
        own = self.partition.region_of.get(producer)
        if own is None or len(own.ops) != 1 or graph.kinds[producer] is not OpKind.ELEMENTWISE or not expensive(producer):
            return None
        if COPY in producer.attributes or graph.constant(producer) or producer.name != "linalg.generic":
            return None
        if len(producer.results) != 1 or len(graph.users(operand)) != 1:
            return None
        return self._behind(producer)

    def _behind(self, op: ir.Operation) -> list[ir.Operation]:
        """An operation, after the chains of its operands that have one."""
        chain = [op]
        for value in op.operands:
            producer = owner(value)
            inner = self.chain(producer) if producer is not None else None
            if inner is not None:
                chain = [o for o in inner if o not in chain] + chain
        return chain

    def _padded_factor(self, region: Region, op: ir.Operation, chain: list[ir.Operation]) -> bool:
        """Is this an operand of a contraction behind a pad? Each element is read many times, so the pad is paid for once; not
        where no loop reads it again for other columns, as in a convolution of each channel by itself, nor where rows of pixels
        are copied with their padding for the filters of a group."""
        if op != region.root or region.kind is not OpKind.CONTRACTION or not any(o.name == "tensor.pad" for o in chain):
            return False
        if CODES in chain[-1].attributes:
            return False
        if zeros_of(chain[-1].results[0]) is None:
            return True
        return bool(Groups.of(op).n) and not rows_for_filters(op, self.partition.graph.shapes)
