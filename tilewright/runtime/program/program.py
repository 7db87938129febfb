"""Program: a compiled model as plain data, everything an artifact stores and a CompiledFunction runs.

Native convention of the host program (one object, symbols below):
  `int64_t tw_arena_bytes(const int64_t *dims, int64_t threads)`         bytes of temporaries and workspaces
  `int64_t tw_run(Table *table, void **tensors, const uint64_t *scalars, const int64_t *dims, void *arena, int64_t threads)`
  `int64_t tw_call(Table *table, void **tensors, const uint64_t *scalars, const int64_t *dims, int64_t threads)`
      takes an arena through the table, calls tw_run, gives the arena back
  `int64_t tw_dispatch(int64_t call, const int64_t *dims)`               leaf of call number `call`: kernel | threads << 32; the
      counters of the loops stand behind the model's dims
`tensors`: pointers of the tensor inputs, then constants, then outputs, C-contiguous; of a ragged program for a GPU then those
of the offsets where the host has them, null where they are on the device alone and are not checked. On a host, rows of the inputs
`Program.strided` may lie apart: behind the outputs then come, for each of these, the strides of its axes but the last, in
elements; 0 stands for that of a dense tensor. `scalars`: bit patterns of
the scalar inputs that are not dims. `dims`: model dims in the order of `Program.dims`. Result 0, 1 + the index of the failed
check, 1 + the number of checks + the index of the ragged dim whose offsets are wrong, -1 where there is no memory for the
arena, -2 where a loop was left because the caller asked for it (`poll` in runtime/device.py).
tw_run puts its thread into the floating-point environment of all calls (runtime/host/float_environment.py) until it returns.
"""

from __future__ import annotations

from math import prod

import msgspec

from tilewright.runtime.program.certificate import Certificate
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.steps import Step
from tilewright.runtime.program.stored_indices import stored_size
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.ragged_dim import Ragged, factors_of
from tilewright.runtime.shape import Dim, Expr, ShapeRange
from tilewright.runtime.tensor import DType, TensorSpec

# 3: the code holds a seal of the program (runtime/program/seal.py); what came before cannot be held against its code
# 4: the host program may branch and loop, which takes the last words of the device's table
# 5: arguments of ragged programs may be blocks, and lengths follow from numbers
# 6: branches and loops on data go through the device's table, kernels may go by a byte, calls on a GPU may be CUDA graphs
# 7: what was asked of the compile; the native call path counts calls by their shape
# 8: ragged programs for GPUs have block tables, which a launch of their own fills; launches on a GPU find their records by call,
# then by kernel
# 9: sequences of ragged dims may be aligned
# 10: launches on a GPU may serve calls on many tensors, whose differences are passed by value
# 11: what was asked of the compile says which launches are done by strips of rows; kernels say whether they use tile registers;
# indices of pools are stored in as few bits as these need; rows of inputs of a host may lie apart
SCHEMA = 11
GRAPH_MEMORY = 64 << 20


