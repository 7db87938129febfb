"""`compile`: from a model to a function that runs at every shape of its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.model_cache import ModelCache
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import AnyModel, Compilation, full_target
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.imported import ExampleInputs
from tilewright.compiler.tuning.choose_tables import choose_tables
from tilewright.runtime import knobs
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.artifact import Bundle
from tilewright.runtime.shape import Dim
from tilewright.runtime.target import Target


def compile(  # noqa: A001 - the public name; written tw.compile
    model_ir: AnyModel,
    dynamic_dims: Mapping[str, Dim | tuple[int, int]] | None = None,
    target: Target | str = "host",
    options: CompileOptions | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    donate: Sequence[str] = (),
    function: str | None = None,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> CompiledFunction:
    """Compile a model once for all shapes of its range.

    Args:
        model_ir: linalg-level MLIR as text, a path, an `ir.Module`, or what `tw.ops` built; a torch.nn.Module, an
            ExportedProgram or the path of one (.pt2); an onnx.ModelProto or the path of one (.onnx).
        dynamic_dims: dim name -> Dim or (lo, hi); a name is one of `tw.dims` in the model, or a place such as "x.1" or "arg0.1".
        target: "host", or "host:<level>" such as "host:x86-64-v3"; "cuda" for the GPU that is here, "cuda:sm_90a" for one that
            need not be; "emulator:sm_90a".
        options: see CompileOptions. A compile with a callback, a builder or a log of its own is never cached.
        constants: argument name ("w" or "arg1") -> array, bound now and stored with the function.
        donate: arguments whose buffer a result of equal type and extents may take.
        function: which function of the module, when it has several public ones.
        args, kwargs, dynamic_shapes: of a torch.nn.Module, as torch.export.export takes them.
    Returns:
        A CompiledFunction; calling it never needs the compiler again.
    Raises:
        IngestError, OptionError, BuildError: each says what was wanted, what came and what to do.
    """
    options = options or CompileOptions()
    compilation = Compilation(model_ir, dynamic_dims or {}, full_target(target), options, constants or {}, tuple(donate),
                              function, ExampleInputs(args, kwargs, dynamic_shapes))
    if options.callback or options.builder or options.log or knobs.DUMP.get():
        bundle = compile_bundle(compilation)
    else:
        cache, key = ModelCache(), compilation.key()
        found = cache.get(key)
        bundle = found or compile_bundle(compilation)
        if found is None:
            cache.put(key, bundle)
    device = device_for(bundle.program, bundle.code)
    return CompiledFunction(bundle.program, bundle.code, bundle.constants, device, llvm_ir=bundle.llvm_ir,
                            threads=options.threads)


def compile_bundle(compilation: Compilation) -> Bundle:
    """The table of contents of a compile."""
    options = compilation.options
    with ExitStack() as stack:
        builder = options.builder
        if builder is None:
            builder = workers = stack.enter_context(WorkerBuilder(compilation.target, inspect=options.searches))
            if options.searches:
                workers.warm()  # they start while the passes run
        model = outline(compilation)
        tables = choose_tables(model, builder)
    return assemble(model, tables)
