"""ptxas: checks PTX and counts registers, spills and shared memory. For tests and reports; drivers compile PTX themselves."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.errors import BuildError


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
    """Path of ptxas, nvdisasm, ... from NVIDIA's packages, a CUDA toolkit, the search path or an installed Triton, which brings
    its own; None when there is none."""
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility(name)
    return (shutil.which(name) or _of_triton(name)) if found is None else str(found)


def _of_triton(name: str) -> str | None:
    package = importlib.util.find_spec("triton")
    if package is None or package.origin is None:
        return None
    return shutil.which(name, path=str(Path(package.origin).parent / "backends" / "nvidia" / "bin"))


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
    """Path of nvdisasm, else of cuobjdump."""
    return find_tool("nvdisasm") or find_tool("cuobjdump")


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

