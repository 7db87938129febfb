"""What it costs the CPU to update a CUDA graph: native passes over nodes, without the driver's share.

    python -m tools.bench graphs [--nodes 200] [--changed 20] [--json]

A pass does what a call does: each launch finds its node and is compared with it word by word, with its tensor maps; `changed` of
them have another parameter than in the pass before. The driver's functions return at once, and the host program's computation of
grids and parameters is not in it.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.builder.codegen import compile_object, lowest_target
from tilewright.runtime.cuda.cuda_table import ARENA_FIELDS, CONTEXT_FIELDS, FUNCTIONS, RECORD_FIELDS, cuda_table_ir
from tilewright.runtime.cuda.graph_table import GRAPH_FIELDS, NODE_FIELDS, node_key
from tilewright.runtime.device import ALLOC, CONTEXT, KERNELS, KERNELS_PER_CALL, LAUNCH, RELEASE, TABLE_WORDS
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.program.tensor_map import MAP_BYTES
from tools.bench import command

WORDS, MAPS = 24, 2  # parameters of a launch, and tensor maps among them: those of a product by wgmma with an epilogue
_PASS = """
@stub_calls = global i64 0
define i32 @stub(ptr %a, ptr %b, ptr %c) {
  %n = load i64, ptr @stub_calls
  %m = add i64 %n, 1
  store i64 %m, ptr @stub_calls
  ret i32 0
}
define i64 @stubs() {
  %n = load i64, ptr @stub_calls
  ret i64 %n
}
; slots: WORDS words for each launch; each launch number `every` gets another value in its third word.
define void @pass(ptr %table, ptr %slots, i64 %nodes, i64 %every, i64 %value) {
entry:
  %alloc_at = getelementptr ptr, ptr %table, i64 $ALLOC$
  %alloc = load ptr, ptr %alloc_at
  %launch_at = getelementptr ptr, ptr %table, i64 $LAUNCH$
  %launch = load ptr, ptr %launch_at
  %release_at = getelementptr ptr, ptr %table, i64 $RELEASE$
  %release = load ptr, ptr %release_at
  %arena = call ptr %alloc(ptr %table, i64 64)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %at = mul i64 %i, $WORDS$
  %own = getelementptr i64, ptr %slots, i64 %at
  %rest = urem i64 %i, %every
  %changes = icmp eq i64 %rest, 0
  br i1 %changes, label %change, label %next
change:
  %place = getelementptr i64, ptr %own, i64 2
  store i64 %value, ptr %place
  br label %next
next:
  %number = mul i64 %i, $KERNELS$
  call void %launch(ptr %table, i64 %number, i64 132, i64 1, i64 1, ptr %own, i64 $WORDS$, i64 1, ptr null, i64 0)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %nodes
  br i1 %more, label %loop, label %end
end:
  call void %release(ptr %table, ptr %arena)
  ret void
}
"""


@dataclass(frozen=True)
class UpdateCost:
    """Median microseconds of a pass; updates and driver calls that it made."""

    nodes: int
    changed: int
    microseconds: float
    updates: int
    calls: int


class _Passes:
    """A graph of `nodes` kernel nodes whose driver does nothing."""

    def __init__(self, nodes: int) -> None:
        text = cuda_table_ir() + _PASS
        numbers = {"ALLOC": ALLOC, "LAUNCH": LAUNCH, "RELEASE": RELEASE, "WORDS": WORDS, "KERNELS": KERNELS_PER_CALL}
        for name, value in numbers.items():
            text = text.replace(f"${name}$", str(value))
        self._code = load_native([compile_object(text, lowest_target())])
        at = self._code.address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3)(at("pass"))
        self.stubs = ctypes.CFUNCTYPE(ctypes.c_int64)(at("stubs"))
        self.nodes = nodes
        self._maps = (ctypes.c_uint64 * (MAP_BYTES // 8 * MAPS * nodes + 8))()
        first = ctypes.addressof(self._maps) + -ctypes.addressof(self._maps) % 64
        self._places = _words([0, 1])
        self._slots = _words([0] * (WORDS * nodes))
        self._values = [_words([0] * (WORDS + MAPS * MAP_BYTES // 8)) for _ in range(nodes)]
        self._nodes, self._records = _words([0] * (len(NODE_FIELDS) * nodes)), _words([0] * (len(RECORD_FIELDS) * nodes))
        self._kernels, self._calls = _words([0] * nodes), _words([0] * nodes)  # one kernel a call
        for i in range(nodes):
            for m in range(MAPS):
                self._slots[WORDS * i + m] = first + MAP_BYTES * (MAPS * i + m)
            _fill(self._nodes, NODE_FIELDS, i, node=1, key=node_key(KERNELS_PER_CALL * i), enabled=1,
                  values=ctypes.addressof(self._values[i]))
            _fill(self._records, RECORD_FIELDS, i, function=1, threads=128, maps=MAPS, places=ctypes.addressof(self._places))
            self._kernels[i] = ctypes.addressof(self._records) + 8 * len(RECORD_FIELDS) * i
            self._calls[i] = ctypes.addressof(self._kernels) + 8 * i
        self._graph, self._arena = _words([0] * len(GRAPH_FIELDS)), _words([0] * len(ARENA_FIELDS))
        _fill(self._graph, GRAPH_FIELDS, 0, exec=1, nodes=ctypes.addressof(self._nodes), count=nodes)
        _fill(self._arena, ARENA_FIELDS, 0, address=4096, bytes=4096)
        self._context = _words([0] * len(CONTEXT_FIELDS))
        _fill(self._context, CONTEXT_FIELDS, 0, arena=ctypes.addressof(self._arena), graph=ctypes.addressof(self._graph),
              **dict.fromkeys(FUNCTIONS, at("stub")))
        self._table = _words([0] * TABLE_WORDS)
        self._table[CONTEXT], self._table[KERNELS] = ctypes.addressof(self._context), ctypes.addressof(self._calls)
        self._table[ALLOC], self._table[LAUNCH] = at("tw_graph_alloc"), at("tw_graph_launch")
        self._table[RELEASE] = at("tw_graph_release")

    def run(self, every: int, value: int) -> None:
        """One pass; launches `every` apart get a new parameter."""
        self._call(self._table, self._slots, self.nodes, every, value)

    def updates(self) -> int:
        return int(self._graph[GRAPH_FIELDS.index("updates")])


def update_cost(nodes: int, changed: int, repeats: int = 2000) -> UpdateCost:
    """Measure passes over a graph.

    Args:
        changed: a divisor of `nodes`; 0: none.
    """
    passes, every = _Passes(nodes), nodes // changed if changed else nodes + 1
    value = 1
    for _ in range(50):
        value += 1
        passes.run(every, value if changed else 1)
    before, called, times = passes.updates(), passes.stubs(), list[int]()
    for _ in range(repeats):
        value += 1
        begin = time.perf_counter_ns()
        passes.run(every, value if changed else 1)
        times.append(time.perf_counter_ns() - begin)
    updates, calls = (passes.updates() - before) // repeats, (passes.stubs() - called) // repeats
    if updates != (changed if changed else 0):
        raise RuntimeError(f"a pass updated {updates} nodes and was to update {changed}")
    return UpdateCost(nodes, changed, statistics.median(times) / 1e3, updates, calls)


def _words(values: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * max(1, len(values)))(*values)


def _fill(words: Any, fields: Sequence[str], number: int, **values: int) -> None:
    for name, value in values.items():
        words[len(fields) * number + fields.index(name)] = value


def main(argv: Sequence[str]) -> int:
    """Print what is found."""
    parser = command.parser("graphs", __doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--changed", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    for changed in dict.fromkeys((0, given.changed, given.nodes)):
        found = update_cost(given.nodes, changed)
        if given.json:
            print(json.dumps(found.__dict__))
        else:
            print(f"{found.nodes} nodes of {WORDS} words and {MAPS} tensor maps, {found.updates} changed: "
                  f"{found.microseconds:.2f} us a pass, {found.calls} calls of the driver")
    return 0
