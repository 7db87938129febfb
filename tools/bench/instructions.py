"""The instructions that a call of a compiled model executes, counted one by one, and the time that they take at least.

The call runs in a child process in single steps, so that every address has its count, whatever loops and branches there are; the
code in memory is disassembled by objdump. The bound is the most loaded of the core's resources: instructions issued, and those
that only some ports execute; latencies, caches and branches cost nothing. x86-64 on Linux.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llvmlite import binding

_TRACE_ME, _PEEK_USER, _CONTINUE, _STEP = 0, 3, 7, 9
_RIP = 128  # offset in the user area
_LONGEST = 16  # bytes from the start of an instruction that it does not reach beyond
_TURNS, _UNROLLED = 1 << 17, 64  # of the loop that tells the clock
_MULTIPLIED = "\n".join(f"  %m{i + 1} = mul i64 %m{i}, %m{i}" for i in range(_UNROLLED))
_CHAIN = f"""define i64 @chain(i64 %x) {{
entry:
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%next, %turn]
  %m0 = phi i64 [%x, %entry], [%m{_UNROLLED}, %turn]
{_MULTIPLIED}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {_TURNS}
  br i1 %more, label %turn, label %done
done:
  ret i64 %m{_UNROLLED}
}}"""
_READ = """define i64 @read(ptr %at, i64 %turns) {
entry:
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%next, %turn]
  %a = phi <8 x i64> [zeroinitializer, %entry], [%a1, %turn]
  %b = phi <8 x i64> [zeroinitializer, %entry], [%b1, %turn]
  %p = getelementptr [4 x <8 x i64>], ptr %at, i64 %i
  %q = getelementptr <8 x i64>, ptr %p, i64 1
  %r = getelementptr <8 x i64>, ptr %p, i64 2
  %s = getelementptr <8 x i64>, ptr %p, i64 3
  %v = load <8 x i64>, ptr %p, align 64
  %w = load <8 x i64>, ptr %q, align 64
  %x = load <8 x i64>, ptr %r, align 64
  %y = load <8 x i64>, ptr %s, align 64
  %vw = or <8 x i64> %v, %w
  %xy = or <8 x i64> %x, %y
  %a1 = or <8 x i64> %a, %vw
  %b1 = or <8 x i64> %b, %xy
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %turns
  br i1 %more, label %turn, label %done
done:
  %all = or <8 x i64> %a1, %b1
  %one = extractelement <8 x i64> %all, i64 0
  ret i64 %one
}"""
_READ_TURN, _LINE = 256, 64  # bytes
_IMUL = 3  # cycles until the product is there, on every x86 core since Sandy Bridge and Zen

# Port limits of Intel's server cores (Ice Lake to Emerald Rapids), in instructions a cycle: Intel's Optimization Reference
# Manual, uops.info. An instruction with a memory operand counts as a load, too.
ISSUED = 6
LOADED, LOADED_512, STORED, STORED_512 = 3, 2, 2, 1
VECTOR, VECTOR_512 = 3, 2  # ports 0, 1, 5; port 1 is closed to vectors while there are any of 512 bits
_SHUFFLED = re.compile(r"vperm|vpshuf|vshuf|vpunpck|vunpck|valign|vpalign|vpack|vinsert|vextract|vpmov[sz]x|vpmov[dwq][bwd]\b|"
                       r"vp?expand|vp?compress|vp?broadcast|vpsadbw|vdbpsadbw")
_SHIFTED = re.compile(r"vps(ll|rl|ra)|vpro[lr]|vpshld|vpshrd|vpmov[bwdq]2m")  # and what port 0 alone does besides
_COMPARED = re.compile(r"vptest|vpcmp|vcmp")  # to a mask, where there are registers of 512 bits
# Bytes or words out of two registers are three instructions to the core, two of them shuffles (measured on Emerald Rapids: 2.02
# to 2.06 cycles each, 2.55 with two additions beside it)
_OF_TWO = re.compile(r"vperm[it]2[bw]")
_MOVED = re.compile(r"v?mov|vlddqu|vp?broadcast")
_FREE = re.compile(r"nop|vzeroupper|endbr|prefetch|j|ret|call|push|pop|lea|data16|cs ")


@dataclass(frozen=True)
class Count:
    """instructions: executed in code of the model. cycles: of each resource that it is the limit of."""

    instructions: int
    cycles: dict[str, float]
    mnemonics: Counter[str]

    @property
    def bound(self) -> tuple[str, float]:
        """The most loaded resource, and its cycles."""
        return max(self.cycles.items(), key=lambda item: item[1])


def counted(call: Callable[[], object]) -> Count:
    """Of one call, after one that is not counted. RuntimeError where objdump is not installed or the child dies."""
    if shutil.which("objdump") is None:
        raise RuntimeError("objdump is not installed (binutils)")
    steps, code = _stepped(call)
    return cost_of({text: steps[address] for address, text in _disassembled(steps, code)})


def _stepped(call: Callable[[], object]) -> tuple[Counter[int], dict[range, bytes]]:
    """Steps at each address of code that lies in no file, and the bytes there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype, libc.ptrace.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    child = os.fork()
    if not child:
        libc.ptrace(_TRACE_ME, 0, None, None)
        call()
        os.kill(os.getpid(), signal.SIGSTOP)
        call()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    _wait(child, signal.SIGSTOP)
    areas = _anonymous_code(child)
    low, high = min(a.start for a in areas), max(a.stop for a in areas)
    steps, peek, step, wait = Counter[int](), libc.ptrace, libc.ptrace, os.waitpid
    rip, trap = ctypes.c_void_p(_RIP), signal.SIGTRAP
    while True:
        step(_STEP, child, None, None)
        _, status = wait(child, 0)
        if not os.WIFSTOPPED(status):
            raise RuntimeError(f"the child ended with status {status}")
        if os.WSTOPSIG(status) != trap:
            break
        at = peek(_PEEK_USER, child, rip, None)
        if low <= at < high:
            steps[at] += 1
    code = {}
    with Path(f"/proc/{child}/mem").open("rb") as memory:
        for area in areas:
            own = [a for a in steps if a in area]
            if own:
                memory.seek(min(own))
                code[range(min(own), max(own) + _LONGEST)] = memory.read(max(own) + _LONGEST - min(own))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Counter({a: n for a, n in steps.items() if any(a in area for area in areas)}), code


