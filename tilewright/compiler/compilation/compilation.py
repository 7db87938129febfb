"""Compilation: what one compile is asked for, complete and checked; it travels in place of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np

from tilewright.compiler.builder.cache import cache_key
from tilewright.compiler.builder.codegen import host_target, limits, lowest_target
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.frontends.import_model import import_model
from tilewright.compiler.frontends.imported import ExampleInputs, ImportedModel
from tilewright.compiler.frontends.source import HasModuleText, ModelIR
from tilewright.runtime.cuda.cuda_device import arch_of
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import Limits
from tilewright.runtime.program.artifact import raw_bytes
from tilewright.runtime.shape import Dim
from tilewright.runtime.target import Target, TargetKind

AnyModel = Union[ModelIR, ImportedModel, Any]  # Any: a torch or onnx model, which only its front end knows


@dataclass(frozen=True)
class Compilation:
    """A model, and everything that decides what it is compiled to; the arguments of `tilewright.compiler.api.compile`.

    target: of a named architecture, as `full_target` gives it. example: for a model that is exported first.
    """

    model_ir: AnyModel
    dynamic_dims: Mapping[str, Dim | tuple[int, int]]
    target: Target
    options: CompileOptions = field(default_factory=CompileOptions)
    constants: Mapping[str, Any] = field(default_factory=dict)
    donate: tuple[str, ...] = ()
    function: str | None = None
    example: ExampleInputs = field(default_factory=ExampleInputs)

    @cached_property
    def model(self) -> ImportedModel | ModelIR:
        """What is read: the model itself, or what its front end made of it."""
        dims = {n: d if isinstance(d, Dim) else Dim(*d) for n, d in self.dynamic_dims.items()}
        return import_model(self.model_ir, dims, self.example, self.constants)

    @cached_property
    def imported(self) -> ImportedModel:
        """What a front end adds to the model; nothing where none was needed."""
        return self.model if isinstance(self.model, ImportedModel) else ImportedModel("")

    @property
    def all_constants(self) -> dict[str, Any]:
        """The caller's constants and those of the model: of a front end, or of a graph of `tw.ops`."""
        own = {n: v for n, v in self.constants.items() if n not in self.imported.consumed}
        return {**getattr(self.model, "constants", {}), **own}

    @property
    def open_dims(self) -> dict[str, Dim | tuple[int, int]]:
        """The caller's dims that a front end has not put in place already."""
        return {n: d for n, d in self.dynamic_dims.items() if n not in self.imported.consumed}

    @property
    def all_donations(self) -> tuple[str, ...]:
        """The arguments that the caller or the front end donates."""
        return tuple(dict.fromkeys((*self.imported.donate, *self.donate)))

    @property
    def on_gpu(self) -> bool:
        return self.target.kind is not TargetKind.HOST

    @property
    def host(self) -> Target:
        """What the native host program is compiled for; of a GPU's, every machine of this architecture runs it."""
        return lowest_target() if self.on_gpu else self.target

    @cached_property
    def limits(self) -> Limits:
        """What tile rules need to know of the target."""
        return limits(self.target, self.options.threads)

    def key(self) -> str:
        """sha256 over everything that decides what is compiled."""
        dims = {n: replace(d) if isinstance(d, Dim) else Dim(*d) for n, d in self.dynamic_dims.items()}
        near, asked = host_target(self.host), replace(self.options, threads=None, log=None)
        structures = (self.imported.input_structure, self.imported.output_structure)
        parts: list[str | bytes | memoryview] = [
            fingerprint(), self._text(), repr(sorted(dims.items())), str(self.target), near.cpu, near.features,
            repr(self.limits), repr(asked), repr(self.all_donations), repr(self.function),
            repr(sorted(self.imported.dims.items())), repr(structures)]
        constants = self.all_constants
        for name in sorted(constants):
            array = np.asarray(constants[name])
            parts += [f"{name}:{array.dtype}:{array.shape}", raw_bytes(array)]
        return cache_key(*parts)

    def _text(self) -> str:
        model = self.model
        if isinstance(model, ImportedModel):
            return model.text
        if isinstance(model, str | Path) and "\n" not in str(model) and Path(model).is_file():
            return Path(model).read_text()
        return model.module_text() if isinstance(model, HasModuleText) else str(model)


def full_target(target: Target | str) -> Target:
    """A target with its architecture: "cuda" alone is the GPU that is here.

    Raises:
        OptionError: a GPU target names no architecture. DeviceError: "cuda", and no GPU is here.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    if target == Target(TargetKind.CUDA):
        target = Target(TargetKind.CUDA, arch_of(0))
    if target.kind is not TargetKind.HOST and not target.arch:
        raise OptionError(f"target {target}: name the architecture, as in {target}:sm_90a or {target}:sm_80")
    return target