class DimInfo(msgspec.Struct, frozen=True):
    """A model dim: its range and the places it is read from ("x.1": axis 1 of input x; "n": a scalar input).

    over: of a ragged dim, whose range is that of one length: the dim that counts the sequences. length: of one whose lengths
    follow from the numbers of the sequences: text of an Expr over the name `over`. align: of one whose sequences begin at
    multiples of it.
    """

    name: str
    lo: int
    hi: int
    multiple_of: int = 1
    samples: tuple[int, ...] | None = None
    at: tuple[str, ...] = ()
    over: str = ""
    length: str = ""
    align: int = 1

    def dim(self) -> Dim:
        if self.over:
            return Ragged(self.lo, self.hi, self.over, self.multiple_of, self.samples, self.at, self.length, self.align)
        return Dim(self.lo, self.hi, self.multiple_of, self.samples, self.at)

    def lengths_by_number(self, count: int) -> list[int]:
        """Of the first sequences of a dim whose lengths follow from their numbers."""
        length = Expr.parse(self.length)
        return [length.evaluate({self.over: number}) for number in range(count)]

    @property
    def has_gaps(self) -> bool:
        """May there be rows between two sequences?"""
        return self.multiple_of % self.align != 0

    @property
    def stored_step(self) -> int:
        """What the rows from one sequence to the next are a multiple of."""
        return self.align if self.has_gaps else self.multiple_of

    def stored(self, length: int) -> int:
        """Rows from the beginning of a sequence to that of the next."""
        return -(-length // self.align) * self.align

    @property
    def stored_length(self) -> Expr:
        """`stored` of the dim itself."""
        own = Expr.dim(self.name)
        return own.ceildiv(self.align) * self.align if self.has_gaps else own


class Argument(msgspec.Struct, frozen=True):
    """An input or output. `dims` are texts of Expr over model dims; None marks a scalar input.

    ragged: the dim whose sequences lie one after the other along axis 0, of sum(ragged) rows; "" where there is none. block: of
    one whose sequences are no rows: the extents of a sequence's part, all of whose elements come before those of the next.
    """

    name: str
    dtype: DType
    dims: tuple[str, ...] | None
    ragged: str = ""
    block: tuple[str, ...] = ()

    def spec(self) -> TensorSpec:
        return TensorSpec(self.dtype, tuple(Expr.parse(d) for d in self.dims or ()))


class Constant(msgspec.Struct, frozen=True):
    """A tensor bound at compile time; what is stored of it lives in the artifact's section `constant/<digest>`.

    digest: of its bytes. entries, stored: of indices of a pool that are stored in fewer bits (stored_indices.py), the entries
    that the pool has and the digest of what is stored; else 0 and "".
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    digest: str
    entries: int = 0
    stored: str = ""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return prod(self.shape) * self.dtype.bytes

    @property
    def stored_size(self) -> int:
        """Bytes in the file."""
        return stored_size(self.entries, self.size) if self.entries else self.size


class Call(msgspec.Struct, frozen=True):
    """One kernel of the host program: its table, and each local dim as text of an Expr over the model dims.

    layout: the layout symbols (runtime/program/kernel.py) that the table's tree asks for, likewise. launch: number of the launch
    that it shares with others; -1 where it has one of its own. over: of a call whose units are those of all sequences, each of
    its own size: the dim that counts them; `dims` are over the ragged dims then.
    """

    table: int
    dims: tuple[str, ...]
    layout: dict[str, str] = {}
    launch: int = -1
    over: str = ""


class StripSpan(msgspec.Struct, frozen=True):
    """Calls that a work unit takes a strip of up to `size` rows through, from `least` rows on and with `each` strips or more for
    each thread of the machine, 0 for images, which these share evenly. rows: text of an Expr over the dims. gain: share of the
    calls' time that is predicted to be saved at `least` rows."""

    calls: tuple[int, ...]
    rows: str
    size: int
    least: int
    each: int
    gain: float = 0.0


class Check(msgspec.Struct, frozen=True):
    """A run-time condition that the model asserts and the compiler could not prove: expr must be 0."""

    expr: str
    message: str


class Asked(msgspec.Struct, frozen=True):
    """Options of the compile that a later tuning of the program has to keep to (tw.CompileOptions). way, apart: how its partition
    was grown and cut (passes/partition). strips: which launches are done by strips of rows (compiler/host/strips.py). measured:
    the time of the model as a share of that of the predicted partition, where a search took this one."""

    deterministic: str = "shape"
    winograd: bool = True
    threads: int | None = None
    max_regret: float = 0.05
    max_kernels: int | None = None
    precision: str = "f32"
    activations: str = "f32"
    way: str = "cost"
    apart: tuple[tuple[int, int], ...] = ()
    strips: str = "predicted"
    measured: float | None = None


class Program(msgspec.Struct, frozen=True):
    """A compiled model for one target.

    certificates: of the tables that were tuned, by workload key. refused: operator -> why its preferred family did not take
    it. donated: (input index, output index) pairs whose buffers may be shared. arena: text of an Expr over the model dims and the
    reserved symbol "threads". host_object, runtime_object: digests of the host program and of launch, thread pool and arena pool;
    binder_object: of the native call path. precision: of the contractions of f32 models. `source`: the ingested MLIR, kept for
    --check and for recompiling. ragged: its ragged dims, each with an input of the name `offsets_name` gives, i64[over + 1]:
    where each sequence begins among all rows, and their number. The last inputs are scalars: sums over the sequences that are
    dims and stand at no argument. input_structure, output_structure: how callers nest arguments and results; None: not at all.
    tree: what the host program does where it branches or loops; empty where it launches its calls in order. graphs: are calls on
    a GPU launched as CUDA graphs, "auto", "on" or "off"; graph_memory: bytes that those may take. prelude: of a ragged program
    for a GPU: the kernel that fills its block tables, whose launch number is behind those of all calls; None where it has none.
    strips: calls on a host that are done by strips of rows. strided: numbers, among the tensor inputs, of those whose rows may
    lie apart in a call. copied: output index -> why it is copied to the donated buffer that it shares.
    """

    target: str
    features: str
    dims: tuple[DimInfo, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    constants: tuple[Constant, ...]
    tables: tuple[DispatchTable, ...]
    calls: tuple[Call, ...]
    checks: tuple[Check, ...]
    arena: str
    host_object: str
    runtime_object: str
    source: str
    dispatch_source: str
    donated: tuple[tuple[int, int], ...] = ()
    out_of_range: str = "error"
    certificates: tuple[Certificate, ...] = ()
    refused: dict[str, str] = {}
    binder_object: str = ""
    precision: str = "f32"
    input_structure: Structure | None = None
    output_structure: Structure | None = None
    tree: tuple[Step, ...] = ()
    ragged: tuple[DimInfo, ...] = ()
    graphs: str = "auto"
    graph_memory: int = GRAPH_MEMORY
    asked: Asked = Asked()
    prelude: MicroKernel | None = None
    strips: tuple[StripSpan, ...] = ()
    strided: tuple[int, ...] = ()
    copied: dict[int, str] = {}
    schema: int = SCHEMA

    @property
    def sums(self) -> tuple[str, ...]:
        """The dims that are sums over the sequences and scalar inputs of their own, in the order of these."""
        return tuple(a.name for a in self.inputs if a.dims is None and factors_of(a.name))

    @property
    def stride_words(self) -> dict[int, int]:
        """How many strides of each of the inputs `strided` a call tells."""
        tensors = [a.dims for a in self.inputs if a.dims is not None]
        return {number: len(tensors[number]) - 1 for number in self.strided}

    def ranges(self) -> ShapeRange:
        return ShapeRange(tuple((d.name, d.dim()) for d in self.dims))
