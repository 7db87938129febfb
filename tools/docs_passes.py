"""Writes docs/passes.md: every registered pass with its options, and IR before and after it.

    python -m tools.docs_passes            writes the page
    python -m tools.docs_passes --check    exit code 1 where the page differs from what would be written

The IR is that of the pass's lit test: its first function, with the options of the first RUN line.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence

from tilewright.compiler.builder.build import kernel_passes
from tilewright.passes.base import Pass, PassPipeline
from tilewright.passes.mlir import ir, operations
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pass_registry import PASSES, passes_from_text
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.runtime.target import Target
from tools import docs_page

PAGE = docs_page.ROOT / "docs" / "passes.md"
EXAMPLES = docs_page.ROOT / "tests" / "lit" / "passes"
LINES, COLUMNS = 48, 150  # of IR that are shown
HEAD = """# Passes

Every pass that `tilewright opt --pass` accepts, in the order of `tilewright/passes/pipeline/pass_registry.py`. The IR before and
after is that of the pass's lit test in `tests/lit/passes`. `python -m tools.docs_passes` writes this page; a test compares it.

| pass | pipeline | options |
|---|---|---|
"""
REQUESTED = {
    "expand-layouts": "at reading, where a model packs or unpacks",
    "insert-to-select": "at reading, where a model inserts elements",
    "widen-sub-byte": "at reading, where a model holds 2 to 7 bit integers",
    "define-arithmetic": "at reading, where operands may be such that MLIR leaves the result undefined",
    "constants-along-k": "graph, on sm_90a",
    "hoist-from-loops": "between recover and graph",
    "integer-products": "graph, on a host that multiplies bytes",
    "loops-to-scans": "between recover and graph, on the host",
    "look-up-in-attention": "graph, on the host",
    "look-up-in-product": "graph, on the host",
    "gathered-channels": "graph, on the host",
    "lower-precision": "graph, with `precision=`",
    "quantise-activations": "graph, with `activations=\"int8\"`",
    "pack-constants": "host, after constants are folded",
    "skip-zero-products": "between recover and graph, on the host",
    "split-reductions": "graph, on the host",
    "taps-with-channels": "graph, on the host",
    "update-in-place": "graph, on the host",
}
_RUN = re.compile(r"RUN: tilewright opt %s --pass (['\"])(.*?)\1 \|")


def page() -> str:
    """The text of docs/passes.md."""
    on_host, on_gpu = (kernel_passes("generic", "kernel", "", Target.parse(t)) for t in ("host:x86-64-v3", "cuda:sm_90a"))
    pipelines = {"recover": names(recover_passes()), "graph": names(graph_passes()), "kernel": names([*on_host, *on_gpu])}
    rows, sections = [], []
    for kind in PASSES:
        within = ", ".join(n for n, members in pipelines.items() if kind.name in members) or REQUESTED[kind.name]
        options = [f"`{f.name.replace('_', '-')}={shown_default(f)}`" for f in dataclasses.fields(kind)]
        rows.append(f"| [{kind.name}](#{kind.name}) | {within} | {', '.join(options) or 'none'} |\n")
        sections.append(section(kind))
    return HEAD + "".join(rows) + "\n" + "\n".join(sections)


def names(passes: Sequence[Pass]) -> set[str]:
    return {p.name for p in passes}


def shown_default(field: dataclasses.Field[object]) -> str:
    default = "..." if field.default is dataclasses.MISSING else field.default
    return str(default).lower() if isinstance(default, bool) else str(default)


def section(kind: type[Pass]) -> str:
    """Heading, what the pass is for, and IR before and after it."""
    spec, before, after = example(kind.name)
    text = inspect.cleandoc(kind.__doc__ or "")
    return (f"## {kind.name}\n\n{text}\n\nBefore:\n\n```mlir\n{cut(before)}\n```\n\n"
            f"After `{spec}`:\n\n```mlir\n{cut(after)}\n```\n")


def example(name: str) -> tuple[str, str, str]:
    """The spec of a pass, and the first function of its lit test before and after; passes that the RUN line has before it ran."""
    text = (EXAMPLES / f"{name}.mlir").read_text()
    found = _RUN.search(text)
    if found is None:
        raise ValueError(f"{name}.mlir has no RUN line of the form `tilewright opt %s --pass \"...\" | filecheck %s`")
    *first, last = passes_from_text(found[2])
    with ir.Context():
        module = ir.Module.parse(text)
        for op in functions_but_one(module):
            op.erase()
        PassPipeline(first).run(module)
        before = str(module)
        PassPipeline([last]).run(module)
        return last.spec(), before, str(module)


def functions_but_one(module: ir.Module) -> list[ir.Operation]:
    """All functions with a body but the first: a lit test holds several cases."""
    found = [op for op in operations(module.body) if op.name.endswith(".func") and len(op.regions) and len(op.regions[0].blocks)]
    called = set(re.findall(r"call @([\w.$-]+)", str(found[0])))
    return [op for op in found[1:] if ir.StringAttr(op.attributes["sym_name"]).value not in called]


def cut(text: str) -> str:
    """The first lines, none of them long, without the braces of the module."""
    lines = [line[2:] if line.startswith("  ") else line for line in text.strip().splitlines() if line not in ("module {", "}")]
    lines = [line if len(line) <= COLUMNS else line[: COLUMNS - 4].rstrip() + " ..." for line in lines]
    return "\n".join(lines if len(lines) <= LINES else [*lines[:LINES], f"// ... {len(lines) - LINES} more lines"])


def main(argv: Sequence[str] | None = None) -> int:
    return docs_page.run("tools.docs_passes", __doc__, PAGE, page, argv)


if __name__ == "__main__":
    sys.exit(main())
