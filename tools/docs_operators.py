"""Writes docs/operators.md: the operators of PyTorch and ONNX that the importers know, by the file that builds them.

    python -m tools.docs_operators            writes the page
    python -m tools.docs_operators --check    exit code 1 where the page differs from what would be written

Needs torch and onnx, whose tables are filled when they are imported.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Sequence

from tilewright.compiler.frontends.registry import lowerings
from tools import docs_page

PAGE = docs_page.ROOT / "docs" / "operators.md"
HEAD = """# Operators

What the importers of PyTorch and ONNX models build by a function of their own. `python -m tools.docs_operators` writes this page;
a test compares it. An operator that is not here is added by one function, in your own program too:

```python
@tw.frontends.register("torch", "mylib.scale_gelu.default")
def scale_gelu(context, x, scale):
    return tw.ops.gelu(x) * scale
```

"""
ABOUT = {
    "torch": """ATen operators as `torch.export` writes them. Every other operator that PyTorch can decompose into these is
decomposed: composites such as `aten.trapezoid`, losses, windows, in-place forms. Random numbers, sizes that depend on data,
sparse tensors, factorisations of matrices and functions of complex tensors beyond powers, roots and logarithms are
refused with the operator and its line.
Fourier transforms (`torch.fft`, `stft`, `istft`) of known sizes with the factors 2, 3, 5 and 7 are fast ones on the host,
else products with matrices, in f64 where the size is not known or has no factors.""",
    "onnx": """Operators of the default domain where no other is named; opsets 13 to 24. Functions, `If`, `Loop` and `Scan` become
parts of the program ([branches and loops](shapes.md#branches-and-loops)). Sequences are refused.""",
}
TITLES = {"torch": "PyTorch", "onnx": "ONNX"}


def page() -> str:
    """The text of docs/operators.md."""
    return HEAD + "\n".join(section(framework) for framework in TITLES)


def section(framework: str) -> str:
    """A framework's operators: a table with a row for each file of functions."""
    package = f"tilewright.compiler.frontends.{framework}.operators"
    importlib.import_module(package)
    groups: dict[str, set[str]] = defaultdict(set)
    for name, function in lowerings(framework).items():
        module = getattr(function, "function", function).__module__  # ONNX wraps its functions
        if module.startswith("tilewright."):  # a user's own operators are not ours
            groups[group_of(package, module)].add(shown(framework, name))
    found = sum(map(len, groups.values()))
    rows = [f"| {g.replace('_', ' ')} | {', '.join(f'`{n}`' for n in sorted(names))} |" for g, names in sorted(groups.items())]
    head = f"## {TITLES[framework]}\n\n{ABOUT[framework]}\n\n{found} operators:\n\n| group | operators |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"


def group_of(package: str, module: str) -> str:
    """The file of an operator's function; what is made by a helper beside these files works element by element."""
    return module.removeprefix(package + ".") if module.startswith(package + ".") else "elementwise"


def shown(framework: str, name: str) -> str:
    """The name without overload: `aten.sum.dim_IntList` is an overload of `sum`."""
    if framework != "torch":
        return name
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])


def main(argv: Sequence[str] | None = None) -> int:
    return docs_page.run("tools.docs_operators", __doc__, PAGE, page, argv)


if __name__ == "__main__":
    sys.exit(main())
