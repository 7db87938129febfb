"""What a kernel does before it waits for the launches in front of it (PTX ISA, griddepcontrol)."""

from __future__ import annotations

from tilewright.runtime.emulator.machine.findings import PtxSite
from tilewright.runtime.emulator.ptx.inline import FlatKernel
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction, Label, Symbol

WAIT = "griddepcontrol.wait"
_TOUCHES = frozenset({"ld", "ldu", "st", "atom", "red", "cp", "multimem", "call"})
_OWN = ("param", "shared", "local")
_LEAVES = frozenset({"brx", "ret", "exit"})


def before_wait(flat: FlatKernel) -> PtxSite | None:
    """The first access to global memory, or way around, that the wait of all threads does not stand before; None where all wait
    first. Jumps to places in front of the wait lead to it."""
    jumps: list[tuple[str, PtxSite]] = []
    passed: set[str] = set()
    for item in flat.body:
        if isinstance(item, Label):
            passed.add(item.name)
        if not isinstance(item, Instruction):
            continue
        name, site = item.parts[0], PtxSite(flat.kernel.name, item.line, item.text)
        if name == "griddepcontrol" and item.has("wait") and item.predicate is None:
            return next((at for label, at in jumps if label not in passed), None)
        if name == "bra":
            jumps += [(o.name, site) for o in item.operands if isinstance(o, Symbol)]
        elif name in _LEAVES or (name in _TOUCHES and not any(p.split("::")[0] in _OWN for p in item.parts[1:2])):
            return site
    return None
