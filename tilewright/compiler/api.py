"""`compile`: from a model to a function that runs at every shape of its range."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tilewright.compiler.bundles import bundle_of
from tilewright.compiler.compilation.compilation import AnyModel, Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions, default_policy
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.compiler.isolation.isolated import compiled_apart
from tilewright.runtime.collector import collector_paused
from tilewright.runtime.float_environment import float_environment
from tilewright.runtime.host.required_features import check_measurable
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.log import LOG, show_as_asked
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import DimLike
from tilewright.runtime.target import Target


@float_environment()
def compile(  # noqa: A001 - the public name; written tw.compile
    model_ir: AnyModel,
    dynamic_dims: Mapping[str, DimLike] | None = None,
    target: Target | str = "host",
    options: CompileOptions | Mapping[str, Any] | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    donate: Iterable[str] = (),
    function: str | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> CompiledFunction:
    """Compile a model once for all shapes of its range.

    Args:
        model_ir: linalg-level MLIR as text, a path, an `ir.Module`, or what `tw.ops` built; a torch.nn.Module, an
            ExportedProgram or the path of one (.pt2); an onnx.ModelProto or the path of one (.onnx).
        dynamic_dims: dim name -> Dim, (lo, hi), (lo, hi, multiple), range(lo, hi + 1) or torch.export.Dim; a name is one of
            `tw.dims` in the model, or a place such as "x.1" or "arg0.1".
        target: "host" (or "cpu"), or "host:<level>" such as "host:x86-64-v3"; "cuda" for the GPU that is here, "cuda:sm_90a" for
            one that need not be; "emulator:sm_90a".
        options: CompileOptions, or a dict of them. A compile with a callback, a builder or a log of its own is never cached.
        constants: argument name ("w" or "arg1") -> array, bound now and stored with the function. They are read until
            this returns, and not kept.
        donate: arguments whose buffer a result of equal type and extents may take.
        function: which function of the module, when it has several public ones.
        args, kwargs, dynamic_shapes: of a torch.nn.Module, as torch.export.export takes them.
    Returns:
        A CompiledFunction; calling it never needs the compiler again.
    Raises:
        IngestError, OptionError, BuildError: each says what was wanted, what came and what to do.
        DeviceError: a search for a CPU or GPU that this machine has not.
    """
    compilation = Compilation(model_ir, {} if dynamic_dims is None else dynamic_dims, full_target(target),
                              CompileOptions.of(options), {} if constants is None else constants, donate, function,
                              ExampleInputs(args, kwargs, dynamic_shapes))
    return _compile(compilation)


def tune(
    model_ir: AnyModel,
    dynamic_dims: Mapping[str, DimLike] | None = None,
    target: Target | str = "host",
    options: CompileOptions | Mapping[str, Any] | None = None,
    *,
    seconds: float | None = None,
    constants: Mapping[str, Any] | None = None,
    donate: Iterable[str] = (),
    function: str | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> CompiledFunction:
    """`compile` with a search: kernels of the whole range are measured on this machine, for the model's time as a whole.

    Args:
        seconds: time for the search; None: the option of that name, or 60 where neither it nor `trials` is given.
        the others: as of `compile`. Without a policy of its own the search is by "ucb": what pays most for the whole
                model; on a farm by "thompson", which many decisions before the first result do not lead to the same place.
    Returns:
        As `compile`; `.program.certificates` says how close to the best its kernels are.
    Raises:
        As `compile`.
    """
    chosen = CompileOptions.of(options)
    if seconds is None:
        seconds = 60.0 if not chosen.searches else chosen.seconds
    chosen = replace(chosen, seconds=seconds, policy=chosen.policy or default_policy(chosen.farm is not None))
    return compile(model_ir, dynamic_dims, target, chosen, constants=constants, donate=donate, function=function, args=args,
                   kwargs=kwargs, dynamic_shapes=dynamic_shapes)


def _compile(compilation: Compilation) -> CompiledFunction:
    options = compilation.options
    start = time.perf_counter()
    show_as_asked()
    if options.searches and options.farm is None:
        check_measurable(compilation.target)
    with nullcontext() if options.searches else collector_paused():
        bundle = compiled_apart(compilation) if options.isolate else bundle_of(compilation)
    _report(bundle.program)
    LOG.debug("compiled in %.2f s", time.perf_counter() - start)
    device = device_for(bundle.program, bundle.code)
    return CompiledFunction(bundle.program, bundle.code, bundle.constants, device, llvm_ir=bundle.llvm_ir,
                            threads=options.threads)


def _report(program: Program) -> None:
    """What was built, and why."""
    for table in program.tables:
        families = ", ".join(dict.fromkeys(k.family for k in table.kernels))
        refused = program.refused.get(table.name)
        LOG.info("%s: %d kernels of %s%s", table.name, len(table.kernels), families, f"; {refused}" if refused else "")
