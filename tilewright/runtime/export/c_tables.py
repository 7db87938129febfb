"""tables.h: what is particular to a program in its C library (library.c), as C source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tilewright.runtime.call.binder import Binder, Site
from tilewright.runtime.device import KERNELS_PER_CALL
from tilewright.runtime.host.thread_pool import MOST_THREADS
from tilewright.runtime.host.tile_permission import ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import Atom, Expr

FUNCTIONS = ("abi", "dims", "inputs", "outputs", "read_dims", "infer_shapes", "arena_bytes", "run", "error_string", "last_error")
_STRUCTURES = ("donation", "repeat", "site", "tw_argument", "tw_dim")
# LLVM features that C compilers can ask the CPU for, by the same names; the others come with one of these.
_ASKABLE = ("sse4.2", "popcnt", "avx", "avx2", "fma", "bmi", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
            "avx512vnni", "avx512bf16")


def c_tables(program: Program, name: str) -> str:
    """The tables of a program whose functions begin with `name`."""
    binder = Binder(program)
    return "\n".join([
        f'#pragma GCC visibility push(default)\n#include "{name}.h"\n#pragma GCC visibility pop',
        *(f"#define MODEL_{function} {name}_{function}" for function in FUNCTIONS),
        f"#define NAME {c_string(name)}",
        f"#define MOST_THREADS {MOST_THREADS}",
        f"#define STRIDES {sum(program.stride_words.values())}",
        f"#define IS_BOUNDED {int(program.out_of_range == 'error')}",
        _features(program),
        _dims(program),
        _arguments("input", program.inputs),
        _arguments("output", program.outputs),
        _sites(program, binder),
        _array("donation", "donation_table", "DONATIONS", [f"{{{a}, {b}}}" for a, b in program.donated]),
        _extents("input_extents", program.inputs, binder.names),
        _extents("output_extents", program.outputs, binder.names),
        _arena(program, binder.names),
        _constants(program),
        _kernels(program),
        _array("char *const", "checks", "CHECKS", [c_string(check.message) for check in program.checks]),
        "",
    ])  # fmt: skip


def constant_symbols(program: Program) -> dict[str, str]:
    """The symbol of each constant, by digest."""
    return {digest: f"tw_constant_{i}" for i, digest in enumerate(dict.fromkeys(c.digest for c in program.constants))}


def c_string(text: str) -> str:
    """A C string literal."""
    def escaped(byte: int) -> str:
        return chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"

    return '"' + "".join(map(escaped, text.encode())) + '"'


def _array(type_: str, name: str, count: str, items: Sequence[str]) -> str:
    """A constant array, and how many it holds; C knows no empty ones."""
    text = ",\n  ".join(items) or ("{0}" if type_ in _STRUCTURES else "0")
    return f"#define {count} {len(items)}\nstatic const {type_} {name}[] = {{\n  {text}\n}};"


def _features(program: Program) -> str:
    """What this CPU lacks, or what the system refuses of it: tile registers are to be asked for."""
    needed = [f for f in _ASKABLE if f"+{f}" in program.features.split(",")]
    tests = "".join(f"\n  if (!__builtin_cpu_supports({c_string(f)})) return {c_string(f)};" for f in needed)
    if any(kernel.tiles for table in program.tables for kernel in table.kernels):
        tests += f'\n  if (syscall({ARCH_PRCTL}, {REQUEST_PERMISSION}, {TILE_DATA})) return "amx-tile";'
    start = "\n  __builtin_cpu_init();" if needed else ""
    return f"static const char *lacking_feature(void) {{{start}{tests}\n  return 0;\n}}"


def _dims(program: Program) -> str:
    rows = [f"{{{c_string(d.name)}, {d.lo}, {d.hi}, {d.multiple_of}}}" for d in program.dims]
    return _array("tw_dim", "dim_table", "DIMS", rows)


def _arguments(kind: str, arguments: Sequence[Argument]) -> str:
    lines, rows = [], []
    for i, a in enumerate(arguments):
        if a.dims:
            lines.append(f"static const char *const {kind}_{i}[] = {{{', '.join(map(c_string, a.dims))}}};")
        extents = f"{kind}_{i}" if a.dims else "0"
        rows.append(f"{{{c_string(a.name)}, TW_{a.dtype.name}, {a.dtype.bytes}, {len(a.dims or ())}, {extents}}}")
    lines.append(f"#define {kind.upper()}_EXTENTS {sum(len(a.dims or ()) for a in arguments)}")
    return "\n".join([*lines, _array("tw_argument", f"{kind}_table", f"{kind.upper()}S", rows)])


def _sites(program: Program, binder: Binder) -> str:
    starts = [sum(len(a.dims or ()) for a in program.inputs[:i]) for i in range(len(program.inputs))]

    def site(s: Site) -> str:
        return "{-1, 0, 1, 0}" if s.tensor < 0 else f"{{{s.argument}, {starts[s.argument] + s.axis}, {s.factor}, {s.offset}}}"

    read = [(i, s) for i, s in enumerate(binder.sources)] + list(binder.repeats)
    scalar_dims = {s.argument: i for i, s in read if s.tensor < 0}

    def kind(index: int, argument: Argument) -> str:
        return "TENSOR" if argument.dims is not None else "SCALAR_DIM" if index in scalar_dims else "SCALAR"

    kinds = [kind(i, a) for i, a in enumerate(program.inputs)]
    return "\n".join([
        _array("site", "site_table", "SITES", [site(s) for s in binder.sources]),
        _array("repeat", "repeat_table", "REPEATS", [f"{{{i}, {site(s)}}}" for i, s in binder.repeats if s.tensor >= 0]),
        _array("int", "input_kinds", "INPUT_KINDS", kinds or ["TENSOR"]),
        _array("donation", "scalar_dims", "SCALAR_DIMS", [f"{{{argument}, {dim}}}" for argument, dim in scalar_dims.items()]),
    ])  # fmt: skip


def _extents(name: str, arguments: Iterable[Argument], names: Sequence[str]) -> str:
    index = {dim: f"d[{i}]" for i, dim in enumerate(names)}
    sizes = [c_expr(e, index) for a in arguments for e in a.spec().dims]
    lines = "".join(f"\n  e[{i}] = {size};" for i, size in enumerate(sizes))
    return f"static void {name}(const int64_t *d, int64_t *e, int *bad) {{\n  (void)d, (void)e, (void)bad;{lines}\n}}"


def _arena(program: Program, names: Sequence[str]) -> str:
    index = {**{dim: f"d[{i}]" for i, dim in enumerate(names)}, "threads": "threads"}
    size = c_expr(Expr.parse(program.arena), index)
    return ("static int64_t arena_size(const int64_t *d, int64_t threads, int *bad) {\n"
            f"  (void)d, (void)threads, (void)bad;\n  return {size};\n}}")  # fmt: skip


def _constants(program: Program) -> str:
    symbols = constant_symbols(program)
    declared = [f"extern const char {s}[];" for s in symbols.values()]
    return "\n".join([*declared, _array("void *const", "constants", "CONSTANTS", [symbols[c.digest] for c in program.constants])])


def _kernels(program: Program) -> str:
    """The kernels by launch number; they lie in objects of their own, under names that C need not know."""
    numbers: dict[str, int] = {}
    places = []
    for call, of in enumerate(program.calls):
        for index, kernel in enumerate(program.tables[of.table].kernels):
            number = numbers.setdefault(kernel.symbol, len(numbers))
            places.append(f"[{call * KERNELS_PER_CALL + index}] = (const void *)kernel_{number}")
    declared = [f"void kernel_{number}(void) __asm__({c_string(symbol)});" for symbol, number in numbers.items()]
    return "\n".join([*declared, _array("void *const", "kernels", "KERNELS", places)])


def c_expr(expr: Expr, names: Mapping[str, str]) -> str:
    """A size as C over int64_t, by the functions of library.c that set `*bad` where 63 bits do not hold it."""
    total = ""
    for factors, coefficient in expr.terms:
        product = "" if factors and coefficient == 1 else f"INT64_C({coefficient})"
        for atom in factors:
            found = _atom(atom, names)
            product = f"mul({product}, {found}, bad)" if product else found
        total = f"add({total}, {product}, bad)" if total else product
    return total or "0"


def _atom(atom: Atom, names: Mapping[str, str]) -> str:
    if atom.op == "dim":
        return names[atom.name]
    a, b = (c_expr(x, names) for x in atom.args)
    checked = {"floordiv": "floor_div", "mod": "floor_mod"}
    if atom.op in checked:
        return f"{checked[atom.op]}({a}, {b}, bad)"
    return f"{ {'min': 'smaller', 'max': 'larger'}[atom.op]}({a}, {b})"


def c_name(text: str) -> str:
    """A C identifier of a text: of a file's stem, say."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if re.match(r"[A-Za-z_]", name) else f"model_{name}"
