"""pack-constants: weights bound at compile time are laid out once, in panels that a matmul reads front to back.

The columns of a [k, n] constant become [ceil(n / tile)][k][tile]; the contraction reads it through the map
(n floordiv tile, k, n mod tile), so every kernel of an operator shares the one copy. A convolution's filter keeps its window
and channel axes between panel and column, and with them the axes of other loops that only it varies with.
Codes of a decoding that a matmul reads lie in words of four bytes, [ceil(n / tile)][ceil(bytes / 4)][tile][4], and its scales and
zero points in panels of the same columns. Indices of pools lie in panels of up to 32 columns, [ceil(n / tile)][...][c / V][tile].
Weights that data name, one for each of a batch, lie so too: the lookup (passes/dispatch_creation/lookup_panels.py) reads panels.
Where the target multiplies words of several values of the last of k, these lie side by side: of two bf16 in
[ceil(n / tile)][ceil(k / 2)][tile][2], read through (n floordiv tile, k floordiv 2, n mod tile, k mod 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.canonical_spec import KEY, KIND, key_of
from tilewright.passes.analysis.codes import WORD, Codes, multiplies
from tilewright.passes.analysis.contraction import OUT, Contraction, used_loops
from tilewright.passes.analysis.pools import Pools, loop_of, pooled_columns
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.lookup_panels import TableLookup
from tilewright.passes.dispatch_creation.outlined import root_of
from tilewright.passes.dispatch_creation.region_function import PANEL, UNIT
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds, rebuild, use_count
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, SymbolicShapes, argument_attributes, integer, write_dims
from tilewright.passes.mlir import flat_operations, functions, ir, maps_of, operations, owner, position, replace_all_uses
from tilewright.passes.spaces.host.host_block import panel_block, register_block, values_of_word
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.limits import HostLimits

INDEX_COLUMNS = 32  # bytes of indices that a kernel takes from one place
PACK = "tw.pack"  # of an argument of @main: [source argument, tile, values of k side by side, axis of the columns, other axes]


@dataclass(frozen=True)
class PackConstants(Pass):
    """vector_bytes, vector_registers: of the target; a panel is as wide as the main register block of the family host_matmul.

    bf16_pairs: does the target multiply bf16 in pairs? byte_products: how many products of bytes it adds at once. last_cache: its
    bytes; panels from a distant one are narrower. tiles: does the target multiply tiles? Then parts of words stay as they are.
    """

    name: ClassVar[str] = "pack-constants"
    vector_bytes: int = 64
    vector_registers: int = 32
    bf16_pairs: bool = False
    byte_products: int = 1
    last_cache: int = HostLimits.l3
    tiles: bool = False

    def run(self, module: ir.Module) -> None:
        named = {ir.StringAttr(fn.attributes["sym_name"]).value: fn for fn in functions(module)}
        mains = [fn for fn in named.values() if KEY not in fn.attributes]
        if len(mains) != 1:
            return
        calls = [op for op in flat_operations(mains[0].regions[0].blocks[0]) if op.name == "func.call"]
        for name, fn in named.items():
            if KEY in fn.attributes and Kind(ir.StringAttr(fn.attributes[KIND]).value) is Kind.CONTRACTION:
                sites = [c for c in calls if ir.FlatSymbolRefAttr(c.attributes["callee"]).value == name]
                limits = HostLimits(self.vector_bytes, self.vector_registers, bf16_pairs=self.bf16_pairs,
                                    byte_products=self.byte_products, tiles=self.tiles, l3=self.last_cache)
                _pack(fn, mains[0], sites, limits)
                _pack_codes(fn, mains[0], sites, limits)


@dataclass(frozen=True)
class _PanelLayout:
    """How operand `which` of a contraction may lie in panels. axis: of its columns; order: its other axes, in the order of the
    loops; side: values of the last of them that lie side by side; plain: is the sum one over a single loop, besides loops of one
    step? lookup: what the operand is looked up by, where axes are those of the table."""

    which: int
    axis: int
    order: tuple[int, ...]
    side: int
    plain: bool = False
    lookup: TableLookup | None = None


def _pack(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], limits: HostLimits) -> None:
    root = root_of(fn, Kind.CONTRACTION)
    layout = _packable(fn, root, limits)
    if layout is None or not sites:
        return
    argument = root.operands[layout.which] if layout.lookup is None else layout.lookup.table
    columns = ir.RankedTensorType(argument.type).shape[layout.axis]
    tile = panel_columns(columns, argument.type.element_type, limits, layout.plain and layout.side == 1)
    if columns < tile or not _outer(fn, main, sites, argument):
        return
    packed = _panel_type(argument, layout, tile)
    _rewrite(root, layout, packed, argument)
    _hand_over(fn, main, sites, (argument, packed), [tile, layout.side, layout.axis, *layout.order])


def _pack_codes(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], limits: HostLimits) -> None:
    """The operands of a decoding that the root reads, where it runs along the columns of the root's result: codes in words of
    bytes, scales and zero points in panels of as many columns."""
    root = root_of(fn, Kind.CONTRACTION)
    try:
        view = Contraction.of(root, SymbolicShapes(fn))
    except ValueError:
        return
    for which in (0, 1):
        pools = Pools.of(owner(root.operands[which]))
        n = None if pools is None or pools.tile else pooled_columns(view, which, pools)
        if pools is not None and n is not None and loop_of(view, which, pools, n) == _column(fn, root, view):
            given = [pools.op.operands[book.index] for book in pools.books]
            if all(_is_own(fn, main, sites, v) for v in given):
                _pack_indices(fn, main, sites, pools, n)
            continue
        codes, along = Codes.of(owner(root.operands[which])), [position(e) for e in maps_of(root)[which].results]
        if codes is None or codes.tile or not multiplies(view, which, codes):
            continue
        given = inputs(codes.op)
        out = [position(e) for e in maps_of(codes.op)[-1].results]
        if along[out.index(codes.n)] != _column(fn, root, view) or len(set(given)) < len(given):
            continue
        if all(_is_own(fn, main, sites, v) for v in given):
            _pack_decoding(fn, main, sites, codes, limits)


def _is_own(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], value: ir.Value) -> bool:
    """Is it a constant that one operation reads, and every call is given as @main has it?"""
    arguments = list(fn.regions[0].blocks[0].arguments)
    return value in arguments and CONSTANT in argument_attributes(fn)[arguments.index(value)] and use_count(value) == 1 and \
        _outer(fn, main, sites, value)


def _pack_indices(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], pools: Pools, n: int) -> None:
    """The bytes of every book in panels of columns."""
    op, maps = pools.op, maps_of(pools.op)
    loop = ir.AffineExpr.get_dim(n)
    for book in pools.books:
        argument, old = op.operands[book.index], list(maps[book.index].results)
        axis = next(a for a, e in enumerate(old) if position(e) == n)
        tile = index_columns(ir.RankedTensorType(argument.type).shape[axis])
        layout = _PanelLayout(0, axis, tuple(a for a in range(len(old)) if a != axis), 1)
        panel, column = ir.AffineExpr.get_floor_div(loop, tile), ir.AffineExpr.get_mod(loop, tile)
        maps[book.index] = ir.AffineMap.get(maps[book.index].n_dims, 0, [panel, *(old[a] for a in layout.order), column])
        packed = _panel_type(argument, layout, tile)
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
        _hand_over(fn, main, sites, (argument, packed), [tile, 1, axis, *layout.order])


def index_columns(columns: int) -> int:
    """Columns of a panel of indices: 32, or all that there are in whole eights."""
    return min(INDEX_COLUMNS, -(-columns // 8) * 8)


def _pack_decoding(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], codes: Codes, limits: HostLimits) -> None:
    op, maps = codes.op, maps_of(codes.op)
    n = ir.AffineExpr.get_dim(codes.n)
    columns = ir.RankedTensorType(op.results[0].type).shape[[position(e) for e in maps[-1].results].index(codes.n)]
    tile = panel_columns(columns, op.results[0].type.element_type, limits)
    for number, argument in enumerate(inputs(op)):
        old = list(maps[number].results)
        axis = next(a for a, e in enumerate(old) if position(e) == codes.n)
        order = tuple(a for a in range(len(old)) if a != axis)
        layout = _PanelLayout(0, axis, order, WORD if any(p.codes == number for p in codes.planes) else 1)
        within = [old[a] for a in order]
        last = []
        if layout.side > 1:
            last = [ir.AffineExpr.get_mod(within[-1], WORD)]
            within[-1] = ir.AffineExpr.get_floor_div(within[-1], WORD)
        panel, column = ir.AffineExpr.get_floor_div(n, tile), ir.AffineExpr.get_mod(n, tile)
        maps[number] = ir.AffineMap.get(2, 0, [panel, *within, column, *last])
        packed = _panel_type(argument, layout, tile)
        op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])
        _hand_over(fn, main, sites, (argument, packed), [tile, layout.side, axis, *order])


def _outer(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], argument: ir.Value) -> bool:
    """Is every call given an argument of @main for it, and no view of one?"""
    number = list(fn.regions[0].blocks[0].arguments).index(argument)
    outer = list(main.regions[0].blocks[0].arguments)
    return bool(sites) and all(c.operands[number] in outer and c.operands[number].type == argument.type for c in sites)


def _panel_type(argument: ir.Value, layout: _PanelLayout, tile: int) -> ir.RankedTensorType:
    """What an operand is in panels of so many columns."""
    extents = list(ir.RankedTensorType(argument.type).shape)
    within = [extents[a] for a in layout.order]
    shape = [-(-extents[layout.axis] // tile), *within, tile]
    if layout.side > 1:
        shape = [shape[0], *within[:-1], -(-within[-1] // layout.side), tile, layout.side]
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(argument.type).element_type)


def _hand_over(fn: ir.Operation, main: ir.Operation, sites: list[ir.Operation], operand: tuple[ir.Value, ir.RankedTensorType],
               layout: list[int]) -> None:
    """An argument of a workload, and of its calls, becomes the packed one. layout: tile, values side by side, axis of columns,
    other axes."""
    argument, packed = operand
    number = list(fn.regions[0].blocks[0].arguments).index(argument)
    sources = [c.operands[number] for c in sites]
    outer = list(main.regions[0].blocks[0].arguments)
    argument.set_type(packed)
    unit = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), packed.rank - 1)
    _annotate(fn, {number: {DIMS: write_dims(list(packed.shape)), UNIT: unit, CONSTANT: ir.UnitAttr.get(),
                            PANEL: ir.IntegerAttr.get(unit.type, layout[0])}})
    _retype(fn)
    fn.attributes[KEY] = ir.StringAttr.get(key_of(fn))
    copies: dict[int, ir.Value] = {}
    named: dict[int, dict[str, ir.Attribute]] = {}
    places = {value: place for place, value in enumerate(outer)}
    for call, source in zip(sites, sources, strict=True):
        given = places[source]
        if given not in copies:
            named[len(outer) + len(copies)] = {
                DIMS: write_dims(list(packed.shape)), CONSTANT: ir.UnitAttr.get(), PACK: write_dims([given, *layout])}
            copies[given] = main.regions[0].blocks[0].add_argument(packed, main.location)
        call.operands[number] = copies[given]
    _annotate(main, named)
    _retype(main)


def panel_columns(columns: int, element: ir.Type, limits: HostLimits, plain: bool = False) -> int:
    """Columns of a panel: the vectors of the main register block, of the accumulator's type. plain: for a product of single
    values, summed over one loop."""
    lanes = limits.lanes(max(4, element.width // 8))
    return lanes * (panel_block if plain else register_block)(columns, lanes, limits)[1]


def _packable(fn: ir.Operation, root: ir.Operation, limits: HostLimits) -> _PanelLayout | None:
    """Of a constant argument that only the root reads."""
    shapes = SymbolicShapes(fn)
    try:
        view = Contraction.of(root, shapes)
    except ValueError:  # no contraction to the family host_matmul
        return None
    named = argument_attributes(fn)
    arguments = list(fn.regions[0].blocks[0].arguments)
    results = operations(fn.regions[0].blocks[0])[-1].operands
    column = _column(fn, root, view)
    if column in view.batch:
        return None  # every column has factors of its own: no rows share what a panel holds
    for which in (0, 1):
        m, lookup = maps_of(root)[which], TableLookup.of(root.operands[which])
        value = root.operands[which] if lookup is None else lookup.table
        if value not in arguments or CONSTANT not in named[arguments.index(value)] or use_count(value) != 1:
            continue
        loops = [position(e) for e in m.results]
        if None in loops or column not in loops or len(results) == 0:
            continue
        chosen = []
        if lookup is not None:  # the axes along which data name places come first
            loops = [None if a is None else loops[a] for a in lookup.axes]
            chosen = [a for a, d in enumerate(loops) if d is None]
            if column not in loops:
                continue
        others, own = sorted(d for d in used_loops(m) if d != column), (*view.batch, *view.k, *(view.m, view.n)[which])
        if any(d not in own for d in others) or any(e.constant is None for e in shapes.dims(value)):
            continue
        axis = loops.index(column)
        along = others and others[-1] == view.k[-1] and column not in view.loops_of(1 - which)
        side = values_of_word(view.multiplies_bf16(), view.byte_signs(), limits) if along else 1
        other = [position(e) for e in maps_of(root)[1 - which].results]
        if side > 1 and view.k[-1] not in other:
            return None  # no operand would have the loop as an axis
        if limits.tiles and len(view.k) > 1 and not view.extents[view.k[-1]].divisible_by(side):
            side = 1  # each of many short sums would end in a part of a word, which no tile takes
        order = (*chosen, *(loops.index(d) for d in others if d in loops))
        plain = sum(view.extents[d].constant != 1 for d in view.k) == 1
        return _PanelLayout(which, axis, order, side, plain, lookup)
    return None


def _column(fn: ir.Operation, root: ir.Operation, view: Contraction) -> int | None:
    """The loop along the unit-stride axis of the root's result; None when the function's result is stored another way."""
    result = operations(fn.regions[0].blocks[0])[-1].operands[0]
    attribute = {n.name: n.attr for n in ir.DictAttr(ir.ArrayAttr(fn.attributes["res_attrs"])[0])}
    rank = ir.RankedTensorType(result.type).rank
    unit = integer(attribute[UNIT]) if UNIT in attribute else rank - 1
    out = view.maps[OUT]
    if rank != len(out.results) or not _same_frame(result, root):
        return None
    return position(out.results[unit])


def _same_frame(value: ir.Value, root: ir.Operation) -> bool:
    """Are the elementwise ops between the root and `value` all identity maps of the root's result?"""
    op = owner(value)
    if op is None or op == root:
        return op is not None
    if not op.name.startswith("linalg."):
        return False
    maps = maps_of(op)
    if maps[-1] != ir.AffineMap.get_identity(maps[-1].n_dims):
        return False
    through = [v for v, m in zip(inputs(op), maps, strict=False)
               if m == ir.AffineMap.get_identity(m.n_dims) and owner(v) is not None]
    return any(_same_frame(v, root) for v in through)


