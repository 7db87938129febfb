"""What code is generated for: a kind of device and its architecture."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.runtime.errors import OptionError


class TargetKind(Enum):
    """The kinds of device."""

    HOST = "host"
    CUDA = "cuda"
    EMULATOR = "emulator"


@dataclass(frozen=True)
class Target:
    """`host`, `host:x86-64-v3`, `cuda:sm_90a`, `emulator:sm_90a`; an empty arch means the machine at hand."""

    kind: TargetKind
    arch: str = ""

    @staticmethod
    def parse(text: str) -> Target:
        kind, _, arch = text.partition(":")
        try:
            return Target(TargetKind(kind), arch)
        except ValueError:
            wanted = ", ".join(k.value for k in TargetKind)
            raise OptionError(f"target {text!r}: kind {kind!r} is unknown; wanted one of {wanted}, "
                              "with an optional arch as in host:x86-64-v3 or cuda:sm_90a") from None

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.arch}" if self.arch else self.kind.value
