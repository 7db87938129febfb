"""GpuKernel: the frame of a GPU kernel that a family fills: one entry per launch, a parameter per slot.

Coordinates and offsets are `index_bits` wide. With 32 bits, guards keep every operand within 2^31 elements. Accesses of several
elements are guarded too: by the offset and the strides of the operands that they touch. Kernels of a function with the attribute
`tw.predicate` take the address of a byte last, and return at once where it is 0. Kernels of one with `tw.segments` serve all
sequences of a batch: a block finds the one that it works for in a block table, whose address comes last (Param.by_sequence), and
what the emitters see is the problem of that sequence alone. Those of equal operators on many tensors have their entries by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tilewright.passes.codegen.emit import Memory, all_of, byte_width, gep, integer_type, resized
from tilewright.passes.codegen.gpu_memory import WIDEST, GpuMemory
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.codegen.kernel_frame import KernelFrame, TensorSlot
from tilewright.passes.linalg.symbolic import IN_PLACE, PREDICATE, SEGMENTS, WHOLE_TILES
from tilewright.passes.mlir import ir, llvm, nvvm, operations
from tilewright.passes.spaces.segments import Segments
from tilewright.runtime.program.kernel import OUTER, Launch, MicroKernel, Param, offset_symbol, stride_symbol
from tilewright.runtime.program.tensor_map import ALIGNMENT, MAP_ALIGNMENT, MAP_BYTES, MOST_AXES
from tilewright.runtime.shape import Expr

SHARED = "shared_memory"
_SLACK = 1 << 16  # coordinates run past an extent by less than a tile

Grid = tuple[Expr, Expr, Expr]


class GpuKernel(KernelFrame):
    """`launch` emits one entry each; `finish` erases the region; `describe` gives the metadata of all entries. early: entries
    wait themselves for the launches in front of them (sm_90 on)."""

    def __init__(self, module: ir.Module, symbol: str, index_bits: int = 32, early: bool = False) -> None:
        super().__init__(module, symbol, integer_type(index_bits))
        self.index_bits, self.early = index_bits, early
        self.guards: dict[Expr, None] = {}
        self.launches: list[Launch] = []
        self.workspace = Expr.of(0)
        self.shared_bytes = 0
        self.threads = 0
        self._goes_by_byte = PREDICATE in self.fn.attributes
        self.by_sequence = SEGMENTS in self.fn.attributes
        self.in_whole_tiles = self.by_sequence or WHOLE_TILES in self.fn.attributes
        self._first_block: Index | None = None
        self._members = 0
        if self.by_sequence:
            self._segments = Segments.parse(ir.StringAttr(self.fn.attributes[SEGMENTS]).value)
            self._members = self._segments.members
            self.params = [msgspec.structs.replace(p, by_sequence=self._segments.has(p)) for p in self.params]
        self._workspace_at: ir.Value | None = None
        self._maps: list[ir.Value] = []
        self._map_begins: list[Index | None] = []
        self._followed = False
        if index_bits == 32:
            for slot in self.operands:
                self.bound(self._last(slot))

    # -- guards

    def require(self, expr: Expr, why: str) -> None:
        """The kernel is legal only where expr is 0. ValueError when it never is."""
        number = expr.constant
        if number is None:
            self.guards[expr] = None
        elif number:
            raise ValueError(f"{why}: {expr} is not 0")

    def bound(self, size: Expr) -> None:
        """A number of elements, or a coordinate, that must fit the index type."""
        if self.index_bits == 32:
            self.require((size.maximum(0) + _SLACK) // (1 << 31), "32-bit coordinates")

    def multiple(self, extent: Expr, n: int) -> Index:
        """An extent as an Index that is a multiple of n: proven, or a guard."""
        if not extent.divisible_by(n):
            self.require(extent % n, f"extent {extent} is a multiple of {n}")
        if extent.symbol is not None:
            self.evaluator.dims[extent.symbol] = self.evaluator.dims[extent.symbol].known_multiple(n)
        return self.evaluator.emit(extent).known_multiple(n)

    def _last(self, slot: TensorSlot) -> Expr:
        """Offset of the last element from the first."""
        total = Expr.of(0)
        for axis, extent in enumerate(self.shapes.dims(slot.value)):
            stride = Expr.of(1) if axis == slot.unit else Expr.dim(stride_symbol(slot.number, axis))
            total = total + (extent - 1) * stride
        return total

    def _align(self, slot: TensorSlot, elements: int) -> None:
        why = f"operand {slot.number} is aligned to {elements} elements"
        self.require(Expr.dim(offset_symbol(slot.number)) % elements, why)
        for axis in range(slot.rank):
            if axis != slot.unit:
                self.require(Expr.dim(stride_symbol(slot.number, axis)) % elements, why)

    # -- slots

    def pointer_type(self) -> ir.Type:
        return ir.Type.parse("!llvm.ptr<1>")

    def memory(self, slot: TensorSlot, pointer: ir.Value, sizes: tuple[Index, ...], strides: tuple[Index, ...]) -> Memory:
        widest = max(1, WIDEST // byte_width(slot.element))
        aligned = tuple(s if s.const is not None else s.known_multiple(widest) for s in strides)
        return GpuMemory(pointer, slot.element, sizes, aligned, self.index, lambda n: self._align(slot, n))

    def use_workspace(self, size: Expr) -> None:
        """Ask for `size` bytes of global memory; before the first launch."""
        self._refuse_for_sequences("a workspace")
        if not any(p.kind == "workspace" for p in self.params):
            self._slot(self.pointer_type(), Param("workspace"))
        self.workspace = size

    def use_tensor_map(self, slot: TensorSlot, axes: Sequence[int], box: Sequence[int], swizzle: int) -> int:
        """Ask for a tensor map of an operand; before the first launch. Gives its number. What copies want is guarded."""
        self._align(slot, max(1, ALIGNMENT // byte_width(slot.element)))
        number = sum(p.kind == "tensor_map" for p in self.params)
        made = Param("tensor_map", slot.number, axes=tuple(axes), box=tuple(box), swizzle=swizzle)
        self._slot(ir.Type.parse("!llvm.ptr"), self._map_of_all(slot, made) if self.by_sequence else made)
        return number

    def _map_of_all(self, slot: TensorSlot, param: Param) -> Param:
        """The map of an operand for all sequences. What lies behind a sequence's last row is then the next one's, so the rows may
        not be summed over; nothing is ever copied to a result."""
        what, rows, outer = f"operand {slot.number}", dict(self._segments.rows), dict(self._segments.outer)
        if slot.result:
            raise ValueError(f"{what}: a copy to a result would reach the rows of the next sequence")
        if slot.number in rows and rows[slot.number] != slot.unit:
            return msgspec.structs.replace(param, axis=rows[slot.number], by_sequence=True)
        whole = slot.number in outer and outer[slot.number] * byte_width(slot.element) % ALIGNMENT == 0
        if whole and len(param.axes) < MOST_AXES:
            return msgspec.structs.replace(param, axes=(*param.axes, OUTER), box=(*param.box, 1), axis=OUTER, by_sequence=True)
        if slot.number in self._segments.pointers or any(self.shapes.dims(slot.value)[a].symbols & set(self._segments.dims)
                                                         for a in param.axes):
            raise ValueError(f"{what}: its sequences are neither rows along one axis nor of one size; a tensor map would differ "
                             "from one to the next")
        return param

    def sums_sequences(self, slot: TensorSlot, axis: int) -> bool:
        """Do the rows of a sequence lie along this axis of an operand, where a launch serves several?"""
        return self.by_sequence and bool(self.shapes.dims(slot.value)[axis].symbols & set(self._segments.dims))

    def tensor_map_place(self, number: int, coords: Mapping[int, Index]) -> list[ir.Value]:
        """Where a copy begins, in the order of the map's axes. coords: of the operand, by its axes."""
        param, begin = self._map_params[number], self._map_begins[number]
        moved = dict(coords)
        if begin is not None:
            moved[param.axis] = moved[param.axis] + begin if param.axis in moved else begin
        return [resized(moved[a].value(self.index), integer_type(32)) for a in param.axes]

    @property
    def _map_params(self) -> list[Param]:
        return [p for p in self.params if p.kind == "tensor_map"]

    def tensor_map(self, number: int) -> ir.Value:
        """The address of a tensor map, inside a launch."""
        return self._maps[number]

    def prefetch_tensor_maps(self) -> None:
        """Brings all of them near, so that the first copies find them there."""
        for at in self._maps:
            nvvm.prefetch(at, tensormap=True, in_param_space=True)

    def workspace_tensor(self, element: ir.Type, sizes: Sequence[Index]) -> GpuMemory:
        """A dense tensor at the start of the workspace."""
        assert self._workspace_at is not None
        return self._dense(self._workspace_at, element, sizes, self.index)

    def _dense(self, pointer: ir.Value, element: ir.Type, sizes: Sequence[Index], index: ir.Type) -> GpuMemory:
        strides = [Index(1)]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * size)
        return GpuMemory(pointer, element, tuple(sizes), tuple(strides[: len(sizes)]), index)

    # -- one launch

    def launch(self, threads: int, emit: Callable[[], Grid], suffix: str = "", min_blocks_per_sm: int = 0,
               cluster: int = 1, persistent: bool = False) -> None:
        """Emits the entry `<symbol><suffix>` of blocks of `threads`; `emit` emits its body and gives the number of blocks.

        min_blocks_per_sm: blocks that must fit a multiprocessor at once, which bounds the registers; 0 for no bound. cluster:
        neighbouring blocks along x that may use each other's shared memory. persistent: Launch.persistent.
        """
        self.threads, self.shared_bytes = threads, 0
        if self.launches or persistent:
            self._refuse_for_sequences("a second launch, or blocks that go on to further tiles")
        if self._goes_by_byte and not self.launches:
            self._slot(self.pointer_type(), Param("predicate"))
        if self._members:
            words = 1 + sum(p.by_sequence for p in self.params)
            self._slot(ir.Type.parse("!llvm.ptr"), Param("entries", bytes=8 * words * self._members))
        elif self.by_sequence:
            self._slot(self.pointer_type(), Param("table"))
        block = self._create(self.symbol + suffix, min_blocks_per_sm, cluster)
        arguments = list(block.arguments)
        of_kind = {kind: [a for a, p in zip(arguments, self.params, strict=True) if p.kind == kind]
                   for kind in ("workspace", "tensor_map")}
        self._followed = False
        self._map_begins = [None] * len(of_kind["tensor_map"])
        with ir.InsertionPoint(block):
            if self._goes_by_byte:
                self._end_where_zero(arguments[-1])
            self.bind(self._slots_of_sequence(arguments) if self.by_sequence else arguments)
            self._workspace_at = next(iter(of_kind["workspace"]), None)
            self._maps = of_kind["tensor_map"]
            grid = emit()
            llvm.ReturnOp()
        if not self._followed:
            with ir.InsertionPoint.at_block_begin(block):
                self.follow()
        x, y, z = map(str, grid)
        self.launches.append(Launch(self.symbol + suffix, (x, y, z), threads, self.shared_bytes, (cluster, 1, 1), persistent,
                                    self.early))

    def follow(self) -> None:
        """Waits until all that was launched before has ended and its stores are seen; then the next launch may begin, as soon as
        every block of this one is here. A family that has something to do before it touches global memory calls it behind that,
        all threads at once; else it stands at the beginning. As text, since no access to memory may move in front of it."""
        if self._followed or not self.early:
            self._followed = True
            return
        self._followed = True
        for text in ("griddepcontrol.wait;", "griddepcontrol.launch_dependents;"):
            llvm.InlineAsmOp(None, [], text, "~{memory}", has_side_effects=True)

    def _end_where_zero(self, pointer: ir.Value) -> None:
        """All threads of the launch end where the byte is 0, before any barrier. The byte is read once the launches in front are
        over. As text: with a branch of LLVM's around the whole kernel its parameters would be loaded otherwise."""
        self.follow()
        text = ("{\n.reg .pred none;\n.reg .b16 byte;\nld.global.u8 byte, [$0];\nsetp.eq.u16 none, byte, 0;\n"
                "@none exit;\n}")
        llvm.InlineAsmOp(None, [pointer], text, "l,~{memory}", has_side_effects=True)

    def _refuse_for_sequences(self, what: str) -> None:
        """ValueError where one launch serves the sequences of a batch."""
        if self.by_sequence:
            raise ValueError(f"{what}: a launch for all sequences of a batch has one block table and nothing else in common")

    def _word_of_member(self, entries: ir.Value) -> Callable[[int], ir.Value]:
        """The words of this block's member: the last one whose first block is not behind this one."""
        i64 = integer_type(64)
        block = Index(resized(nvvm.read_ptx_sreg_ctaid_x(results=[integer_type(32)]), i64))

        def word(at: Index) -> Index:
            return Index(llvm.LoadOp(i64, gep(entries, at.value(i64), i64), alignment=8, invariant=True).result)

        found, step = Index(0), 1 << (self._members - 1).bit_length()
        while (step := step // 2):
            further = found + step
            reached = all_of([further.lt(self._members), word(further.min(self._members - 1)).le(block)])
            found = select(reached, further, found, type_=i64)
        others = sum(p.by_sequence for p in self.params)
        return lambda number: word(found if number == 0 else found * others + (self._members + number - 1)).value(i64)

    def _word_of_sequence(self, table: ir.Value) -> Callable[[int], ir.Value]:
        """The words of this block's sequence. All threads end where the block has none."""
        self.follow()
        i64 = integer_type(64)
        block = resized(nvvm.read_ptx_sreg_ctaid_x(results=[integer_type(32)]), i64)
        text = "{\n.reg .pred none;\nld.global.u64 $0, [$1];\nsetp.eq.u64 none, $0, 0;\n@none exit;\n}"
        at = llvm.InlineAsmOp(i64, [gep(table, block, i64)], text, "=l,l,~{memory}", has_side_effects=True).res
        entry = llvm.IntToPtrOp(self.pointer_type(), at).result
        return lambda n: llvm.LoadOp(i64, gep(entry, Index(n).value(i64), i64), alignment=8, invariant=True).result

    def _slots_of_sequence(self, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """The slots with those of this block's sequence, or member, in their places."""
        word = (self._word_of_member if self._members else self._word_of_sequence)(arguments[-1])
        self._first_block = Index(resized(word(0), self.index))
        found, number, maps = list(arguments), 0, 0
        for at_slot, param in enumerate(self.params):
            maps += param.kind == "tensor_map"
            if param.by_sequence:
                number += 1
                moved = word(number)
                if param.kind == "tensor_map":
                    self._map_begins[maps - 1] = Index(resized(moved, self.index))
                else:
                    found[at_slot] = gep(arguments[at_slot], moved, integer_type(8)) if param.kind == "pointer" else moved
        return found

    def _create(self, symbol: str, min_blocks_per_sm: int, cluster: int) -> ir.Block:
        inputs, apart = sum(not slot.result for slot in self.operands), IN_PLACE not in self.fn.attributes
        arguments = []
        for number, (t, param) in enumerate(zip(self.slot_types, self.params, strict=True)):
            readonly = ", llvm.readonly" if param.kind == "pointer" and param.index < inputs else ""
            attributes = f" {{llvm.noalias{readonly}}}" if param.kind in ("pointer", "workspace") and apart else ""
            if param.kind == "tensor_map":
                by_value = f"llvm.byval = !llvm.array<{MAP_BYTES} x i8>, llvm.align = {MAP_ALIGNMENT} : i64"
                attributes = f" {{{by_value}, nvvm.grid_constant}}"
            elif param.kind == "entries":
                attributes = f" {{llvm.byval = !llvm.array<{param.bytes} x i8>, llvm.align = 8 : i64}}"
            arguments.append(f"%w{number}: {t}{attributes}")
        bound = f", nvvm.minctasm = {min_blocks_per_sm} : i32" if min_blocks_per_sm else ""
        bound += f", nvvm.cluster_dim = array<i32: {cluster}, 1, 1>" if cluster > 1 else ""
        attributes = f"nvvm.kernel, nvvm.reqntid = array<i32: {self.threads}>{bound}"
        text = f"""
        llvm.mlir.global external @{SHARED}() {{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<0 x i8>
        llvm.func @{symbol}({", ".join(arguments)}) attributes {{{attributes}}} {{
          llvm.return
        }}"""
        parsed = ir.Module.parse(text)
        memory, function = [op.clone() for op in operations(parsed.body)]
        if not self.launches:
            self.module.body.append(memory)
        else:
            memory.erase()
        self.module.body.append(function)
        block = function.regions[0].blocks[0]
        operations(block)[0].erase()
        return block

    def thread(self) -> Index:
        """Number of this thread in its block."""
        return self._special(nvvm.read_ptx_sreg_tid_x)

    def block_id(self, axis: str = "x") -> Index:
        """Number of this block; along x among those of its sequence, where the kernel serves several."""
        found = self._special({"x": nvvm.read_ptx_sreg_ctaid_x, "y": nvvm.read_ptx_sreg_ctaid_y,
                               "z": nvvm.read_ptx_sreg_ctaid_z}[axis])
        return found if axis != "x" or self._first_block is None else found - self._first_block

    def blocks(self) -> Index:
        """How many were launched along x."""
        return self._special(nvvm.read_ptx_sreg_nctaid_x)

    def _special(self, read: Callable[..., ir.Value]) -> Index:
        return Index(resized(read(results=[integer_type(32)]), self.index))

    def barrier(self) -> None:
        """All threads of the block wait for each other; shared memory is visible."""
        nvvm.barrier()

    # -- shared memory

    def shared(self, element: ir.Type, shape: Sequence[int], at: int | None = None) -> GpuMemory:
        """A dense tensor in dynamic shared memory, behind what is there already or `at` a byte (over what lies there)."""
        i32 = integer_type(32)
        offset = self.shared_bytes if at is None else at
        stored = 1 if str(element) == "i1" else byte_width(element)
        size = stored
        for extent in shape:
            size *= extent
        self.shared_bytes = max(self.shared_bytes, offset + -(-size // WIDEST) * WIDEST)
        base = llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<3>"), ir.FlatSymbolRefAttr.get(SHARED)).result
        if offset:
            at = ir.DenseI32ArrayAttr.get([offset])
            base = llvm.GEPOp(base.type, base, [], at, ir.TypeAttr.get(integer_type(8)), None).result
        return self._dense(base, element, [Index(extent) for extent in shape], i32 if self.index_bits == 32 else self.index)

    # -- metadata

    def finish(self) -> None:
        """Erases the region once every launch is emitted."""
        self.fn.erase()

    def describe(self, workload_key: str, family: str, config: str) -> MicroKernel:
        first, *rest = self.launches
        return MicroKernel(symbol=first.symbol, workload=workload_key, family=family, config=config, params=tuple(self.params),
                           grid=first.grid, workspace=str(self.workspace), threads=first.threads,
                           shared_bytes=first.shared_bytes, guards=tuple(map(str, self.guards)), then=tuple(rest),
                           cluster=first.cluster, persistent=first.persistent, early=first.early)
