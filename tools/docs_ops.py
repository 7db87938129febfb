"""Writes docs/ops.md: every public builder of `tilewright.ops` with its signature and what its docstring says.

    python -m tools.docs_ops            writes the page
    python -m tools.docs_ops --check    exit code 1 where the page differs from what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

from tilewright.compiler import ops
from tools import docs_page

PAGE = docs_page.ROOT / "docs" / "ops.md"
HEAD = """# Building models: `tw.ops`

```python
import tilewright as tw
from tilewright import ops

g = ops.Graph()
x, w, b = g.input("x", ["B", "S", 768]), g.input("w", [3072, 768]), g.input("b", [3072])
g.output(ops.softmax(ops.dense(x, w, b, "gelu", transposed=True)))
fn = tw.compile(g, {"B": (1, 8), "S": (1, 512)})
```

**Extents** are integers, names of dims, or expressions of dims: `"2*S + 1"`, `x.dims[1] // 2`. They are exact: two extents are
equal when they are the same expression. `with_dims` and `reshape(..., assume_equal=True)` state an equality that only the caller
knows; it is checked at every call. `Graph(ranges={"S": (1, 512)})` tells what is known of dims already, so that `S - 1` is known
not to be negative.

**Numbers** in arithmetic are ints, floats, or expressions of dims: `x / x.dims[1]`. `g.scalar(x.dims[1], "f32")` makes such a
number a tensor of rank 0, `g.scalar_input("scale")` takes one as an argument, `g.dim("T")` an extent.

**Element types** meet by the graph's promotion (`ops.Promotion`): torch's rules unless said otherwise. 16-bit floats compute in
f32 and are rounded once at the end of an operator; sums and products of i8 and i16 are i32.

**Data never decide a shape.** What would need that (masks as indices, `nonzero`, `unique`) is refused. A gather's index
outside its axis is not reported; it reads the last element.

The page is written by `python -m tools.docs_ops` from the docstrings; a test compares it.
"""


def page() -> str:
    """The text of docs/ops.md."""
    modules: dict[str, list[str]] = {}
    for name in ops.__all__:
        modules.setdefault(getattr(ops, name).__module__, []).append(name)
    parts = [HEAD]
    for module in sorted(modules, key=lambda m: m != ops.Graph.__module__):
        title, rest = _title(inspect.getdoc(sys.modules[module]) or "")
        parts.append(f"\n## {title}\n" + (f"\n{rest}\n" if rest else ""))
        parts += [_entry(name, getattr(ops, name)) for name in sorted(modules[module], key=str.lower)]
    return "".join(parts)


def _title(doc: str) -> tuple[str, str]:
    """The first words of a module's docstring as a heading, and what comes after them."""
    first, _, rest = doc.partition("\n\n")
    title, *more = re.split(r"(?<=[.:]) ", " ".join(first.split()), maxsplit=1)
    return title.rstrip(".:"), "\n\n".join(part for part in (*(m[0].upper() + m[1:] for m in more), rest) if part)


def _entry(name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        methods = [f"- `{m}{_signature(f)}`: {_first(f)}\n" for m, f in vars(thing).items()
                   if inspect.isfunction(f) and not m.startswith("_") and f.__doc__]
        return f"\n### {name}\n{_paragraphs(inspect.getdoc(thing) or '')}\n\n{''.join(methods)}".rstrip() + "\n"
    return f"\n### {name}\n```python\n{name}{_signature(thing)}\n```\n{_paragraphs(inspect.getdoc(thing) or '')}\n"


def _signature(function: Any) -> str:
    """Parameters and result as they are written."""
    signature, parts, marked = inspect.signature(function), [], False
    for p in signature.parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not marked:
            parts.append("*")
        marked = marked or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        default = p.default.value if isinstance(p.default, Enum) else p.default
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        parts.append(f"{stars}{p.name}: {p.annotation}" + ("" if p.default is p.empty else f" = {default!r}"))
    return f"({', '.join(parts)}) -> {signature.return_annotation}"


def _first(function: Any) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def _paragraphs(doc: str) -> str:
    """A docstring as Markdown: what stands under Args and Raises becomes a list."""
    lines = []
    for line in doc.splitlines():
        if re.fullmatch(r"(Args|Raises|Returns):", line):
            lines += ["", f"*{line[:-1]}*", ""]
        elif line.startswith("        "):
            lines.append("  " + line.strip())
        elif line.startswith("    "):
            lines.append("- " + line.strip())
        else:
            lines.append(line)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    return docs_page.run("tools.docs_ops", __doc__, PAGE, page, argv)


if __name__ == "__main__":
    sys.exit(main())
