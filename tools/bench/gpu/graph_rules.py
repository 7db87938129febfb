"""What the driver allows of an executable CUDA graph, one rule each: kernel nodes whose function, cluster, shared memory or place
(in a conditional body, in flight) change. Kernels are PTX of a few lines; each writes what it sees to words that are read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.driver import CudaError, checked
from tilewright.runtime.errors import DeviceError

WORDS = 1024  # of the memory that kernels write to, i32, zeros at first
_ROOM = 32  # words of a rule
_LARGE = 100 << 10  # bytes of shared memory that a kernel has to ask for

_HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 room[];\n"
_BEGIN = """
.visible .entry {name}(.param .u64 out, .param .u32 value, .param .u32 more) {directive}
{{
  .reg .b64 %rd<8>;
  .reg .b32 %r<12>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [value];
  ld.param.u32 %r2, [more];
  mov.u32 %r3, %ctaid.x;
  mul.wide.u32 %rd2, %r3, 4;
  add.s64 %rd3, %rd1, %rd2;
"""
_END = "  st.global.u32 [%rd3], %r1;\n  ret;\n}\n"
_CLUSTER = "  mov.u32 %r4, %cluster_nctaid.x;\n  mad.lo.s32 %r1, %r4, 100, %r1;\n"
_SHARED = """  mov.u64 %rd4, room;
  cvta.shared.u64 %rd4, %rd4;
  cvt.u64.u32 %rd5, %r2;
  add.s64 %rd6, %rd4, %rd5;
  st.u32 [%rd6], %r1;
  ld.u32 %r1, [%rd6];
  add.s32 %r1, %r1, 1;
"""
_SLOW = """  mov.u32 %r4, 0;
again:
  ld.volatile.global.u32 %r5, [%rd3];
  add.s32 %r1, %r1, %r5;
  add.s32 %r4, %r4, 1;
  setp.lt.u32 %p1, %r4, %r2;
  @%p1 bra again;
"""
_ADD = "  add.s32 %r1, %r1, %r2;\n"


def _entry(name: str, body: str, cluster: int = 0) -> str:
    directive = f".explicitcluster .reqnctapercluster {cluster}, 1, 1" if cluster else ""
    return _BEGIN.format(name=name, directive=directive) + body + _END


PTX = _HEAD + "".join((_entry("plain", ""), _entry("added", _ADD), _entry("cluster2", _CLUSTER, 2),
                       _entry("cluster4", _CLUSTER, 4), _entry("shared", _SHARED), _entry("slow", _SLOW)))


@dataclass(frozen=True)
class Launch:
    """A kernel with a grid, a value that each block writes and another number, at a place of its rule's words."""

    kernel: str
    value: int
    blocks: int = 4
    more: int = 0
    place: int = 0
    threads: int = 32
    shared: int = 0
    library: int = 0


Rule = Callable[["Rules"], bool]


class Rules:
    """Checks rules on the current context.

    stream: a handle. words: address of WORDS words; read: what is in them, once the stream is done. turns: of a slow kernel.
    """

    def __init__(self, driver: Any, stream: int, words: int, read: Callable[[], Sequence[int]], turns: int) -> None:
        self.driver, self.stream, self.words, self.read, self.turns = driver, stream, words, read, turns
        self._libraries = [checked(driver.cuLibraryLoadData(PTX.encode(), [], [], 0, [], [], 0), "load PTX") for _ in range(2)]
        self._functions: dict[tuple[int, str], Any] = {}
        self._at = 0
        self.kept: list[Any] = []

    def function(self, of: Launch) -> Any:
        """Allowed all shared memory that it asks for."""
        key = of.library, of.kernel
        if key not in self._functions:
            kernel = checked(self.driver.cuLibraryGetKernel(self._libraries[of.library], of.kernel.encode()), "find a kernel")
            found = self._functions[key] = checked(self.driver.cuKernelGetFunction(kernel), "make a kernel ready")
            if of.shared:
                name = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                checked(self.driver.cuFuncSetAttribute(found, name, of.shared), "allow shared memory")
        return self._functions[key]

    def parameters(self, of: Launch) -> Any:
        values = (ctypes.c_uint64 * 3)(self.words + 4 * (self._at + of.place), of.value, of.more)
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(values) + 8 * i for i in range(3)))
        self.kept += [values, pointers]
        made = self.driver.CUDA_KERNEL_NODE_PARAMS()
        made.func = self.function(of)
        made.gridDimX, made.gridDimY, made.gridDimZ = of.blocks, 1, 1
        made.blockDimX, made.blockDimY, made.blockDimZ = of.threads, 1, 1
        made.sharedMemBytes, made.kernelParams = of.shared, ctypes.addressof(pointers)
        return made

    def add(self, graph: Any, of: Launch) -> Any:
        return checked(self.driver.cuGraphAddKernelNode(graph, [], 0, self.parameters(of)), "add a kernel to a graph")

    def executable(self, of: Launch, conditional: bool = False) -> tuple[Any, Any]:
        """An executable of one kernel node, which may stand in the body of an IF node that always holds; and the node."""
        graph = checked(self.driver.cuGraphCreate(0), "create a graph")
        node = self.add(self._body(graph) if conditional else graph, of)
        return checked(self.driver.cuGraphInstantiate(graph, 0), "instantiate a graph"), node

    def _body(self, graph: Any) -> Any:
        driver, context = self.driver, checked(self.driver.cuCtxGetCurrent(), "ask for the context")
        handle = checked(driver.cuGraphConditionalHandleCreate(graph, context, 1, 1), "create a condition of a graph")
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle, params.conditional.size, params.conditional.ctx = handle, 1, context
        params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        checked(driver.cuGraphAddNode(graph, [], None, 0, params), "add a conditional node to a graph")
        self.kept.append(params)
        return next(iter(params.conditional.phGraph_out))

    def update(self, executable: Any, node: Any, to: Launch) -> None:
        checked(self.driver.cuGraphExecKernelNodeSetParams(executable, node, self.parameters(to)), "update a node")

    def enable(self, executable: Any, node: Any, on: bool) -> None:
        checked(self.driver.cuGraphNodeSetEnabled(executable, node, int(on)), "enable a node")

    def launch(self, executable: Any) -> None:
        checked(self.driver.cuGraphLaunch(executable, self.stream), "launch a graph")

    def found(self, place: int = 0, count: int = 4) -> list[int]:
        """Words of the rule, once everything is done."""
        checked(self.driver.cuStreamSynchronize(self.stream), "wait for a stream")
        return [int(w) for w in self.read()][self._at + place : self._at + place + count]

    def changes(self, first: Launch, *others: Launch, conditional: bool = False) -> list[list[int]]:
        """The words after the launch of a node as it is made, and after each change of it."""
        executable, node = self.executable(first, conditional)
        seen = []
        for number, to in enumerate((first, *others)):
            if number:
                self.update(executable, node, to)
            self.launch(executable)
            seen.append(self.found())
        return seen

    def check(self) -> Iterator[dict[str, Any]]:
        """A record for each rule: held, or what the driver said."""
        for name, rule in RULES.items():
            self._at += _ROOM
            made: dict[str, Any] = {"record": "rule", "name": name, "held": False}
            try:
                made["held"] = rule(self)
            except (CudaError, DeviceError) as error:
                made["error"] = str(error)
            yield made


