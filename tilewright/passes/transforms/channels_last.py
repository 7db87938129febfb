"""channels-last: 2-D convolutions whose images keep their channels first are computed with channels last.

So the filters lie along the vectors and a block of pixels reads runs of channels. Images are transposed by copies of their own
(`tw.copy`); behind convolutions elementwise operations, pooling, convolutions of each channel by itself, concatenations and
windows of images follow in the same layout, and the copies that meet cancel; so do a model's own transposes to and from
channels last. Convolutions of groups whose filters fill vectors follow, and begin where their windows save multiplications.
Filters of each channel by itself go first where rows are so narrow that pixels would leave most of a vector empty, and follow
a result that is written channels last. A 1x1 convolution of enough pixels is a product with pixels along the vectors instead,
and moves nothing but, where it steps over pixels, those that it reads; so is a transposed one whose phases read one place
each, whose result is copied (phased_convolution.py). Convolutions over volumes follow where they have many channels,
and go over planes where that saves multiplications (volume_planes.py). Images of few channels, such as colours, are read as
they are by a convolution whose result no other reads. Convolutions over one axis have filters along the vectors where their
rows are short, and are products likewise where their window is one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import product_of
from tilewright.passes.base import Pass
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.copies import copied, transposed
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.reshape import Reshaper, collapses_free, product
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.structured import (
    compose,
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    loop_map,
    main_of,
    rebuild,
    users,
    uses_index,
)
from tilewright.passes.linalg.symbolic import integer, mixed, reassociation
from tilewright.passes.mlir import ir, maps_of, operations, owner, position, replace_all_uses, tensor, walk
from tilewright.passes.spaces.host.winograd_form import Form
from tilewright.passes.transforms.channel_windows import FIRST, LAST, SAME, is_window, window_loops
from tilewright.passes.transforms.convolution_form import is_convolution, is_pointwise, steps_of
from tilewright.passes.transforms.find_codes import CODES
from tilewright.passes.transforms.grouped_convolution import GroupedConvolution, reads_groups
from tilewright.passes.transforms.phased_convolution import PhasedConvolution
from tilewright.passes.transforms.volume_planes import VolumePlanes
from tilewright.runtime.shape import Expr

SHORT_ROW = 8  # pixels of a row, a register of AVX2: shorter rows leave lanes empty
NARROW_ROW = 7  # pixels, less than a register of AVX2 holds: 3x3 and 5x5 windows, rows of 1 to 16 pixels, strides of 1 and 2
# 3x3, 5x5 and 7x7 windows, steps of 1 and 2: with 1 to 4 channels 1.05 to 2.1 times as fast, with 8 to 32 0.84 to 1.16 times
FEW_CHANNELS = 4
_SEQUENCE = "linalg.conv_1d_ncw_fcw"
_MOVES = ("tensor.concat", "tensor.extract_slice", "tensor.collapse_shape", "tensor.expand_shape")
_GROUPS = (0, 1, 3, 4)  # the axis of [n, group, channel, row, column] at each axis of the image; of groups, at its channels


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """lanes: of the vectors that pixels would lie along; waste: percent of them that may be off in a 1x1 convolution. narrow:
    pixels of a row up to which filters of each channel by itself run over at least `lanes` channels. few: channels up to which a
    convolution stays, with pixels along the vectors, where no other reads its result. short: pixels of a row up to which
    convolutions over one axis run over at least `lanes` filters. volumes: filters times channels beyond which those over three
    axes do so, 0 for none; pairs: does the target multiply bf16 in pairs, of which they do so from a few channels on? winograd:
    may convolutions go through Winograd's transforms, which save multiplications? groups: registers of filters that
    a group has where convolutions of groups begin it, as many times as they step over pixels; 0 for none."""

    name: ClassVar[str] = "channels-last"
    lanes: int = 16
    waste: int = 15
    narrow: int = 0
    few: int = 0
    short: int = 0
    volumes: int = 0
    pairs: bool = False
    winograd: bool = False
    groups: int = 1

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            rewriter = _Rewriter(self, Reshaper(fn), {})
            for op in walk(fn):
                rewriter.visit(op)
            erase_unused(fn)


@dataclass(frozen=True)
class _Rewriter:
    """last: the channels-last form of images that have one."""

    options: ChannelsLast
    views: Reshaper
    last: dict[ir.Value, ir.Value]

    def visit(self, op: ir.Operation) -> None:
        with ir.InsertionPoint(op), op.location:
            if is_convolution(op):
                if self._skips(op):
                    self._product(op, self._read_pixels(op))
                elif self._stays_first(op):
                    self._product(op, op.operands[0])
                elif not self._has_few_channels(op):
                    self._convolve(op, self._image(op.operands[0]), *steps_of(op))
            elif self.options.winograd and (volume := VolumePlanes.of(op, self.views.shapes, self.options.lanes)) is not None:
                self._back(op, volume.convolved(self.views, self._image(op.operands[0]), self._start(op)))
            elif self._is_sequence(op) or self._is_volume(op) or self._is_swapped(op):
                self._over_filters(op)
            elif op.name == _SEQUENCE and is_pointwise(op):
                self._product(op, op.operands[0])
            elif is_window(op):
                if self._known(op.operands[0]) is not None or self._narrow(op):
                    self._back(op, self._window_made(op, self._image(op.operands[0]), self._start(op)))
            elif is_window(op, FIRST):
                self._replace(op, self._window_made(op, self._image(op.operands[0]), inits(op)[0]))
            elif is_window(op, FIRST, FIRST):
                self._replace(op, self._window_made(op, op.operands[0], inits(op)[0]))
            elif (phased := PhasedConvolution.of(op)) is not None:
                self._phases(phased)
            elif (grouped := GroupedConvolution.of(op, self.views.shapes)) is not None:
                self._groups(grouped)
            elif op.name in _MOVES and len(op.results) == 1:
                self._move(op)
            elif _is_elementwise(op) and not uses_index(op):
                self._elementwise(op)
            elif op.name == "linalg.generic":
                self._read_last(op)

    def _stays_first(self, op: ir.Operation) -> bool:
        """A 1x1 window with steps of one, whose pixels fill their vectors, of an image that is not channels-last already."""
        return is_pointwise(op) and self._known(op.operands[0]) is None and self._fills_vectors(op.operands[0]) and \
            not _in_codes(op)

    def _fills_vectors(self, image: ir.Value) -> bool:
        """Are all pixels of a channel one run that fills its vectors?"""
        extents = self.views.shapes.dims(image)[2:]
        return collapses_free(image, range(2, 2 + len(extents)), self.views.shapes) and self._fill(extents)

    def _fill(self, extents: Sequence[Expr]) -> bool:
        """Do so many pixels fill vectors?"""
        pixels = product(extents).constant
        lanes = self.options.lanes
        return pixels is None or -(-pixels // lanes) * lanes * 100 <= pixels * (100 + self.options.waste)

    def _narrow(self, op: ir.Operation) -> bool:
        """Filters of each of many channels by itself, over rows of few pixels, before and after."""
        image, shapes = op.operands[0], self.views.shapes
        pad = owner(image)
        source = pad.operands[0] if pad is not None and constant_pad(pad) else image
        channels = shapes.dims(image)[1].constant
        pixels = max(shapes.bounds(shapes.dims(value)[3])[1] for value in (source, op.results[0]))
        return product_of(op) is not None and 1 < pixels <= self.options.narrow and (channels or 0) >= self.options.lanes

    def _has_few_channels(self, op: ir.Operation) -> bool:
        """Runs of channels are short, and rows of the result, which no convolution reads, fill vectors of pixels."""
        image, shapes = op.operands[0], self.views.shapes
        channels, kinds = shapes.dims(image)[1].constant, [ir.RankedTensorType(v.type).element_type for v in op.operands]
        few = channels is not None and channels <= self.options.few and kinds == [kinds[0]] * len(kinds)
        return few and shapes.bounds(shapes.dims(op.results[0])[3])[1] >= self.options.lanes and \
            self._known(image) is None and not _wanted(op.results[0])

    def _skips(self, op: ir.Operation) -> bool:
        """A 1x1 window that steps over pixels, of which it reads enough to fill their vectors, of no channels-last image."""
        window = list(ir.RankedTensorType(op.operands[1].type).shape)[2:]
        return window == [1, 1] and min(steps_of(op)[0]) > 1 and self._known(op.operands[0]) is None and not _in_codes(op) and \
            self._fill(self.views.shapes.dims(op.results[0])[2:])

    def _read_pixels(self, op: ir.Operation) -> ir.Value:
        """A copy of the pixels that a 1x1 window reads."""
        image, steps = op.operands[0], steps_of(op)[0]
        dims = [*self.views.shapes.dims(image)[:2], *self.views.shapes.dims(op.results[0])[2:]]
        d = [ir.AffineExpr.get_dim(i) for i in range(4)]
        return copied(self.views, image, dims, [d[0], d[1], d[2] * steps[0], d[3] * steps[1]])

    def _product(self, op: ir.Operation, image: ir.Value) -> None:
        """out[n, f, p] = sum over c of image[n, c, p] * filter[f, c]."""
        filters = inputs(op)[1]
        n, c, *axes = self.views.shapes.dims(image)
        f, pixels = self.views.shapes.dims(filters)[0], product(axes)
        ins = [self.views.reshape(image, [n, c, pixels]), self.views.reshape(filters, [f, c])]
        start = self.views.reshape(inits(op)[0], [n, f, pixels])
        maps = [loop_map(4, 0, 3, 2), loop_map(4, 1, 3), loop_map(4, 0, 1, 2)]
        made = rebuild(op, ins, [start], maps, ["parallel", "parallel", "parallel", "reduction"])
        self._replace(op, self.views.reshape(made.results[0], [n, f, *axes]))

    def _convolve(self, op: ir.Operation, image: ir.Value, strides: Sequence[int], dilations: Sequence[int]) -> None:
        """Of a channels-last image. Loops image, row, column, filter, then window row, window column, channel."""
        filters = inputs(op)[1]
        d = [ir.AffineExpr.get_dim(i) for i in range(7)]
        window = [d[1 + i] * strides[i] + d[4 + i] * dilations[i] for i in range(2)]
        maps = [ir.AffineMap.get(7, 0, [d[0], *window, d[6]]), loop_map(7, 3, 6, 4, 5), loop_map(7, 0, 1, 2, 3)]
        made = rebuild(op, [image, filters], [self._start(op)], maps, ["parallel"] * 4 + ["reduction"] * 3)
        self._back(op, made.results[0])

    def _is_sequence(self, op: ir.Operation) -> bool:
        """A convolution over one axis, of many filters, whose rows are at most `short` pixels; of many channels, too, where it
        steps over pixels, which vectors of them would gather, or where its window saves multiplications."""
        if op.name != _SEQUENCE or not self.options.short:
            return False
        shapes, lanes = self.views.shapes, self.options.lanes
        filters, channels, window = (d.constant or 0 for d in shapes.dims(inputs(op)[1]))
        (step,), (dilation,) = steps_of(op)
        element = ir.RankedTensorType(op.operands[0].type).element_type
        words = isinstance(element, ir.IntegerType) or (self.options.pairs and str(element) == "bf16")
        saves = self.options.winograd and not words and dilation == 1 and Form.of([(window, step)]) is not None
        many = window > 1 and channels >= 2 * lanes and (step > 1 or saves)
        return filters >= lanes and (many or shapes.bounds(shapes.dims(op.results[0])[2])[1] <= self.options.short)

    def _is_volume(self, op: ir.Operation) -> bool:
        """A convolution over three axes of bf16 in pairs, of more factors than lie near, or of two vectors of filters and one of
        channels: 1.06 to 1.8 times as fast so on AVX-512, .95 to 1.2 times by AVX2, with one vector .6 to 1.0 times."""
        if not self.options.volumes or not is_convolution(op, 3):
            return False
        filters, channels = (d.constant or 0 for d in self.views.shapes.dims(inputs(op)[1])[:2])
        kinds = {str(ir.RankedTensorType(v.type).element_type) for v in inputs(op)}
        many = filters * channels > self.options.volumes or min(filters // 2, channels) >= self.options.lanes
        return filters >= self.options.lanes and (many or (self.options.pairs and kinds == {"bf16"} and channels > FEW_CHANNELS))

    def _is_swapped(self, op: ir.Operation) -> bool:
        """A convolution of images whose filters lie [c, f, row, column], as the phases of transposed ones."""
        return is_convolution(op, swapped=True) and not self._has_few_channels(op)

    def _over_filters(self, op: ir.Operation) -> None:
        """Loops image, places, filter, then places in the window, channel."""
        read, by, written = maps_of(op)
        n, f, *places = (position(e) for e in written.results)
        channel, taps = position(read.results[1]), [position(e) for e in list(by.results)[2:]]
        order, count = [n, *places, f, *taps, channel], maps_of(op)[0].n_dims
        loops = loop_map(count, *(order.index(d) for d in range(count)))
        maps = [_reordered(compose(read, loops), _last_order(len(read.results))), compose(by, loops),
                loop_map(count, *range(len(places) + 2))]
        made = rebuild(op, [self._image(op.operands[0]), inputs(op)[1]], [self._start(op)], maps,
                       ["parallel"] * (len(places) + 2) + ["reduction"] * (len(taps) + 1))
        self._back(op, made.results[0])

    def _start(self, op: ir.Operation) -> ir.Value:
        """What an operation starts from, with channels last."""
        start = inits(op)[0]
        made_by = owner(start)
        if made_by is not None and made_by.name in ("tensor.empty", "linalg.fill"):
            old = self.views.shapes.dims(op.results[0])
            return self.views.reshape(start, [old[a] for a in _last_order(len(old))])
        return self._image(start)

    def _window_made(self, op: ir.Operation, image: ir.Value, start: ir.Value) -> ir.Value:
        """Of a channels-last image, loops image, row, column, channel, then window row, window column."""
        maps, other = maps_of(op), inputs(op)[1]
        batch, channel, *places = window_loops(op)
        order = [batch, *places, channel, *(d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction")]
        loops = loop_map(6, *(order.index(d) for d in range(6)))  # loop of the new op at each loop of the old one
        read, kernel, _ = (compose(m, loops) for m in maps)
        if ir.RankedTensorType(other.type).rank == 3:  # a filter [channel, row, column], read along channels
            other, kernel = transposed(self.views, other, (1, 2, 0)), _reordered(kernel, (1, 2, 0))
        read = read if image == op.operands[0] else _reordered(read, LAST)
        made = rebuild(op, [image, other], [start], [read, kernel, loop_map(6, 0, 1, 2, 3)], ["parallel"] * 4 + ["reduction"] * 2)
        result: ir.Value = made.results[0]
        return result

    def _phases(self, phased: PhasedConvolution) -> None:
        """Pixels along the vectors with one tap, where they fill them, and in a convolution over other than two axes. Else loops
        in the order of the new result [n, row, phase, column, phase, f], the window's, the channel."""
        op, image = phased.op, phased.op.operands[0]
        if phased.has_one_tap(self.views.shapes) and self._known(image) is None and self._fills_vectors(image):
            self._replace(op, phased.as_product(self.views))
        elif len(phased.places) != 2:
            self._replace(op, phased.as_convolution(self.views))
        else:
            self._phases_last(phased)

    def _phases_last(self, phased: PhasedConvolution) -> None:
        op, maps = phased.op, maps_of(phased.op)
        beside = [d for pair in zip(phased.places, phased.phases, strict=True) for d in pair]
        order = [phased.batch, *beside, phased.filter, *phased.taps, phased.channel]
        loops = loop_map(len(order), *(order.index(d) for d in range(len(order))))
        read, by, _ = (compose(m, loops) for m in maps)
        accesses = [_reordered(read, LAST), by, loop_map(len(order), *range(6))]
        old = self.views.shapes.dims(op.results[0])
        start = self.views.reshape(inits(op)[0], [old[a] for a in (0, 2, 3, 4, 5, 1)])
        made = rebuild(op, [self._image(op.operands[0]), inputs(op)[1]], [start], accesses, ["parallel"] * 6 + ["reduction"] * 3)
        self._back(op, made.results[0])

    def _groups(self, grouped: GroupedConvolution) -> None:
        """Where the filters of a group fill vectors, and the image is channels-last or the windows save multiplications
        (host_winograd): others read images in place, while copies of a batch leave the caches.

        Loops n, row, column, group, filter, then the window's, the channel.
        """
        lanes = self.options.lanes
        begins = self.options.groups > 0 and grouped.saves_products(lanes * self.options.groups)
        if grouped.filters < lanes or (self._known(grouped.image) is None and not begins):
            return
        image = grouped.image if grouped.pad is None else _padded(grouped.pad, grouped.image, _GROUPS)
        made = grouped.channels_last(self.views, self._image(image))
        first = transposed(self.views, made, FIRST)
        for user in grouped.collapses:
            self._replace(user, first)
        self.last[first] = made

    def _move(self, op: ir.Operation) -> None:
        """A concatenation, a window or a reshape of values that have a channels-last form, where it keeps batch and channels."""
        tensors = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
        known = [self._known(v) for v in tensors]
        rank, source = op.results[0].type.rank, tensors[0].type.rank
        found = [v for v in known if v is not None]
        if len(found) < len(known) or rank not in (4, 5, 6):
            return
        old = list(self.views.shapes.dims(op.results[0]))
        dims = [old[a] for a in _last_order(rank)]
        if op.name == "tensor.concat":
            at = _last_order(rank).index(integer(op.attributes["dim"]))
            self._back(op, tensor.ConcatOp(tensor_type(dims, op.results[0].type.element_type), at, found).result)
        elif op.name == "tensor.extract_slice":
            if source == rank:
                self._back(op, self._window_of(op, found[0], dims))
        elif reassociation(op)[:2] == [[0], [1]]:
            self._back(op, self.views.reshape(found[0], dims))

    def _window_of(self, op: ir.Operation, value: ir.Value, dims: Sequence[Expr]) -> ir.Value:
        """The window that `op` takes, of the channels-last form `value`."""
        numbers = [[mixed(op, name, 1 + i)[a] for a in _last_order(len(dims))]
                   for i, name in enumerate(("static_offsets", "static_sizes", "static_strides"))]
        absent = int(ir.ShapedType.get_dynamic_size())
        dynamic = [[x for x in found if not isinstance(x, int)] for found in numbers]
        static = [[x if isinstance(x, int) else absent for x in found] for found in numbers]
        type_ = ir.RankedTensorType.get(static[1], value.type.element_type)
        return tensor.ExtractSliceOp(type_, value, *dynamic, *static).result

    def _elementwise(self, op: ir.Operation) -> None:
        """Of images, at least one of them channels-last, on the way to another convolution or written channels last."""
        maps = maps_of(op)
        axes = [_axes(m, maps[-1]) for m in maps[:-1]]
        known = [a for v, a in zip(inputs(op), axes, strict=False) if a in (SAME, LAST) and self._known(v) is not None]
        if LAST in known:
            self._write_last(op, axes)
        elif ((FIRST in axes or known) and _wanted(op.results[0])) or (known and self._narrows(op, axes)):
            self._write_first(op, axes)

    def _narrows(self, op: ir.Operation, axes: Sequence[tuple[int, ...] | None]) -> bool:
        """Does it make narrower elements of images that are all channels-last, so that these are what a copy behind it moves?"""
        images = [v for v, a in zip(inputs(op), axes, strict=False) if a is not None and self._known(v) is not None]
        widths = [ir.RankedTensorType(v.type).element_type.width for v in (*images, op.results[0])]
        return len(images) == sum(a is not None for a in axes) and max(widths[:-1], default=0) > widths[-1]

    def _write_last(self, op: ir.Operation, axes: Sequence[tuple[int, ...] | None]) -> None:
        """What `op` makes channels last of images; its loops in that order."""
        maps = maps_of(op)
        written = [position(e) for e in maps[-1].results]
        loops = loop_map(4, *(written.index(d) for d in range(4)))  # loop of the new op at each loop of the old one
        known = [self._known(v) if a == LAST else None for v, a in zip(inputs(op), axes, strict=False)]
        ins = [v if image is None else image for v, image in zip(inputs(op), known, strict=False)]
        accesses = [compose(m if image is None else maps[-1], loops) for m, image in zip(maps, known, strict=False)]
        made = rebuild(op, ins, inits(op), [*accesses, compose(maps[-1], loops)], ["parallel"] * 4)
        self._replace(op, made.results[0])

    def _read_last(self, op: ir.Operation) -> None:
        """Sums over channels, and the like, of images: `op` reads those channels last that its loops walk so."""
        maps = maps_of(op)
        for i, (value, m) in enumerate(zip(inputs(op), maps, strict=False)):
            if len(m.results) == 4 == m.n_dims and _reordered(m, LAST) == ir.AffineMap.get_identity(4) and \
                    (known := self._known(value)) is not None:
                op.operands[i], maps[i] = known, ir.AffineMap.get_identity(4)
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])

    def _write_first(self, op: ir.Operation, axes: Sequence[tuple[int, ...] | None]) -> None:
        """The channels-last form of what `op` makes channels first."""
        if list(axes) == [FIRST] and _moves_only(op):
            self.last[op.results[0]] = op.operands[0]
            return
        written = [position(e) for e in maps_of(op)[-1].results]
        order = [written[a] for a in LAST]
        loops = loop_map(4, *(order.index(d) for d in range(4)))  # loop of the channels-last op at each loop of the old one
        ins = [self._image(v) if a == SAME else v for v, a in zip(inputs(op), axes, strict=False)]
        accesses = [ir.AffineMap.get_identity(4) if a == SAME else compose(m, loops)
                    for m, a in zip(maps_of(op), axes, strict=False)]
        start = inits(op)[0]
        empty = self.views.empty([self.views.shapes.dims(start)[a] for a in LAST], ir.RankedTensorType(start.type).element_type)
        if len(list(op.regions[0].blocks[0].arguments[len(ins)].uses)):
            empty = self._image(start)
        made = rebuild(op, ins, [empty], [*accesses, ir.AffineMap.get_identity(4)], ["parallel"] * 4)
        self._back(op, made.results[0])

    def _image(self, value: ir.Value) -> ir.Value:
        """A channels-first image with its channels last: what is known, else a copy."""
        known = self._known(value)
        if known is None:
            known = self.last[value] = transposed(self.views, value, _last_order(value.type.rank))
        return known

    def _known(self, value: ir.Value) -> ir.Value | None:
        """The channels-last form of an image, or of what it pads."""
        if value in self.last:
            return self.last[value]
        op = owner(value)
        if op is None:
            return None
        if op.name == "tensor.cast":
            return self._known(op.operands[0])
        if not constant_pad(op) or len(op.operands) != 1:
            return None
        source = self._known(op.operands[0])
        if source is None:
            return None
        self.last[value] = _padded(op, source, _last_order(len(source.type.shape)))
        return self.last[value]

    def _back(self, op: ir.Operation, made: ir.Value) -> None:
        """The channels-last result of `op` in place of its channels-first one."""
        rank = made.type.rank
        self.last[self._replace(op, transposed(self.views, made, (0, rank - 1, *range(1, rank - 1))))] = made

    def _replace(self, op: ir.Operation, value: ir.Value) -> ir.Value:
        value = self.views.as_type(value, op.results[0].type)
        replace_all_uses(op.results[0], value)
        return value


