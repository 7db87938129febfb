"""ForeignCaller: a host program for another architecture or CPU, which is explained and saved here and not called."""

from __future__ import annotations

from typing import Any, NoReturn

from tilewright.runtime.call.caller import Caller
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.program.program import Program


class ForeignCaller(Caller):
    """None of the program's code is loaded: the pool's would run when the process forks.

    Args:
        wanted, found: what the program's code is for, and what this machine is, as words.
    """

    def __init__(self, program: Program, wanted: str, found: str) -> None:
        super().__init__(program)
        self._wanted, self._found = wanted, found

    def __call__(self, *args: Any, out: Any = None, threads: int | None = None, stream: Any = None) -> NoReturn:
        raise DeviceError(f"this model was compiled for {self._wanted} and {self._found}: save it, load it there, or compile it "
                          "for this machine")

    def thread_count(self, threads: int | None = None) -> int:
        return affinity() if threads is None else self.asked_threads(threads) or 1
