"""Convolutions of groups: filters of a group of channels each, as their builder makes them of images whose channels are cut."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.contraction import linear_terms, product_of
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import compose, inits, inputs, iterator_kinds, loop_map, rebuild, users
from tilewright.passes.linalg.symbolic import SymbolicShapes, reassociation
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.passes.spaces.host.winograd_form import Form

_CUT = [[0], [1, 2], [3], [4]]  # the axes of [n, group, channel, row, column] behind those of an image


@dataclass(frozen=True)
class GroupedConvolution:
    """Loops n, group, filter, row, column, channel, window row, window column, of image[n, group, channel, ...].

    image: [n, all channels, row, column], which `pad`, if any, pads after it was cut into groups. collapses: the readers, each of
    which puts the filters of all groups in one axis. filters: of a group.
    """

    op: ir.Operation
    image: ir.Value
    pad: ir.Operation | None
    collapses: tuple[ir.Operation, ...]
    filters: int

    @staticmethod
    def of(op: ir.Operation, shapes: SymbolicShapes) -> GroupedConvolution | None:
        """None of anything else, of what is added to another tensor, and of a window of one pixel."""
        start = owner(inits(op)[0]) if _is_grouped(op) else None
        if start is None or start.name not in ("tensor.empty", "linalg.fill"):
            return None
        made_by = owner(op.operands[0])
        pad = made_by if made_by is not None and _is_pad(made_by) else None
        cut, collapses = made_by if pad is None else owner(pad.operands[0]), users(op.results[0])
        filters = shapes.dims(op.operands[1])
        if cut is None or cut.name != "tensor.expand_shape" or reassociation(cut) != _CUT or filters[2].constant is None or \
                any(u.name != "tensor.collapse_shape" or reassociation(u) != _CUT for u in collapses) or \
                [e.constant for e in filters[3:]] == [1, 1]:
            return None
        return GroupedConvolution(op, cut.operands[0], pad, tuple(collapses), filters[1].constant or 0)

    def saves_products(self, least: int) -> bool:
        """Is the window of a form that host_winograd takes, and do the filters of a group make up for copies, as so many do?"""
        extents = list(ir.RankedTensorType(self.op.operands[1].type).shape)[3:]
        terms = [linear_terms(e) or {} for e in list(maps_of(self.op)[0].results)[3:]]
        kinds = iterator_kinds(self.op)
        steps, taps = ([c for t in terms for d, c in t.items() if kinds[d] == kind] for kind in ("parallel", "reduction"))
        served = taps == [1, 1] and Form.of(list(zip(extents, steps, strict=True))) is not None
        return served and self.filters >= least * max(steps)

    def channels_last(self, views: Reshaper, image: ir.Value) -> ir.Value:
        """[n, row, column, filters of all groups], of the padded image [n, row, column, channels of all groups]."""
        n, groups, filters, *places = views.shapes.dims(self.op.results[0])
        channels = views.shapes.dims(inputs(self.op)[1])[2]
        cut = views.reshape(image, [*views.shapes.dims(image)[:3], groups, channels])
        loops = loop_map(8, 0, 3, 4, 1, 2, 7, 5, 6)  # loop of the new op at each loop of the old one
        read, by, _ = (compose(m, loops) for m in maps_of(self.op))
        read = ir.AffineMap.get(8, 0, [read.results[a] for a in (0, 3, 4, 1, 2)])
        start = views.reshape(inits(self.op)[0], [n, *places, groups, filters])
        made = rebuild(self.op, [cut, inputs(self.op)[1]], [start], [read, by, loop_map(8, 0, 1, 2, 3, 4)],
                       ["parallel"] * 5 + ["reduction"] * 3)
        return views.reshape(made.results[0], [n, *places, groups * filters])


def reads_groups(cut: ir.Operation) -> bool:
    """Does a convolution of groups read the image that is cut so, or its pad?"""
    readers = users(cut.results[0])
    return any(_is_grouped(u) or (_is_pad(u) and any(_is_grouped(v) for v in users(u.results[0]))) for u in readers)


def _is_pad(op: ir.Operation) -> bool:
    return constant_pad(op) and len(op.operands) == 1


def _is_grouped(op: ir.Operation) -> bool:
    if op.name != "linalg.generic" or len(op.results) != 1 or len(op.operands) != 3 or product_of(op) is None:
        return False
    image, by, result = maps_of(op)
    if result != loop_map(8, 0, 1, 2, 3, 4) or by != loop_map(8, 1, 2, 5, 6, 7) or \
            iterator_kinds(op) != ["parallel"] * 5 + ["reduction"] * 3:
        return False
    read = list(image.results)
    windows = [set(linear_terms(e) or ()) for e in read[3:]]
    return [position(e) for e in read[:3]] == [0, 1, 5] and windows == [{3, 6}, {4, 7}]