def _all(*values: int) -> list[list[int]]:
    return [[v] * 4 for v in values]


def _cluster(number: int, size: int) -> int:
    """What a kernel in clusters writes for a value."""
    return number + 100 * size


def function_changes(rules: Rules) -> bool:
    """To another of the same module, with other threads, and back."""
    return rules.changes(Launch("plain", 7), Launch("added", 3, more=2, threads=128), Launch("plain", 9)) == _all(7, 5, 9)


def function_of_another_module(rules: Rules) -> bool:
    return rules.changes(Launch("plain", 7), Launch("added", 3, more=8, library=1)) == _all(7, 11)


def plain_to_clusters_and_back(rules: Rules) -> bool:
    """The cluster is that which the function is compiled for; the node has no attribute."""
    return rules.changes(Launch("plain", 1), Launch("cluster2", 2), Launch("plain", 3)) == _all(1, _cluster(2, 2), 3)


def clusters_change_size(rules: Rules) -> bool:
    made = rules.changes(Launch("cluster2", 1), Launch("cluster4", 2), Launch("cluster2", 3))
    return made == _all(_cluster(1, 2), _cluster(2, 4), _cluster(3, 2))


def clusters_to_plain(rules: Rules) -> bool:
    return rules.changes(Launch("cluster4", 1), Launch("plain", 2)) == _all(_cluster(1, 4), 2)


