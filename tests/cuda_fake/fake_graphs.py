"""Graphs of the fake driver: nodes, executables, their updates, conditional bodies, and the bytes that executables take.

An executable is launched as it is then: later updates do not touch what is enqueued. A condition is a word of the device's
memory, whose address is its handle; `cudaGraphSetConditional` writes it (fake_kernels.py links that function).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from cuda_fake.fake_kernels import KernelCalls, KernelWork
from cuda_fake.fake_state import (
    CAPTURE_UNSUPPORTED,
    CONTEXT_BASE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    FakeError,
    Graph,
    Stream,
    entry,
    put,
)

GRAPH_BYTES, NODE_BYTES = 64 << 10, 8 << 10
"""Of an executable, and of each of its nodes; the parameters of kernels come on top."""
CONDITIONAL_SINCE, ELSE_SINCE = 12040, 12080  # driver versions
_KERNEL, _EMPTY, _CONDITIONAL = 0, 5, 13  # CUgraphNodeType
_IF, _WHILE, _SWITCH = range(3)  # CUgraphConditionalNodeType
_ASSIGN_DEFAULT = 1
_LONGEST = 10_000  # times around a WHILE node before the fake gives up
_LAUNCH_TIMEOUT = 702


@dataclass(frozen=True)
class Condition:
    """Of a conditional node. place: the device address that is the handle."""

    place: int
    kind: int
    bodies: tuple[Graph, ...]


@dataclass
class Node:
    """after: the nodes that it depends on."""

    graph: Graph
    after: tuple[Node, ...]
    work: KernelWork | Condition | None


@dataclass
class Executable:
    """What was instantiated of a graph. nodes: its own and those of the bodies in it. flying: launches that are not over."""

    graph: Graph
    device: int
    works: dict[int, KernelWork]
    enabled: dict[int, bool]
    bytes: int
    flying: int = 0
    destroyed: bool = False
    streams: list[Stream] = field(default_factory=list)


def size_of(works: Sequence[KernelWork], others: int = 0) -> int:
    """Bytes of an executable with these kernel nodes, and as many nodes of other kinds."""
    return GRAPH_BYTES + NODE_BYTES * (len(works) + others) + sum(len(a) for w in works for a in w.args)


def nodes_within(graph: Graph) -> Iterator[Node]:
    """All nodes, those of bodies behind the node that holds them."""
    for node in graph.nodes:
        yield node
        if isinstance(node.work, Condition):
            for body in node.work.bodies:
                yield from nodes_within(body)


class GraphCalls(KernelCalls):
    """Attributes:
        updates: (node, enabled or None where its parameters were set) of every update in order. instantiated: how often.
        graph_bytes: device -> bytes that live executables take. flights: how many updates met a launch that was not over.
    """

    @entry("cuGraphCreate", "pu")
    def graph_create(self, out: int, flags: int) -> None:
        if flags:
            raise FakeError(INVALID_VALUE)
        made = Graph(0)
        made.number = self.new(made)
        put(out, made.number)

    @entry("cuGraphAddKernelNode", "pppqp")
    def graph_add_kernel(self, out: int, graph: int, after: int | None, count: int, parameters: int) -> None:
        found = self.object(graph, Graph)
        put(out, self._add(found, after, count, self.node_work(parameters)))

    @entry("cuGraphAddNode", "ppppqp")
    def graph_add_node(self, out: int, graph: int, after: int | None, edges: int | None, count: int, parameters: int) -> None:
        """CUgraphNodeParams: type, three words of padding, then the structure of the type."""
        found, kind, at = self.object(graph, Graph), ctypes.c_int.from_address(parameters).value, parameters + 16
        if edges:
            raise FakeError(NOT_SUPPORTED)
        if kind == _KERNEL:
            put(out, self._add(found, after, count, self.node_work(at)))
        elif kind == _EMPTY:
            put(out, self._add(found, after, count, None))
        elif kind == _CONDITIONAL:
            put(out, self._add(found, after, count, self._condition(found, at)))
        else:
            raise FakeError(NOT_SUPPORTED)

    def _add(self, graph: Graph, after: int | None, count: int, work: KernelWork | Condition | None) -> int:
        handles = (ctypes.c_uint64 * count).from_address(after) if count and after else ()
        before = tuple(self.object(h, Node) for h in handles)
        if len(before) != count or len(set(handles)) != count or any(b.graph is not graph for b in before):
            raise FakeError(INVALID_VALUE)
        node = Node(graph, before, work)
        graph.nodes.append(node)
        handle = self.new(node)
        self.handle_of[id(node)] = handle
        return handle

    # conditions

    @entry("cuGraphConditionalHandleCreate", "pppuu")
    def condition_create(self, out: int, graph: int, context: int, default: int, flags: int) -> None:
        if self.version < CONDITIONAL_SINCE:
            raise FakeError(NOT_SUPPORTED)
        found = self.object(graph, Graph)
        if flags not in (0, _ASSIGN_DEFAULT):
            raise FakeError(INVALID_VALUE)
        device = context - CONTEXT_BASE if context else self.device()
        place = self.devices[device].alloc(8)
        self.devices[device].copy_in(place, np.zeros(2, np.uint32))
        found.conditions[place] = (device, default, flags)
        put(out, place)

    def _condition(self, graph: Graph, at: int) -> Condition:
        """CUDA_CONDITIONAL_NODE_PARAMS: handle, type, size, bodies (out), context."""
        if self.version < CONDITIONAL_SINCE:
            raise FakeError(NOT_SUPPORTED)
        place = ctypes.c_uint64.from_address(at).value
        kind, size = ctypes.c_int.from_address(at + 8).value, ctypes.c_uint32.from_address(at + 12).value
        most = {_IF: 2 if self.version >= ELSE_SINCE else 1, _WHILE: 1, _SWITCH: 1 << 16 if self.version >= ELSE_SINCE else 0}
        owners = [g for g in self._family(graph) if place in g.conditions]
        if not owners or kind not in most or not 1 <= size <= most[kind]:
            raise FakeError(INVALID_VALUE)
        if any(isinstance(n.work, Condition) and n.work.place == place for n in nodes_within(self._family(graph)[-1])):
            raise FakeError(INVALID_VALUE)
        bodies = []
        for _ in range(size):
            body = Graph(0, parent=graph)
            body.number = self.new(body)
            bodies.append(body)
        array = (ctypes.c_uint64 * size)(*(b.number for b in bodies))
        self.kept.append(array)
        ctypes.c_uint64.from_address(at + 16).value = ctypes.addressof(array)
        return Condition(place, kind, tuple(bodies))

    def _family(self, graph: Graph) -> list[Graph]:
        """The graph, the one that it is a body in, and so on to the outermost."""
        found = [graph]
        while (outer := found[-1].parent) is not None:
            found.append(outer)
        return found

    # executables

    @entry("cuGraphInstantiateWithParams", "ppp")
    def graph_instantiate(self, out: int, graph: int, parameters: int | None) -> None:
        put(out, self._instance(graph))

    @entry("cuGraphInstantiateWithFlags", "ppq")
    def graph_instantiate_flags(self, out: int, graph: int, flags: int) -> None:
        put(out, self._instance(graph))

    def _instance(self, graph: int) -> int:
        found = self.object(graph, Graph)
        if found.parent is not None:
            raise FakeError(INVALID_VALUE)
        nodes = list(nodes_within(found))
        used = {n.work.place for n in nodes if isinstance(n.work, Condition)}
        if any(place not in used for g in (found, *(n.graph for n in nodes)) for place in g.conditions):
            raise FakeError(INVALID_VALUE)  # a handle of no node
        found.references += 1
        works = {self.handle_of[id(n)]: n.work for n in nodes if isinstance(n.work, KernelWork)}
        size = size_of(list(works.values()), len(nodes) - len(works) + len(found.work))
        made = Executable(found, self.device(), works, dict.fromkeys(works, True), size)
        self.graph_bytes[made.device] = self.graph_bytes.get(made.device, 0) + size
        self.instantiated += 1
        return self.new(made)

    @entry("cuGraphExecKernelNodeSetParams", "ppp")
    def exec_set_kernel(self, executable: int, node: int, parameters: int) -> None:
        found = self._updatable(executable, node)
        found.works[node] = self.node_work(parameters)
        self.updates.append((node, None))

    @entry("cuGraphNodeSetEnabled", "ppu")
    def node_set_enabled(self, executable: int, node: int, enabled: int) -> None:
        found = self._updatable(executable, node)
        found.enabled[node] = bool(enabled)
        self.updates.append((node, bool(enabled)))

    def _updatable(self, executable: int, node: int) -> Executable:
        """The executable, which has this kernel node. Nodes are found by the graph that it was made of, which must be there."""
        found, of = self.object(executable, Executable), self.object(node, Node)
        if found.destroyed or found.graph.number not in self._objects or node not in found.works:
            raise FakeError(INVALID_VALUE)
        if not isinstance(of.work, KernelWork):
            raise FakeError(INVALID_VALUE)
        self.flights += found.flying > 0
        return found

    @entry("cuGraphLaunch", "pp")
    def graph_launch(self, executable: int, stream: int | None) -> None:
        found, on = self.object(executable, Executable), self.stream(stream)
        if self.device() != on.device or found.device != on.device:
            raise FakeError(INVALID_VALUE)
        works, enabled = dict(found.works), dict(found.enabled)
        others = [s for s in found.streams if s is not on]
        found.streams.append(on)
        found.flying += 1

        def run() -> None:
            for other in others:  # one launch of an executable at a time, in the order of the launches
                while found.streams and found.streams[0] is other and other.queue:
                    other.queue.popleft()()
            for graph in (found.graph, *(n.graph for n in nodes_within(found.graph))):
                for place, (device, default, flags) in graph.conditions.items():
                    if flags & _ASSIGN_DEFAULT:
                        self.devices[device].copy_in(place, np.array([default], np.uint32))
            for work in found.graph.work:
                work()
            self._run_nodes(found.graph.nodes, works, enabled, on.device)
            found.streams.remove(on)
            found.flying -= 1
            if found.destroyed and not found.flying:
                self.graph_bytes[found.device] -= found.bytes

        self.do(on, run)

    def _run_nodes(self, nodes: Sequence[Node], works: dict[int, KernelWork], enabled: dict[int, bool], device: int) -> None:
        for node in nodes:
            handle = self.handle_of[id(node)]
            if isinstance(node.work, KernelWork):
                if enabled[handle]:
                    self.run_kernel(works[handle])
            elif isinstance(node.work, Condition):
                self._run_bodies(node.work, lambda body: self._run_nodes(body.nodes, works, enabled, device), device)

    def _run_bodies(self, condition: Condition, run: Callable[[Graph], None], device: int) -> None:
        def value() -> int:
            return int(self.devices[device].copy_out(condition.place, 1, np.uint32)[0])

        if condition.kind == _WHILE:
            for _ in range(_LONGEST):
                if self.lost or not value():
                    return
                run(condition.bodies[0])
            self.lost = _LAUNCH_TIMEOUT
        elif condition.kind == _SWITCH:
            if value() < len(condition.bodies):
                run(condition.bodies[value()])
        elif value():
            run(condition.bodies[0])
        elif len(condition.bodies) > 1:
            run(condition.bodies[1])

    @entry("cuGraphUpload", "pp")
    def graph_upload(self, executable: int, stream: int | None) -> None:
        self.object(executable, Executable)
        if self.stream(stream).capture is not None:
            raise FakeError(CAPTURE_UNSUPPORTED)

    @entry("cuGraphExecDestroy", "p")
    def graph_exec_destroy(self, executable: int) -> None:
        found = self.object(executable, Executable)
        self.drop(executable)
        found.destroyed = True
        if not found.flying:
            self.graph_bytes[found.device] -= found.bytes
        self._release(found.graph)

    @entry("cuGraphDestroy", "p")
    def graph_destroy(self, graph: int) -> None:
        found = self.object(graph, Graph)
        if found.parent is not None:
            raise FakeError(INVALID_VALUE)
        self.drop(graph)
        self._release(found)

    def _release(self, graph: Graph) -> None:
        graph.references -= 1
        if not graph.references:
            for destroy, value in graph.owners:
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)(value)

    # what a graph owns

    @entry("cuUserObjectCreate", "pppuu")
    def user_object_create(self, out: int, value: int, destroy: int, count: int, flags: int) -> None:
        put(out, self.new((destroy, value)))

    @entry("cuUserObjectRelease", "pu")
    def user_object_release(self, value: int, count: int) -> None:
        self.drop(value)

    @entry("cuGraphRetainUserObject", "ppuu")
    def user_object_retain(self, graph: int, value: int, count: int, flags: int) -> None:
        self.object(graph, Graph).owners.append(self.object(value, tuple))

    @entry("cuGraphReleaseUserObject", "ppu")
    def user_object_return(self, graph: int, value: int, count: int) -> None:
        self.object(graph, Graph).owners.remove(self.object(value, tuple))


__all__ = ["INVALID_HANDLE", "Condition", "Executable", "GraphCalls", "Node", "nodes_within"]