def _wanted(value: ir.Value) -> bool:
    """Does the value reach a convolution, or a place that wants it channels last, through pads and elementwise operations?"""
    reached, todo = {value}, [value]
    while todo:
        value = todo.pop()
        for user in users(value):
            windows = is_window(user) or is_window(user, FIRST)
            convolves = is_convolution(user) or is_convolution(user, swapped=True)
            if (convolves or windows or PhasedConvolution.of(user) is not None) and user.operands[0] == value:
                return True
            if user.name == "tensor.expand_shape" and reads_groups(user):
                return True
            if _is_elementwise(user) and LAST in [_axes(m, maps_of(user)[-1]) for v, m in zip(
                    inputs(user), maps_of(user), strict=False) if v == value]:
                return True
            passes = constant_pad(user) or user.name == "tensor.cast" or _is_elementwise(user)
            if passes and user.results[0].type.rank == 4 and user.results[0] not in reached:
                reached.add(user.results[0])
                todo.append(user.results[0])
    return False


def _is_elementwise(op: ir.Operation) -> bool:
    """Of one result, a permutation of four loops."""
    if op.name != "linalg.generic" or len(op.results) != 1 or "reduction" in iterator_kinds(op):
        return False
    maps = maps_of(op)
    return maps[-1].n_dims == 4 == len(maps[-1].results) and all(m.is_projected_permutation for m in maps)


