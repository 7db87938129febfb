"""What code is generated for: a kind of device and its architecture."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.runtime.errors import OptionError, perhaps


class TargetKind(Enum):
    """The kinds of device."""

    HOST = "host"
    CUDA = "cuda"
    EMULATOR = "emulator"


_ALSO = {"cpu": "host", "llvm": "host"}
_LIKELY = {"gpu": "cuda", "nvidia": "cuda", "x86": "host", "x86_64": "host", "x86-64": "host"}


@dataclass(frozen=True)
class Target:
    """`host`, `host:x86-64-v3`, `cuda:sm_90a`, `emulator:sm_90a`; an empty arch means the machine at hand."""

    kind: TargetKind
    arch: str = ""

    @staticmethod
    def parse(text: str) -> Target:
        """A target from its text; "cpu" and "llvm" are other words for "host".

        Raises:
            OptionError: an unknown kind.
        """
        kind, _, arch = text.partition(":")
        try:
            return Target(TargetKind(_ALSO.get(kind, kind)), arch)
        except ValueError:
            wanted = [k.value for k in TargetKind]
            likely = f"cuda:{text}" if text.startswith("sm_") else _LIKELY.get(kind)
            guess = f"; write {likely!r}" if likely else perhaps(kind, [*wanted, *_ALSO])
            raise OptionError(f"target {text!r}: wanted one of {', '.join(wanted)}, with an architecture as in host:x86-64-v3 or "
                              f"cuda:sm_90a where it is not this machine's{guess}") from None

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.arch}" if self.arch else self.kind.value
