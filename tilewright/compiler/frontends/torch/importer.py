"""PyTorch models as graphs of `tw.ops`: nodes of a torch.export program, one by one, by the table of operators.

The shapes and element types that torch.export wrote on its nodes are the truth: what a function of the table builds is compared
with them, and sizes that are equal but written otherwise are taken as PyTorch writes them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx.node import map_aggregate

from tilewright.compiler import ops
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch import complex_numbers, symbolic_floats
from tilewright.compiler.frontends.torch import operators as _operators  # noqa: F401 - fills the table
from tilewright.compiler.frontends.torch.complex_numbers import Complex
from tilewright.compiler.frontends.torch.constant_nodes import constant_value
from tilewright.compiler.frontends.torch.constants import Constants
from tilewright.compiler.frontends.torch.context import Context, location, operator_name, refuse_unknown
from tilewright.compiler.frontends.torch.control_flow import CONTROL, build_control
from tilewright.compiler.frontends.torch.exported import (
    ELEMENTS,
    INLINED,
    export_module,
    given_ranges,
    given_sizes,
    makes_tensors,
    with_known_operators,
)
from tilewright.compiler.frontends.torch.function_module import FunctionModule
from tilewright.compiler.frontends.torch.in_place import functional_name
from tilewright.compiler.frontends.torch.known_elements import KnownElements
from tilewright.compiler.frontends.torch.signature import is_input, program_dims, structure, user_placeholders
from tilewright.compiler.frontends.torch.sizes import DataDependentSizeError, Sizes
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError
from tilewright.runtime.program.structure import Constant, Structure
from tilewright.runtime.shape import Dim, Expr
from tilewright.runtime.tensor import DType

_IGNORED = (torch.device, torch.layout, torch.memory_format)
_STATE = {OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION}


def import_torch(
    model: ExportedProgram | torch.nn.Module | Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Dim | tuple[int, int]] | None = None,
) -> ImportedModel:
    """The model as linalg text with its constants, dims and nesting.

    Args:
        model: an ExportedProgram, or a module in eval mode, or a function of tensors, with the arguments to export it with.
        args, kwargs: example inputs of a module.
        dynamic_shapes: in any form of torch.export; a string names a dim.
        dims: ranges of dims by name, which go before those of the program.
    Raises:
        IngestError: names the operator, the line of the model and what to do.
    """
    ranges = {name: Dim.of(d, f"dim {name}") for name, d in (dims or {}).items()}
    given: list[Any] = []
    if not isinstance(model, ExportedProgram | torch.nn.Module):
        model = FunctionModule(model)
    if isinstance(model, torch.nn.Module):
        if args is None and kwargs is None:
            raise OptionError(f"{type(model).__name__}: an nn.Module needs args=(...), example inputs to export it with")
        program = export_module(model, args or (), kwargs or {}, dynamic_shapes, ranges)
        given = given_sizes(model, args or (), kwargs or {}, dynamic_shapes)
        ranges = {**given_ranges(model, args or (), kwargs or {}, dynamic_shapes), **ranges}
    else:
        program = model
    return _Import(with_known_operators(program), given, ranges).run()


@dataclass
class _Import:
    program: ExportedProgram
    given: Sequence[Mapping[int, Expr]]
    ranges: Mapping[str, Dim]

    def run(self) -> ImportedModel:
        self.dims = program_dims(self.program, self.given, self.ranges)
        self.graph = ops.Graph(ranges={n: (d.lo, d.hi) for n, d in self.dims.ranges.items()})
        self.sizes = Sizes(self.dims.names, self.graph, dict(self.dims.derived))
        self.elements = KnownElements()
        self.constants = Constants(self.graph)
        self.weights: dict[str, torch.Tensor] = {}  # by the name of their placeholder
        self.state: dict[str, str] = {}  # name of the input -> what holds its new value
        inputs = self._inputs()
        arguments = self._arguments()
        results = self._block(self.program.graph_module, arguments)
        outputs = self._outputs(results)
        return ImportedModel(
            text=self.graph.module_text(),
            constants=self.graph.constants,
            dims=self.dims.ranges,
            donate=tuple(f"arg{self.names.index(n)}" for n in self.state),
            input_structure=inputs,
            output_structure=outputs,
        )

    # -- inputs

    def _inputs(self) -> Structure:
        """Declares the user's inputs, then what the model changes; their nesting."""
        spec = self.program.call_spec.in_spec
        self.names: list[str] = []
        self.values: dict[str, Any] = {}
        leaves: list[Structure] = []
        given = (s.arg for s in self.program.graph_signature.input_specs)
        constants = {a.name: a.value for a in given if isinstance(a, ConstantArgument)}
        for node in user_placeholders(self.program):
            value = node.meta.get("val")
            if is_input(node):
                leaves.append(Structure.leaf(len(self.names)))
                self.values[node.name] = self._declare(node, node.name)
            else:
                fixed = int(value) if isinstance(value, torch.SymInt) else constants.get(node.name, value)
                leaves.append(Structure.constant(fixed if isinstance(fixed, (bool, int, float, str)) else None))
                self.values[node.name] = fixed
        parameters = self.program.module_call_graph[0].signature
        nested = _parameters(structure(spec, iter(leaves)), parameters.forward_arg_names if parameters else None)
        changed = {s.target for s in self.program.graph_signature.output_specs if s.kind in _STATE}
        own: dict[str, Structure] = {}
        for spec_in in self.program.graph_signature.input_specs:
            if spec_in.kind in (InputKind.BUFFER, InputKind.PARAMETER) and spec_in.target in changed:
                node = next(n for n in self.program.graph.nodes if n.name == spec_in.arg.name)
                own[str(spec_in.target)] = Structure.leaf(len(self.names))
                self.values[node.name] = self._declare(node, str(spec_in.target))
        return Structure.mapping({**dict(zip(nested.keys, nested.items, strict=True)), **own})

    def _declare(self, node: torch.fx.Node, name: str) -> Any:
        context = Context(self.graph, self.sizes, node)
        value = node.meta["val"]
        name = re.sub(r"[^\w.-]", "_", name)
        self.names.append(name)
        if isinstance(value, torch.SymInt):
            size = self.sizes.expr(value)
            if size.symbol is None:
                raise IngestError(f"input {name} is the integer {size}; wanted one that is a dim by itself")
            return self.graph.dim(size.symbol)
        if value.is_complex():
            raise IngestError(f"input {name} is complex; pass real and imaginary part, and join them with torch.complex")
        return self.graph.input(name, context.shape(), context.dtype())

    def _arguments(self) -> dict[str, Any]:
        """The value of every placeholder; weights and buffers are made when they are first read."""
        held: dict[str, Any] = dict(self.values)
        for spec in self.program.graph_signature.input_specs:
            name = getattr(spec.arg, "name", None)
            if name is None or name in held:
                continue
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                held[name] = _Held(self.constants, str(spec.target), self._stored(str(spec.target)))
                self.weights[name] = held[name].value
            elif spec.kind is not InputKind.USER_INPUT:
                raise IngestError(f"input {name} of the program is a {spec.kind.name}, which is not compiled; pass tensors only")
        return held

    def _stored(self, target: str) -> torch.Tensor:
        program = self.program
        value = program.state_dict[target] if target in program.state_dict else program.constants[target]
        assert isinstance(value, torch.Tensor)
        return value

    # -- nodes

    def _block(self, module: torch.fx.GraphModule, values: Mapping[str, Any]) -> Any:
        """Builds the nodes of a graph; what its output node gives."""
        known: dict[torch.fx.Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = values[node.name]
            elif node.op == "get_attr":
                known[node] = _attribute(module, str(node.target), self.constants)
            elif node.op == "output":
                return _resolved(node.args[0], known)
            else:
                known[node] = self._node(node, known)
        raise IngestError("the program has no output")

    def _node(self, node: torch.fx.Node, known: Mapping[torch.fx.Node, Any]) -> Any:
        meta = node.meta.get("val")
        name = functional_name(node) or operator_name(node.target)
        if isinstance(meta, torch.SymBool) or (meta is None and not node.users):
            return None  # an assertion on sizes, which hold by the ranges of the dims
        args, kwargs = _resolved(node.args, known), _resolved(node.kwargs, known)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if name in ELEMENTS:
            return self._element(node, args[0])
        if not makes_tensors(node):
            return self._number(node, meta, args)
        self.elements.follow(node, args)
        if name in INLINED:
            return self._inlined(node, name, args)
        context = Context(self.graph, self.sizes, node)
        if name not in lowerings("torch") and name not in CONTROL:
            value = constant_value(node, self.weights)
            if isinstance(value, torch.Tensor):
                return self.constants.tensor(node.name, value)
            if value is not None:
                return [self.constants.tensor(f"{node.name}.{i}", v) for i, v in enumerate(value)]
        try:
            if name in CONTROL:
                return _checked(context, build_control(context, name, args, self._nested), meta)
            return _checked(context, _built(context, name, args, kwargs), meta)
        except DataDependentSizeError as error:
            raise IngestError(_data_dependent(node, name, error)) from error
        except (OptionError, ShapeError, DTypeError) as error:
            raise IngestError(f"{name} at {location(node)}: {error}") from error

    def _number(self, node: torch.fx.Node, value: Any, args: Sequence[Any]) -> Any:
        """A Python number."""
        if isinstance(value, torch.SymFloat):
            return symbolic_floats.build(self.graph, node.target, args, location(node))
        if isinstance(value, (bool, float, type(None))) or operator_name(node.target) == "aten.sym_storage_offset.default":
            return value
        try:
            return self.sizes.expr(value)
        except DataDependentSizeError as error:
            raise IngestError(_data_dependent(node, operator_name(node.target), error)) from error

    def _element(self, node: torch.fx.Node, tensor: ops.Tensor) -> Any:
        """A tensor's only element as a number: a size where it follows from sizes, else the tensor itself, of rank 0."""
        value, size = node.meta.get("val"), self.elements.found.get(node.args[0])
        if size is None or not isinstance(value, torch.SymInt):
            return tensor
        self.sizes.define(value, size)
        return size

    def _inlined(self, node: torch.fx.Node, name: str, args: Sequence[Any]) -> Any:
        """The graph inside a region that only sets a mode."""
        if name == "wrap_with_autocast" and args[2]:
            raise IngestError(f"autocast at {location(node)} is not compiled; cast the model with .to(torch.bfloat16) instead")
        at = next(i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule))
        inner = args[at]
        names = [n.name for n in inner.graph.nodes if n.op == "placeholder"]
        return self._block(inner, dict(zip(names, args[at + 1 :], strict=True)))

    def _nested(self, module: torch.fx.GraphModule, given: Sequence[Any]) -> Sequence[Any]:
        """What a graph inside of a branch or loop gives for these values."""
        names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        made = self._block(module, dict(zip(names, given, strict=True)))
        return list(made) if isinstance(made, (tuple, list)) else [made]

    # -- outputs

    def _outputs(self, results: Sequence[Any]) -> Structure:
        """Declares the results; their nesting: the model's own, and beside it a dict of what it changes."""
        own: list[Structure] = []
        changed: dict[str, Structure] = {}
        count = 0
        for spec, result in zip(self.program.graph_signature.output_specs, results, strict=True):
            value = self._read(result)
            leaf = Structure.constant(None if isinstance(value, ops.Tensor) else value)
            if isinstance(value, ops.Tensor):
                self.graph.output(value)
                leaf = Structure.leaf(count, is_number=not isinstance(spec.arg, TensorArgument))
                count += 1
            if spec.kind in _STATE:
                name = re.sub(r"[^\w.-]", "_", str(spec.target))
                changed[name] = leaf
                self.state[name] = name
            else:
                own.append(leaf)
        if not count:
            raise IngestError("no result of the model is a tensor, or depends on a size; return one that does")
        nested = structure(self.program.call_spec.out_spec, iter(own))
        return Structure.sequence([nested, Structure.mapping(changed)]) if changed else nested

    def _read(self, value: Any) -> ops.Tensor | Constant:
        """A result; a size is a tensor of rank 0."""
        if isinstance(value, _Held):
            value = value.tensor
        if isinstance(value, Expr):
            value = self.graph.scalar(value, DType.I64)
        if isinstance(value, (ops.Tensor, bool, int, float, str, type(None))):
            return value
        if isinstance(value, Complex):
            raise IngestError("a result of the model is complex; return torch.view_as_real of it")
        raise IngestError(f"a result of the model is {value}, which is neither a tensor nor a number; return tensors only")


