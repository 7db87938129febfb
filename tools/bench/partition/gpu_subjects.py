"""What `gpu-partition` runs: training workloads, optimizers, and products with work on their rows; ours and the peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tools.bench.partition import optimizers
from tools.bench.partition.maths import TorchMaths
from tools.bench.partition.training import WORKLOADS, Given, Workload

Call = Callable[..., Any]
MOST = 2048  # rows
POINTS = (64, 512, 2048)
OURS, EAGER, INDUCTOR, COMBO = "tilewright", "torch", "torch.compile", "combo kernels"
FUSED, APART = "one launch", "two launches"  # forms of ours
OWN = (OURS, FUSED, APART)
COMPILED = (INDUCTOR, COMBO)
TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 3e-2}  # of the norm of all results
_COMBO = {"combo_kernels": True, "combo_kernels_autotune": 1, "combo_kernel_allow_mixed_sizes": 2,
          "combo_kernel_foreach_dynamic_shapes": True}
_SHORT = ("layernorm_backward", "softmax_dropout", "gelu_bias_backward", "residual_dropout_layernorm", "cross_entropy")
_ORDER = ("layernorm_backward", "softmax_dropout", "softmax_dropout_backward", "gelu_bias_backward", "residual_dropout_layernorm",
          "column_sum", "cross_entropy", "cross_entropy_backward", "rmsnorm_backward", "rope_norm", "group_norm_silu",
          "bert_layer_backward", "clip_by_norm")


class Subject(Protocol):
    """name: of its records. points: values of T. element: type of its numbers. rotates: may a call have other arguments than the
    one before? Optimizers own theirs."""

    @property
    def name(self) -> str: ...
    @property
    def points(self) -> tuple[int, ...]: ...
    @property
    def element(self) -> str: ...
    @property
    def rotates(self) -> bool: ...

    def build(self, folder: Path, target: str) -> None:
        """Ours, compiled into the folder. Needs the compiler, not a GPU."""

    def systems(self, torch: Any, folder: Path) -> dict[str, Call]:
        """System -> what gives, of arguments, a call without any."""

    def given(self, torch: Any, at: int, seed: int, device: str) -> tuple[Any, ...]: ...

    def wanted(self, torch: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        """Results as precisely as they are to be compared."""


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _widened(given: Sequence[Any]) -> list[Any]:
    return [a.double() if a.is_floating_point() else a for a in given]


def _loaded(path: Path) -> Call:
    import tilewright as tw

    return tw.load(path)


def _bound(call: Call) -> Call:
    return lambda *given: partial(call, *given)


def compiled(torch: Any, function: Call) -> dict[str, Call]:
    """By Inductor with dynamic shapes, without and with kernels that do unrelated work side by side."""
    known = {name: value for name, value in _COMBO.items() if hasattr(torch._inductor.config, name)}
    torch._dynamo.config.recompile_limit = 64
    return {INDUCTOR: torch.compile(function, dynamic=True), COMBO: torch.compile(function, dynamic=True, options=known)}


def _module(torch: Any, function: Call) -> Any:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            return function(*given)

    return Module().eval()


def _dynamic(torch: Any, axes: Sequence[int | None], most: int) -> Any:
    """axes: of each argument the one that rows are along."""
    rows = torch.export.Dim("T", min=1, max=most)
    return (tuple(None if axis is None else {axis: rows} for axis in axes),)


@dataclass(frozen=True)
class Training:
    """A workload between the products of a training step. Ours may lie there in further forms, such as the one before a change:
    files NAME_ELEMENT.FORM.tw."""

    workload: Workload
    element: str = "f32"
    points: tuple[int, ...] = POINTS
    rotates: bool = True

    @property
    def name(self) -> str:
        return self.workload.name

    def _file(self) -> str:
        return f"{self.name}_{self.element}.tw"

    def build(self, folder: Path, target: str) -> None:
        import torch

        import tilewright as tw

        module = _module(torch, self.workload.build(TorchMaths(torch)))
        axes = [g.size.index("T") if "T" in g.size else None for g in self.workload.given]
        tw.compile(module, args=self.given(torch, 64, 0, "cpu"), dynamic_shapes=_dynamic(torch, axes, MOST),
                   target=target).save(folder / self._file())

    def systems(self, torch: Any, folder: Path) -> dict[str, Call]:
        function = self.workload.build(TorchMaths(torch))
        native = self.workload.native(torch) if self.workload.native else function
        forms = {path.name.split(".")[-2]: _loaded(path) for path in sorted(folder.glob(f"{self.name}_{self.element}.*.tw"))}
        systems = {OURS: _loaded(folder / self._file()), **forms, EAGER: native, **compiled(torch, function)}
        return {name: _bound(call) for name, call in systems.items()}

    def given(self, torch: Any, at: int, seed: int, device: str) -> tuple[Any, ...]:
        make, kind = torch.Generator(device).manual_seed(seed), torch.bfloat16 if self.element == "bf16" else torch.float32

        def tensor(g: Given) -> Any:
            size = [at if n == "T" else int(n) for n in g.size]
            if g.labels:
                return torch.randint(0, g.labels, size, generator=make, device=device)
            return torch.rand(size, generator=make, device=device).to(kind)

        return tuple(tensor(g) for g in self.workload.given)

    def wanted(self, torch: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        return _tuple(self.workload.build(TorchMaths(torch))(*_widened(given)))


@dataclass(frozen=True)
class DenseRows:
    """A product of f16, a bias and a residual, then layernorm or softmax: as one kernel, as two, and as chosen."""

    kind: str
    columns: int
    depth: int
    points: tuple[int, ...] = (128, 1024, 4096)
    element: str = "f16"
    rotates: bool = True

    @property
    def name(self) -> str:
        return f"dense_{self.kind}_{self.depth}x{self.columns}"

    def _file(self, form: str) -> str:
        return f"{self.name}_{form.replace(' ', '_')}.tw"

    def function(self, torch: Any) -> Call:
        functional = torch.nn.functional
        if self.kind == "softmax":
            return lambda x, w, bias, residual: torch.softmax(x @ w + bias + residual, -1)
        return lambda x, w, bias, residual: functional.layer_norm(x @ w + bias + residual, (self.columns,))

    def build(self, folder: Path, target: str) -> None:
        import torch

        import tilewright as tw
        from tilewright.compiler.assemble import assemble
        from tilewright.compiler.builder.local_builder import LocalBuilder
        from tilewright.compiler.compilation.compilation import Compilation, full_target
        from tilewright.compiler.compilation.outlined_model import Cut
        from tilewright.compiler.frontends.imported import ExampleInputs
        from tilewright.compiler.tuning.cut_refused import built_with_cuts
        from tilewright.compiler.tuning.dispatch_tables import untuned_tables
        from tilewright.compiler.verification.keep_what_gains import function_of
        from tilewright.passes.partition.strip_choice import StripChoice

        example = ExampleInputs(self.given(torch, 64, 0, "cpu"), None, _dynamic(torch, (0, None, None, 0), max(self.points)))
        made = Compilation(_module(torch, self.function(torch)), {}, full_target(target), tw.CompileOptions(), example=example)
        forms = {OURS: StripChoice.PREDICTED, FUSED: StripChoice.WIDELY, APART: StripChoice.NEVER}
        for form, choice in forms.items():
            tables = partial(untuned_tables, builder=LocalBuilder(made.target))
            function_of(assemble(*built_with_cuts(made, tables, Cut(strips=choice)))).save(folder / self._file(form))

    def systems(self, torch: Any, folder: Path) -> dict[str, Call]:
        function = self.function(torch)
        ours = {form: _loaded(folder / self._file(form)) for form in OWN}
        return {name: _bound(call) for name, call in {**ours, EAGER: function}.items()}

    def given(self, torch: Any, at: int, seed: int, device: str) -> tuple[Any, ...]:
        make = torch.Generator(device).manual_seed(seed)
        sizes = ((at, self.depth), (self.depth, self.columns), (self.columns,), (at, self.columns))
        scales = (1.0, self.depth**-0.5, 1.0, 1.0)
        return tuple((torch.randn(size, generator=make, device=device) * scale).half()
                     for size, scale in zip(sizes, scales, strict=True))

    def wanted(self, torch: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        return _tuple(self.function(torch)(*_widened(given)))


@dataclass(frozen=True)
class Optimizer:
    """A step over BERT-base's parameters; one of so many rows of each is there. T is 0. At their real size Inductor takes longer
    to compile it than there is time."""

    step: str
    share: int
    points: tuple[int, ...] = (0,)
    element: str = "f32"
    rotates: bool = False

    @property
    def name(self) -> str:
        return f"{self.step}_{self.share}"

    def _flat(self, torch: Any) -> Call:
        step = optimizers.STEPS[self.step](torch)

        def run(*flat: Any) -> Any:
            count = (len(flat) - 2) // 4
            return step(*(flat[n * count : (n + 1) * count] for n in range(4)), *flat[4 * count :])

        return run

    def build(self, folder: Path, target: str) -> None:
        import torch

        import tilewright as tw

        program = torch.export.export(_module(torch, self._flat(torch)), self.given(torch, 0, 0, "cpu"))
        names = program.graph_signature.user_inputs
        count = (len(names) - 2) // 4
        donated = tuple(n for at in (0, 2, 3) for n in names[at * count : (at + 1) * count])
        tw.compile(program, target=target, donate=donated).save(folder / f"{self.name}.tw")

    def systems(self, torch: Any, folder: Path) -> dict[str, Call]:
        ours = _loaded(folder / f"{self.name}.tw")

        def of(peer: Call) -> Call:
            def bound(*flat: Any) -> Any:
                count = (len(flat) - 2) // 4
                return peer(flat[:count], flat[count : 2 * count])

            return bound

        def in_place(*flat: Any) -> Any:
            return partial(ours, *(t.clone() for t in flat))

        makers: Mapping[str, Call] = {"fused": partial(optimizers.torch_adamw, torch, fused=True),
                                      "foreach": partial(optimizers.torch_adamw, torch, fused=False)}
        if self.step == "lamb":
            makers = {"foreach": partial(optimizers.foreach_lamb, torch)}
        found = {name: of(maker) for name, maker in makers.items()}

        def through_inductor(*flat: Any) -> Any:
            call = found["foreach"](*flat)
            call()  # the optimizer makes its state
            return torch.compile(call, dynamic=False)

        return {OURS: in_place, **found, **({INDUCTOR: through_inductor} if self.share > 1 else {})}

    def given(self, torch: Any, at: int, seed: int, device: str) -> tuple[Any, ...]:
        make = torch.Generator(device).manual_seed(seed)
        groups = [[torch.rand(size, generator=make, device=device) for size in optimizers.sizes(self.share)] for _ in range(4)]
        groups[1] = [g - 0.5 for g in groups[1]]
        return (*(t for group in groups for t in group), *(torch.tensor(v, device=device) for v in (1.2, 1.1)))

    def wanted(self, torch: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        """In f32, as four times as much may not fit."""
        return _tuple(self._flat(torch)(*given))


def subjects() -> Iterator[Subject]:
    """All of them, those first that matter most."""
    named = {w.name: w for w in WORKLOADS}
    yield from (Training(named[name]) for name in _ORDER)
    yield from (Optimizer(step, 1) for step in ("adamw", "lamb"))
    yield from (DenseRows("layernorm", n, n) for n in (128, 256, 512, 768))
    yield from (DenseRows("softmax", n, k) for n, k in ((256, 64), (512, 512)))
    yield from (Training(named[name], "bf16") for name in _SHORT)
    yield from (Optimizer(step, 64) for step in ("adamw", "lamb"))
