"""The pass `tile`: cuts an outlined region into work units, as loops in the IR that take tiles of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.codegen.kernel_frame import CONFIG, KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.family_registry import config_text, family_of, parse_config


@dataclass(frozen=True)
class Tile(Pass):
    """Option: the configuration as text, which the function keeps as its attribute `tw.config`."""

    name: ClassVar[str] = "tile"
    config: str = "generic"

    def run(self, module: ir.Module) -> None:
        config = parse_config(self.config)
        frame = KernelFrame(module, "", ir.IndexType.get())
        family_of(config.family).emitter().tile(frame, config, Tiler(frame))
        frame.fn.attributes[CONFIG] = ir.StringAttr.get(config_text(config))
