"""What a kernel does before it waits for the launches in front of it (PTX ISA, griddepcontrol)."""

from __future__ import annotations

from tilewright.runtime.emulator.machine.findings import PtxSite
from tilewright.runtime.emulator.ptx.inline import FlatKernel
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction

WAIT = "griddepcontrol.wait"
_TOUCHES = frozenset({"ld", "ldu", "st", "atom", "red", "cp", "multimem", "call"})
_OWN = ("param", "shared", "local")
_LEAVES = frozenset({"bra", "brx", "ret", "exit"})


def before_wait(flat: FlatKernel) -> PtxSite | None:
    """The first access to global memory, or jump, that no thread's wait stands before; None where all wait first."""
    for item in flat.body:
        if not isinstance(item, Instruction):
            continue
        name = item.parts[0]
        if name == "griddepcontrol" and item.has("wait") and item.predicate is None:
            return None
        if name in _LEAVES or (name in _TOUCHES and not any(p.split("::")[0] in _OWN for p in item.parts[1:2])):
            return PtxSite(flat.kernel.name, item.line, item.text)
    return None