@dataclass
class _Held:
    """A weight or buffer that becomes a constant when it is first read."""

    constants: Constants
    name: str
    value: torch.Tensor

    @property
    def tensor(self) -> ops.Tensor | Complex:
        name = re.sub(r"[^\w.-]", "_", self.name)
        if self.value.is_complex():
            parts = torch.view_as_real(self.value.detach().resolve_conj())
            return Complex(*(self.constants.tensor(f"{name}.{n}", parts[..., i]) for i, n in enumerate(("real", "imag"))))
        return self.constants.tensor(name, self.value)


def _resolved(argument: Any, known: Mapping[torch.fx.Node, Any]) -> Any:
    """An argument of a node with nodes replaced by what they hold."""

    def one(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            value = known[a]
            return value.tensor if isinstance(value, _Held) else value
        return None if isinstance(a, _IGNORED) else a

    return map_aggregate(argument, one)


def _attribute(module: torch.fx.GraphModule, target: str, constants: Constants) -> Any:
    value = operator.attrgetter(target)(module)
    return _Held(constants, target, value) if isinstance(value, torch.Tensor) else value


def _parameters(nested: Structure, names: Sequence[str] | None) -> Structure:
    """(args, kwargs) as a dict of parameters. names: of the model's parameters, positional ones first."""
    args, kwargs = nested.items
    known = list(names or ())
    found = {known[i] if i < len(known) else f"arg{i}": item for i, item in enumerate(args.items)}
    return Structure.mapping({**found, **dict(zip(kwargs.keys, kwargs.items, strict=True))})


def _built(context: Context, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if complex_numbers.takes_part(args) or any(t.is_complex() for t in context.tensors):
        return complex_numbers.build(context, name, args, kwargs)
    lowering = lowerings("torch").get(name)
    if lowering is None:
        refuse_unknown(context)
    return lowering(context, *args, **kwargs)


def _checked(context: Context, made: Any, meta: Any) -> Any:
    """What a function of the table gave, compared with what PyTorch says of it."""
    if isinstance(meta, (tuple, list)):
        if len(made) != len(meta):
            raise IngestError(f"{context.operator} at {location(context.node)}: its function gave {len(made)} results, "
                              f"and PyTorch {len(meta)}")
        return [_restated(context, m, i) for i, m in enumerate(made)]
    return _restated(context, made, 0) if isinstance(meta, torch.Tensor) else made


def _restated(context: Context, made: Any, result: int) -> Any:
    if isinstance(made, Complex):
        return Complex(_restated(context, made.real, result), _restated(context, made.imag, result))
    if not isinstance(made, ops.Tensor):
        return made
    for size, extent in zip(context.tensors[result].shape, made.dims, strict=False):
        if isinstance(size, torch.SymInt):
            context.sizes.define(size, extent)
    wanted, kind = context.shape(result), context.dtype(result)
    if made.dtype is not kind or made.rank != len(wanted):
        raise IngestError(f"{context.operator} at {location(context.node)}: its function gave {made.dtype.value} of rank "
                          f"{made.rank}, and PyTorch {kind.value} of rank {len(wanted)}")
    for axis, (own, theirs) in enumerate(zip(made.dims, wanted, strict=True)):
        at = context.sizes.difference(own, theirs)
        if at is not None:
            values = ", ".join(f"{n} = {v}" for n, v in at.items())
            context.refuse(f"axis {axis} of its result has {own} elements, and torch.export took {theirs} by the example, "
                           f"another number at {values}", "give the dims a range in which they agree")
    return made if made.dims == wanted else _with_dims(made, wanted)


def _with_dims(x: ops.Tensor, dims: tuple[Expr, ...]) -> ops.Tensor:
    """The same tensor with its extents written otherwise."""
    static = [(a.constant, b.constant) for a, b in zip(x.dims, dims, strict=True)]
    if all(a == b for a, b in static):
        return replace(x, dims=dims)
    return x.graph.result(f"tensor.cast {x.ssa} : {x.type} to ", x.dtype, dims)


def _data_dependent(node: torch.fx.Node, name: str, error: DataDependentSizeError) -> str:
    return (f"{name} at {location(node)} makes a size that depends on data ({error}). Such sizes are not compiled: return a "
            "padded tensor and its length, or pass the size as an argument that is a dim")