def shared_memory_grows(rules: Rules) -> bool:
    """Beyond 48 KB, which the function was allowed."""
    large = Launch("shared", 5, more=_LARGE - 4, threads=1, shared=_LARGE)
    return rules.changes(Launch("plain", 1), large, Launch("plain", 2)) == _all(1, 6, 2)


def disabled_nodes_do_not_run(rules: Rules) -> bool:
    executable, node = rules.executable(Launch("plain", 1))
    rules.launch(executable)
    seen = [rules.found()]
    rules.enable(executable, node, False)
    rules.update(executable, node, Launch("plain", 2))
    rules.launch(executable)
    seen.append(rules.found())
    rules.enable(executable, node, True)
    rules.launch(executable)
    return [*seen, rules.found()] == _all(1, 1, 2)


def updates_leave_what_is_in_flight(rules: Rules) -> bool:
    """Another function, and another place, while the launch before still runs."""
    executable, node = rules.executable(Launch("slow", 1, more=rules.turns))
    rules.launch(executable)
    rules.update(executable, node, Launch("cluster2", 5, place=4))
    rules.launch(executable)
    rules.update(executable, node, Launch("plain", 6, place=8))
    rules.launch(executable)
    return [rules.found(p) for p in (0, 4, 8)] == _all(1, _cluster(5, 2), 6)


def bodies_can_be_updated(rules: Rules) -> bool:
    """Function and parameters of a node in the body of a conditional node."""
    return rules.changes(Launch("plain", 1), Launch("added", 2, more=2), conditional=True) == _all(1, 4)


def clusters_in_bodies(rules: Rules) -> bool:
    made = rules.changes(Launch("plain", 1), Launch("cluster2", 2), Launch("cluster4", 3), conditional=True)
    return made == _all(1, _cluster(2, 2), _cluster(3, 4))


def bodies_can_be_disabled(rules: Rules) -> bool:
    executable, node = rules.executable(Launch("plain", 1), conditional=True)
    rules.enable(executable, node, False)
    rules.launch(executable)
    before = rules.found()
    rules.enable(executable, node, True)
    rules.launch(executable)
    return [before, rules.found()] == _all(0, 1)


def grids_that_clusters_do_not_divide_are_refused(rules: Rules) -> bool:
    """At the update, before anything runs."""
    executable, node = rules.executable(Launch("plain", 1))
    try:
        rules.update(executable, node, Launch("cluster2", 1, blocks=3))
    except CudaError as error:
        return not error.sticky
    return False


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (
    function_changes, function_of_another_module, plain_to_clusters_and_back, clusters_change_size, clusters_to_plain,
    shared_memory_grows, disabled_nodes_do_not_run, updates_leave_what_is_in_flight, bodies_can_be_updated, clusters_in_bodies,
    bodies_can_be_disabled, grids_that_clusters_do_not_divide_are_refused)}


def bytes_of(rules: Rules, nodes: int, count: int) -> float:
    """GPU memory of an executable with so many kernel nodes in a row, the mean of `count` that live together."""
    graph, last = checked(rules.driver.cuGraphCreate(0), "create a graph"), None
    for number in range(nodes):
        before: list[Any] = [] if last is None else [last]
        last = checked(rules.driver.cuGraphAddKernelNode(graph, before, len(before), rules.parameters(Launch("plain", number))),
                       "add a kernel to a graph")
    made = []
    before_bytes, _ = checked(rules.driver.cuMemGetInfo(), "ask for the free memory")
    for _ in range(count):
        made.append(checked(rules.driver.cuGraphInstantiate(graph, 0), "instantiate a graph"))
        checked(rules.driver.cuGraphUpload(made[-1], rules.stream), "upload a graph")
    rules.found()
    after_bytes, _ = checked(rules.driver.cuMemGetInfo(), "ask for the free memory")
    for executable in made:
        rules.driver.cuGraphExecDestroy(executable)
    return (int(before_bytes) - int(after_bytes)) / count
