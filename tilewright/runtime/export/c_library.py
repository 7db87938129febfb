"""Writes a program as a shared library with a C header and an example: for processes without Python.

The code and the constants of the program are linked as they are with a small library in C (library.c), by the C compiler of
this machine. The library exports the functions of its header and nothing else, so that several models fit into one process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tilewright.runtime.call.binder import describe
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.export.c_tables import FUNCTIONS, c_tables, constant_symbols
from tilewright.runtime.export.constant_object import write_constant_object
from tilewright.runtime.host.host_caller import objects
from tilewright.runtime.host.required_features import foreign_machine
from tilewright.runtime.program.artifact import Bundle, raw_bytes
from tilewright.runtime.program.program import Program
from tilewright.runtime.target import Target, TargetKind
from tilewright.version import VERSION

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread", "-Wl,-z,defs", "-Wl,-z,noexecstack",
          "-Wl,-z,nodelete", "-Wl,-z,relro,-z,now")  # nodelete: threads of the pool stay in the code


@dataclass(frozen=True)
class CLibrary:
    """The files of an exported model."""

    library: Path
    header: Path
    example: Path


def write_c_library(bundle: Bundle, folder: Path, name: str, compiler: str | None = None) -> CLibrary:
    """Write lib<name>.so, <name>.h and example.cpp.

    Args:
        folder: is made where there is none; files of these names are replaced.
        name: a C identifier, which all functions begin with.
        compiler: a C compiler for x86-64 Linux; None: the first of cc, gcc and clang that is on PATH.
    Raises:
        OptionError: the model is for a GPU or another architecture, or the name is no C identifier.
        BuildError: no C compiler, or it fails, `log` holding its own words; or the folder may not be written.
    """
    _check(bundle, name)
    command = _compiler(compiler)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(bundle, folder, name, command)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error.strerror}; choose a folder with room that may be written") from error


def _write(bundle: Bundle, folder: Path, name: str, compiler: str) -> CLibrary:
    program = bundle.program
    made = CLibrary(folder / f"lib{name}.so", folder / f"{name}.h", folder / "example.cpp")
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as text:
        work = Path(text)
        (work / f"{name}.h").write_text(_filled("library.h", program, name))
        (work / "tables.h").write_text(c_tables(program, name))
        (work / "library.c").write_text(_template("library.c"))
        (work / "exports").write_text(f"{{ global: {' '.join(f'{name}_{f};' for f in FUNCTIONS)} local: *; }};\n")
        files = [work / "constants.o"]
        write_constant_object(files[0], [(s, bundle.constants[d]) for d, s in constant_symbols(program).items()])
        for digest in (program.runtime_object, *objects(program)):
            if digest != program.binder_object:  # which takes calls of Python
                files.append(work / f"{digest}.o")
                files[-1].write_bytes(raw_bytes(bundle.code[digest]))
        built = work / made.library.name
        _link([compiler, *_FLAGS, f"-Wl,-soname,{built.name}", f"-Wl,--version-script={work / 'exports'}", "-o", str(built),
               str(work / "library.c"), *map(str, files), "-lm"])
        built.replace(made.library)
        (work / f"{name}.h").replace(made.header)
    made.example.write_text(_filled("example.cpp", program, name))
    return made


def _check(bundle: Bundle, name: str) -> None:
    program = bundle.program
    if Target.parse(program.target).kind is not TargetKind.HOST:
        raise OptionError(f"the model is compiled for {program.target}; a C library holds code for a CPU: compile for host")
    foreign = foreign_machine(bytes(bundle.code[program.host_object][:64]))
    if foreign:
        raise OptionError(f"the model is compiled for {foreign}; export it on such a machine, whose linker can join its code")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name == "tw":
        raise OptionError(f"name {name!r}: wanted a C identifier such as bert_layer, which all functions begin with")


def _compiler(given: str | None) -> str:
    wanted = _COMPILERS if given is None else (given,)
    found = next((path for path in map(shutil.which, wanted) if path), None)
    if found is None:
        raise BuildError(f"no C compiler: {', '.join(wanted)} not found on PATH; a C library is linked by one: install gcc or "
                         "clang (Debian: apt-get install gcc), or name another compiler")
    return found


def _link(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise BuildError(f"{command[0]} cannot build the library: {first}", f"{' '.join(command)}\n{done.stderr}")


def _template(file: str) -> str:
    return (resources.files(__package__) / file).read_text()


def _filled(file: str, program: Program, name: str) -> str:
    """A template with the facts of a model: its text may hold @NAME@, @VERSION@, @TARGET@, @SIGNATURE@, @USAGE@."""
    rows = [f" *   input   {describe(a)}" for a in program.inputs] + [f" *   output  {describe(a)}" for a in program.outputs]
    rows += [f" *   dim     {d.name} in {d.dim()}" for d in program.dims]
    facts = {"NAME": name, "VERSION": VERSION, "TARGET": program.target, "SIGNATURE": "\n".join(rows).replace("*/", "* /"),
             "USAGE": " ".join(d.name.upper() for d in program.dims)}  # fmt: skip
    return re.sub(r"@(\w+)@", lambda m: facts[m[1]], _template(file))
