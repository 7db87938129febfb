"""ONNX graphs, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.bench.operator_spec import Array

CONTRIB = "com.microsoft"


class Graph:
    """An ONNX graph of nodes named by their result. prefix: of all names, for graphs inside of others."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.initializers: dict[str, Array] = {}

    def node(self, kind: str, inputs: list[str], domain: str = "", outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; the name of its result, or names when it has several."""
        from onnx import helper

        names = [f"{self.prefix}v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def integers(self, *values: int) -> str:
        name = f"{self.prefix}i" + "_".join(map(str, values))
        self.initializers[name] = np.array(values, np.int64)
        return name

    def value(self, array: Array) -> str:
        name = f"{self.prefix}c{len(self.initializers)}"
        self.initializers[name] = array
        return name

    def number(self, value: float) -> str:
        name = f"{self.prefix}f{len(self.initializers)}"
        self.initializers[name] = np.array(value, np.float32)
        return name