def _wait(child: int, wanted: signal.Signals) -> None:
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != wanted:
        raise RuntimeError(f"the child stopped with status {status}; wanted {wanted.name}")


def _anonymous_code(process: int) -> list[range]:
    """Executable mappings without a file on disk."""
    found = []
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        where, rights, _, _, _, *name = line.split(maxsplit=5)
        if "x" in rights and (not name or name[0].startswith("/memfd")):
            start, _, stop = where.partition("-")
            found.append(range(int(start, 16), int(stop, 16)))
    return found


def _disassembled(steps: Counter[int], code: dict[range, bytes]) -> list[tuple[int, str]]:
    """Address and text of each instruction that was executed. What lies between functions may read as part of one: then it is
    read anew from the first address that was executed and starts no instruction."""
    found = dict[int, str]()
    for area, data in code.items():
        own = sorted(a for a in steps if a in area)
        while left := [a for a in own if a not in found]:
            listed = _listed(left[0], data[left[0] - area.start :])
            found = {a: text for a, text in listed.items() if a in steps} | found
            if left[0] not in found:
                raise RuntimeError(f"objdump shows no instruction at {left[0]:#x}, which was executed")
    return list(found.items())


def _listed(start: int, data: bytes) -> dict[int, str]:
    """The instructions that begin at an address, as objdump writes them, behind their own address."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        text = subprocess.run(["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn",
                               f"--adjust-vma={start:#x}", file.name], check=True, capture_output=True, text=True).stdout
    lines = (re.match(r"\s*([0-9a-f]+):\s+(.*)", line) for line in text.splitlines())
    return {int(m[1], 16): f"{m[1]} {m[2]}" for m in lines if m}


def cost_of(executed: dict[str, int]) -> Count:
    """Of lines of an address, a mnemonic and operands in AT&T order."""
    used, mnemonics = Counter[str](), Counter[str]()
    wide = any("%zmm" in line for line in executed)
    for line, times in executed.items():
        mnemonic, _, operands = line.partition(" ")[2].partition(" ")
        operands = operands.strip()
        mnemonics[mnemonic] += times
        for resource in _resources(mnemonic, operands, wide):
            used[resource] += times
    rates = {"issue": ISSUED, "loads": LOADED, "loads of 512 bits": LOADED_512, "stores": STORED,
             "stores of 512 bits": STORED_512, "vectors": VECTOR_512 if wide else VECTOR,
             "shuffles": 1 if wide else 2, "shifts": 1 if wide else 2}
    return Count(sum(executed.values()), {name: used[name] / rate for name, rate in rates.items() if used[name]}, mnemonics)


def _resources(mnemonic: str, operands: str, wide: bool) -> list[str]:
    """What an instruction takes one of."""
    found = ["issue"]
    memory = "(" in operands and not mnemonic.startswith(("lea", "nop", "prefetch"))
    stores = memory and operands.rstrip("{k1234567}%").endswith(")") and mnemonic.startswith(("mov", "vmov", "vpmov", "vextract"))
    size = " of 512 bits" if "%zmm" in operands and "{1to" not in operands and "broadcast" not in mnemonic else ""
    if memory:
        found += ["stores"] if stores else ["loads"]
        found += [found[-1] + size] if size else []
    vector = mnemonic.startswith(("v", "k")) and not _FREE.match(mnemonic)
    if not vector or (_MOVED.match(mnemonic) and (memory or "broadcast" not in mnemonic)):
        return found
    found.append("vectors")
    if _OF_TWO.match(mnemonic):
        return [*found, "vectors", "vectors", "shuffles", "shuffles", "issue", "issue"]
    if _SHUFFLED.match(mnemonic) or (wide and _COMPARED.match(mnemonic)):
        found.append("shuffles")
    elif _SHIFTED.match(mnemonic) and "%zmm" in operands:
        found.append("shifts")
    return found


def clock() -> float:
    """Cycles a second of a chain of multiplications, the most of several."""
    engine = _compiled(_CHAIN)
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("chain"))
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        chain(3)
        best = min(best, time.thread_time() - start)
    return _TURNS * _UNROLLED * _IMUL / best


def reader(size: int) -> Callable[[], object]:
    """A call that reads so many bytes, which it keeps, by vectors and does nothing else with them."""
    engine, turns = _compiled(_READ), max(1, size // _READ_TURN)
    read = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("read"))
    room = np.ones(turns * _READ_TURN + _LINE, np.uint8)
    at = -(-room.ctypes.data // _LINE) * _LINE

    def call(kept: object = (engine, room)) -> object:
        return read(at, turns)

    return call


def _compiled(text: str) -> binding.ExecutionEngine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten())
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
    engine.finalize_object()
    return engine
