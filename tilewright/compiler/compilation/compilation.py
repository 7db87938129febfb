"""Compilation: what one compile is asked for, complete and checked; it travels in place of its parts."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Union

from tilewright.compiler.builder.cache import cache_key
from tilewright.compiler.builder.codegen import host_target, limits, lowest_target
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.builder.ptxas import assembler
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.constants.bind_constants import as_constant
from tilewright.compiler.frontends.import_model import import_model
from tilewright.compiler.frontends.imported import ExampleInputs, ImportedModel
from tilewright.compiler.frontends.source import ModelIR, model_content
from tilewright.compiler.ops.fourier import transforms_as_defined
from tilewright.runtime.cuda.cuda_device import arch_of
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import Limits
from tilewright.runtime.program.artifact import raw_bytes
from tilewright.runtime.shape import Dim, DimLike, ShapeRange
from tilewright.runtime.target import Target, TargetKind

AnyModel = Union[ModelIR, ImportedModel, Any]  # Any: a torch or onnx model, which only its front end knows


@dataclass(frozen=True)
class Compilation:
    """A model, and everything that decides what it is compiled to; the arguments of `tilewright.compiler.api.compile`.

    target: of a named architecture, as `full_target` gives it. example: for a model that is exported first. asked: when it was
    made, by time.monotonic(); the budget of a search counts from then.
    """

    model_ir: AnyModel
    dynamic_dims: Mapping[str, DimLike]
    target: Target
    options: CompileOptions = field(default_factory=CompileOptions)
    constants: Mapping[str, Any] = field(default_factory=dict)
    donate: Iterable[str] = ()
    function: str | None = None
    example: ExampleInputs = field(default_factory=ExampleInputs)
    asked: float = field(default_factory=time.monotonic, compare=False)

    @cached_property
    def model(self) -> ImportedModel | ModelIR:
        """What is read: the model itself, or what its front end made of it for the target."""
        with transforms_as_defined(self.target.kind is TargetKind.HOST):
            return import_model(self.model_ir, dict(self.dims), self.example, self.given_constants)

    @cached_property
    def dims(self) -> ShapeRange:
        """The caller's dynamic_dims."""
        if not isinstance(self.dynamic_dims, Mapping):
            raise OptionError('dynamic_dims: wanted a dict such as {"T": (1, 128)}, got '
                              f"{type(self.dynamic_dims).__name__}; give each dim its name and range")
        return ShapeRange.of(self.dynamic_dims)

    @property
    def seconds_left(self) -> float | None:
        """Of the options' budget for the search, of which import, graph passes and untuned kernels took some."""
        wanted = self.options.seconds
        return None if wanted is None else max(0.0, wanted - (time.monotonic() - self.asked))

    @property
    def open_dims(self) -> dict[str, Dim]:
        """The caller's dims that a front end has not put in place already."""
        return {n: d for n, d in self.dims.items() if n not in self.imported.consumed}

    @property
    def given_constants(self) -> Mapping[str, Any]:
        """The caller's constants."""
        if not isinstance(self.constants, Mapping):
            raise OptionError('constants: wanted a dict such as {"w": array}, got '
                              f"{type(self.constants).__name__}; give each value the name of its argument")
        return self.constants

    @cached_property
    def imported(self) -> ImportedModel:
        """What a front end adds to the model; nothing where none was needed."""
        return self.model if isinstance(self.model, ImportedModel) else ImportedModel("")

    @property
    def all_constants(self) -> dict[str, Any]:
        """The caller's constants and those of the model: of a front end, or of a graph of `tw.ops`."""
        own = {n: v for n, v in self.given_constants.items() if n not in self.imported.consumed}
        return {**getattr(self.model, "constants", {}), **own}

    @cached_property
    def all_donations(self) -> tuple[str, ...]:
        """The arguments that the caller or the front end donates."""
        return tuple(dict.fromkeys((*self.imported.donate, *self.given_donations)))

    @property
    def given_donations(self) -> tuple[str, ...]:
        """The arguments that the caller donates."""
        if isinstance(self.donate, str) or not isinstance(self.donate, Iterable):
            raise OptionError(f"donate: wanted names of arguments, got {self.donate!r}; give them as a tuple, such as ('x',)")
        return tuple(self.donate)

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
        near, asked = host_target(self.host), replace(self.options, threads=None, log=None)
        structures = (self.imported.input_structure, self.imported.output_structure)
        parts = [
            fingerprint(), self._text(), repr(sorted(self.dims.items())), str(self.target), assembler(self.target), near.cpu,
            near.features, repr(self.limits), repr(asked), repr(self.all_donations), repr(self.function),
            repr(sorted(self.imported.dims.items())), repr(structures)]
        constants = self.all_constants
        for name in sorted(constants):
            array = as_constant(name, constants[name])
            parts += [f"{name!a}:{array.dtype}:{array.shape}", hashlib.sha256(raw_bytes(array)).hexdigest()]
        return cache_key(*parts)

    def _text(self) -> str | bytes:
        model = self.model
        return model.text if isinstance(model, ImportedModel) else model_content(model)


def full_target(target: Target | str) -> Target:
    """A target with its architecture: "cuda" alone is the GPU that is here.

    Raises:
        OptionError: a GPU target names no architecture. DeviceError: "cuda", and no GPU is here.
    """
    if not isinstance(target, str | Target):
        raise OptionError(f"target: wanted a text such as 'host' or 'cuda:sm_90a', or a tw.Target, got {target!r} of type "
                          f"{type(target).__name__}; write it as text")
    target = Target.parse(target) if isinstance(target, str) else target
    if target == Target(TargetKind.CUDA):
        target = Target(TargetKind.CUDA, arch_of(0))
    if target.kind is not TargetKind.HOST and not re.fullmatch(r"sm_\d+a?", target.arch):
        kind, got = target.kind.value, repr(target.arch) if target.arch else "none"
        raise OptionError(f"target {target}: wanted an architecture such as sm_90a, got {got}; name the architecture, as in "
                          f"{kind}:sm_90a or {kind}:sm_80")
    return target