def _axes(read: ir.AffineMap, written: ir.AffineMap) -> tuple[int, ...] | None:
    """The axis of a value read at each axis of one written; None of values of other ranks."""
    at = [position(e) for e in read.results]
    return tuple(at.index(position(e)) for e in written.results) if len(at) == 4 else None


def _moves_only(op: ir.Operation) -> bool:
    """Does an elementwise operation write what it reads?"""
    first = operations(op.regions[0].blocks[0])[0]
    return first.name == "linalg.yield" and bool(first.operands[0] == op.regions[0].blocks[0].arguments[0])


def _last_order(rank: int) -> tuple[int, ...]:
    """The axis of a channels-first value at each axis of the channels-last one."""
    return (0, *range(2, rank), 1)


def _in_codes(op: ir.Operation) -> bool:
    """Are the filters decoded from codes, which kernels do along the vectors?"""
    made = owner(inputs(op)[1])
    return made is not None and CODES in made.attributes


def _padded(op: ir.Operation, source: ir.Value, order: Sequence[int]) -> ir.Value:
    """The constant pad `op` of `source`, which has axis order[i] of what `op` pads at axis i, or all groups' channels."""
    low, high = (mixed(op, name, 1 + i) for i, name in enumerate(("static_low", "static_high")))
    old, new = list(ir.RankedTensorType(op.results[0].type).shape), list(ir.RankedTensorType(source.type).shape)
    shape = [n if low[a] == high[a] == 0 else old[a] for n, a in zip(new, order, strict=True)]
    numbers = {name: ir.DenseI64ArrayAttr.get([found[a] for a in order])
               for name, found in (("static_low", low), ("static_high", high))}
    made = ir.Operation.create(
        "tensor.pad", [ir.RankedTensorType.get(shape, ir.RankedTensorType(source.type).element_type)], [source],
        {**numbers, "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0])}, regions=1,
    )  # fmt: skip
    block = ir.Block.create_at_start(made.regions[0], [ir.IndexType.get()] * len(shape))
    inner = op.regions[0].blocks[0]
    value = operations(inner)[-1].operands[0]
    with ir.InsertionPoint(block):
        if value.owner.operation in operations(inner):
            value = clone(value.owner.operation, lambda v: v).results[0]
        ir.Operation.create("tensor.yield", operands=[value])
    return made.results[0]


def _reordered(m: ir.AffineMap, order: Sequence[int]) -> ir.AffineMap:
    """The map with result order[i] at place i."""
    return ir.AffineMap.get(m.n_dims, 0, [m.results[a] for a in order])