def _rewrite(root: ir.Operation, layout: _PanelLayout, packed: ir.RankedTensorType, argument: ir.Value) -> None:
    """The root as a generic whose operand is read through the packed layout."""
    maps, which, side = maps_of(root), layout.which, layout.side
    tile = packed.shape[-1] if side == 1 else packed.shape[-2]
    old = maps[which]
    lookup, axis, order, last = layout.lookup, layout.axis, list(layout.order), []
    if lookup is not None:  # of what is looked up
        axis, order = lookup.axes[axis] or 0, lookup.outer(order)
    column, inner = old.results[axis], [old.results[a] for a in order]
    if side > 1:
        last = [ir.AffineExpr.get_mod(inner[-1], side)]
        inner[-1] = ir.AffineExpr.get_floor_div(inner[-1], side)
    new = [ir.AffineExpr.get_floor_div(column, tile), *inner, ir.AffineExpr.get_mod(column, tile), *last]
    maps[which] = ir.AffineMap.get(old.n_dims, 0, new)
    holder = ir.Operation.create("builtin.unrealized_conversion_cast", [packed], [argument], ip=ir.InsertionPoint(root))
    read = holder.results[0] if lookup is None else lookup.in_panels(layout.order, layout.axis, packed.shape, side)
    operands = [read if i == which else v for i, v in enumerate(inputs(root))]
    made = rebuild(root, operands, inits(root), maps, iterator_kinds(root))
    replace_all_uses(root.results[0], made.results[0])
    root.erase()
    if lookup is None:
        made.operands[which] = argument
    else:
        lookup.op.erase()
    holder.erase()


def _annotate(fn: ir.Operation, attributes: Mapping[int, dict[str, ir.Attribute]]) -> None:
    """Those of arguments by number; numbers beyond the last one add to them, in order."""
    every = [ir.DictAttr(a) for a in ir.ArrayAttr(fn.attributes["arg_attrs"])]
    for number, own in attributes.items():
        every[number:number + 1] = [ir.DictAttr.get(own)]
    fn.attributes["arg_attrs"] = ir.ArrayAttr.get(every)


def _retype(fn: ir.Operation) -> None:
    """The function's type from its block arguments."""
    block = fn.regions[0].blocks[0]
    results = [v.type for v in operations(block)[-1].operands]
    fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in block.arguments], results))
