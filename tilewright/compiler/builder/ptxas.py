"""ptxas: machine code from PTX, with its registers, spills and shared memory; without it drivers compile the PTX themselves."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.errors import BuildError
from tilewright.runtime.target import Target, TargetKind


@dataclass(frozen=True)
class EntryReport:
    """One kernel: registers a thread, bytes of spill stores and loads, static shared bytes, bytes of stack."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    stack: int

    @property
    def spills(self) -> int:
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class PtxasReport:
    """The entries by name, and the warnings."""

    entries: dict[str, EntryReport]
    warnings: tuple[str, ...]
    cubin: bytes


def find_tool(name: str) -> str | None:
    """Path of ptxas, nvdisasm, ... from NVIDIA's packages, a CUDA toolkit or the search path; None when there is none."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return shutil.which(name)
    found = find_nvidia_binary_utility(name)
    return shutil.which(name) if found is None else str(found)


def assembler(target: Target) -> str:
    """Which ptxas kernels for a target are assembled by, for keys of caches; empty where none is."""
    tool = find_tool("ptxas") if target.kind is TargetKind.CUDA else None
    if tool is None:
        return ""
    at = Path(tool).stat()
    return f"{tool} {at.st_size} {at.st_mtime_ns}"


def can_assemble(ptx: str, arch: str) -> bool:
    """Is ptxas installed, and does it know the architecture and the version of this text?"""
    directives = re.findall(r"^\s*\.(?:version|target|address_size)\b.*$", ptx, re.MULTILINE)
    return find_tool("ptxas") is not None and _takes("\n".join(directives), arch)


@functools.cache
def _takes(directives: str, arch: str) -> bool:
    try:
        assemble_ptx(directives + "\n", arch)
    except BuildError:
        return False
    return True


def assemble_ptx(ptx: str, arch: str) -> PtxasReport:
    """Assemble for `arch`.

    Raises:
        BuildError: ptxas is not installed, or refuses the text.
    """
    tool = find_tool("ptxas")
    if tool is None:
        raise BuildError("ptxas is not installed: pip install nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        done = subprocess.run([tool, "-O3", "-v", f"-arch={arch}", str(source), "-o", str(made)],
                              capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode:
            raise BuildError(f"ptxas refuses the kernel for {arch}: {log.strip().splitlines()[0]}", f"{log}\n{ptx}")
        cubin = made.read_bytes()
    return PtxasReport(_entries(log), tuple(x for x in log.splitlines() if "warning" in x.lower()), cubin)


def _entries(log: str) -> dict[str, EntryReport]:
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        if name is None:
            continue

        def number(pattern: str, text: str = part) -> int:
            at = re.search(pattern, text)
            return int(at[1]) if at else 0

        found[name[1]] = EntryReport(number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"),
                                     number(r"(\d+) bytes spill loads"), number(r"(\d+) bytes smem"),
                                     number(r"(\d+) bytes stack frame"))
    return found


def find_disassembler() -> str | None:
    """Path of nvdisasm, else of cuobjdump; of an installed Triton, which brings its own, where there is no other."""
    found = find_tool("nvdisasm") or find_tool("cuobjdump")
    package = importlib.util.find_spec("triton") if found is None else None
    if package is None or package.origin is None:
        return found
    return shutil.which("nvdisasm", path=str(Path(package.origin).parent / "backends" / "nvidia" / "bin"))


def disassembly(cubin: bytes) -> str:
    """The SASS of all kernels of an image, as nvdisasm or cuobjdump prints it.

    Raises:
        BuildError: neither is installed.
    """
    tool = find_disassembler()
    if tool is None:
        raise BuildError("neither nvdisasm nor cuobjdump is installed: pip install nvidia-cuda-nvdisasm, or put one of a CUDA "
                         "toolkit on PATH")
    option = "-c" if Path(tool).name.startswith("nvdisasm") else "-sass"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout

