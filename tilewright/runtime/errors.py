"""Errors of Tilewright: each says what was wanted, what came and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TilewrightError(Exception):
    """Base of all errors that a user's input or environment can cause."""


class IngestError(TilewrightError):
    """The model cannot be compiled: names the operation, its location and the remedy."""


class OptionError(TilewrightError, ValueError):
    """An option, a pass option, a knob or a target that does not parse or is out of range."""


class BuildError(TilewrightError):
    """A kernel or host program could not be built. `log` holds the compiler's own words."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class PassError(BuildError):
    """A pass failed. The message prints the command that reproduces it."""


class ShapeError(TilewrightError, ValueError):
    """An argument's rank, extent or dimension lies outside what was compiled."""


class DTypeError(TilewrightError, TypeError):
    """An argument's element type is not the one that was compiled."""


class ArtifactError(TilewrightError):
    """A saved model is truncated, damaged, of another version, or not for this machine."""


class SignatureError(ArtifactError):
    """A saved model is not signed by a key that is trusted, or not as it is."""


class LogError(TilewrightError):
    """A tuning log that is no file, or that cannot be read or written."""


class DeviceError(TilewrightError):
    """A device, driver or target is missing or refused the work."""


class GraphWarning(UserWarning):
    """Calls go without a CUDA graph, since one takes more memory than `graph_memory`."""


def perhaps(name: object, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the one that it is close to, or nothing."""
    close = get_close_matches(str(name), list(known), 1)
    return f"; perhaps {close[0]!r} is meant" if close else ""
