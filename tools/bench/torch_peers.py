"""torch: eager operators, and oneDNN with weights packed ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tools.bench.control.torch_functions import eager as control_kinds
from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError

Call = Callable[[], Any]
Linear = Callable[[Any, Any, Any], Any]
Conv = Callable[[Any, Any, Any, int, int], Any]
Kinds = Mapping[str, Callable[[Mapping[str, Any], Any, Mapping[str, Any]], Call]]


class _Torch:
    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._mode = torch.inference_mode()
        self._mode.__enter__()
        self.torch: Any = torch
        self._operator: Operator | None = None
        self._constants: dict[str, Any] = {}

    def version(self) -> str:
        return f"torch {self.torch.__version__} ({self.torch.backends.cpu.get_cpu_capability()})"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind not in self.kinds() or operator.level:
            raise UnsupportedError(operator.name)
        self._operator = operator
        self._constants = self.packed(operator, {n: self.tensor(a) for n, a in constants.items()})

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        assert self._operator
        given = {n: self.tensor(a) for n, a in arguments.items()}
        call = self.kinds()[self._operator.kind]({**self._constants, **given}, self.tensor(output), self._operator.params)
        return Bound(call, lambda: self.array(call()))

    def kinds(self) -> Kinds:
        raise UnsupportedError

    def packed(self, operator: Operator, constants: dict[str, Any]) -> dict[str, Any]:
        return constants

    def tensor(self, array: Array) -> Any:
        if array.dtype == np.float32:
            return self.torch.from_numpy(array)
        return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor.float().numpy())


class Eager(_Torch):
    """torch's own operators, results into a given tensor where they take one; products go to MKL, bf16 to oneDNN."""

    def packed(self, operator: Operator, constants: dict[str, Any]) -> dict[str, Any]:
        if operator.kind == "bert_layer":  # as torch.nn.Linear keeps them
            return {n: t.t().contiguous() if n.startswith("w_") else t for n, t in constants.items()}
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            constants["w"] = constants["w"].permute(3, 2, 0, 1).to(memory_format=self.torch.channels_last)
        return constants

    def kinds(self) -> Kinds:
        torch, functional = self.torch, self.torch.nn.functional
        mm, bmm, sdpa = torch.mm, torch.bmm, functional.scaled_dot_product_attention
        return {
            "dense": lambda a, o, p: lambda: mm(a["x"], a["w"], out=o),
            "dense_nk": lambda a, o, p: lambda: functional.linear(a["x"], a["w"]),
            "bmm_nt": lambda a, o, p: lambda: bmm(a["q"], a["k"].transpose(1, 2), out=o),
            "bmm_nn": lambda a, o, p: lambda: bmm(a["p"], a["v"], out=o),
            "softmax": lambda a, o, p: lambda: torch.softmax(a["x"], -1),
            "layernorm": lambda a, o, p: lambda: torch.layer_norm(a["x"], a["g"].shape, a["g"], a["b"], 1e-5),
            "rmsnorm": lambda a, o, p: lambda: torch.rms_norm(a["x"], a["g"].shape, a["g"], 1e-6),
            "attention": lambda a, o, p: lambda: sdpa(a["q"], a["k"], a["v"], is_causal=bool(p["causal"])),
            "conv": self._conv,
            "bert_layer": lambda a, o, p: bert_layer(torch, a, functional.linear, self._up, int(p["heads"])),
            "resnet_block": lambda a, o, p: resnet_block(torch, a, functional.conv2d, self._conv_relu),
            **control_kinds(torch),
        }

    def _up(self, x: Any, w: Any, b: Any) -> Any:
        functional = self.torch.nn.functional
        return functional.gelu(functional.linear(x, w, b))

    def _conv_relu(self, x: Any, w: Any, b: Any, stride: int, padding: int) -> Any:
        return self.torch.relu_(self.torch.nn.functional.conv2d(x, w, b, stride, padding))

    def _conv(self, a: Mapping[str, Any], _: Any, params: Mapping[str, Any]) -> Call:
        conv2d = self.torch.nn.functional.conv2d
        x, w, stride, padding = a["x"], a["w"], params["stride"], params["padding"]
        if params["layout"] == "nchw":
            return lambda: conv2d(x, w, None, stride, padding)
        seen = x.permute(0, 3, 1, 2)
        return lambda: conv2d(seen, w, None, stride, padding).permute(0, 2, 3, 1)


class OneDnn(_Torch):
    """oneDNN through torch's operators that take packed weights; a call costs some 10 us of torch's dispatch."""

    def version(self) -> str:
        shown: str = self.torch.__config__.show()
        line = next((s for s in shown.splitlines() if "DNN" in s), "oneDNN")
        return f"{super().version()}, {line.strip(' -')}"

    def packed(self, operator: Operator, constants: dict[str, Any]) -> dict[str, Any]:
        if operator.kind in ("dense", "dense_nk") and "w" not in constants:
            raise UnsupportedError(operator.name)
        if operator.kind == "conv" and operator.params["layout"] == "nhwc":
            constants["w"] = constants["w"].permute(3, 2, 0, 1).contiguous()
        return {n: self._pack(n, t, operator) for n, t in constants.items()}

    def _pack(self, name: str, tensor: Any, operator: Operator) -> Any:
        ops = self.torch.ops.mkldnn
        if not name.startswith("w"):
            return tensor
        if operator.kind == "dense_nk":
            return ops._reorder_linear_weight(tensor, None)
        if operator.kind in ("dense", "bert_layer"):
            return ops._reorder_linear_weight(tensor.t().contiguous(), None)
        padding, stride = operator.params.get("padding", 1), operator.params.get("stride", 1)
        return ops._reorder_convolution_weight(tensor, [padding] * 2, [stride] * 2, [1, 1], 1)

    def kinds(self) -> Kinds:
        linear = self._linear
        return {
            "dense": lambda a, o, p: lambda: linear(a["x"], a["w"], None),
            "dense_nk": lambda a, o, p: lambda: linear(a["x"], a["w"], None),
            "conv": self._conv,
            "bert_layer": lambda a, o, p: bert_layer(self.torch, a, linear, self._up, int(p["heads"])),
            "resnet_block": lambda a, o, p: resnet_block(self.torch, a, self._conv2d, self._conv_relu),
        }

    def _linear(self, x: Any, w: Any, b: Any) -> Any:
        return self.torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")

    def _up(self, x: Any, w: Any, b: Any) -> Any:
        return self.torch.ops.mkldnn._linear_pointwise(x, w, b, "gelu", [], "none")

    def _conv2d(self, x: Any, w: Any, b: Any, stride: int, padding: int, after: str = "none") -> Any:
        pointwise = self.torch.ops.mkldnn._convolution_pointwise
        return pointwise(x, w, b, [padding] * 2, [stride] * 2, [1, 1], 1, after, [], "")

    def _conv_relu(self, x: Any, w: Any, b: Any, stride: int, padding: int) -> Any:
        return self._conv2d(x, w, b, stride, padding, "relu")

    def _conv(self, a: Mapping[str, Any], _: Any, params: Mapping[str, Any]) -> Call:
        x, w, stride, padding = a["x"], a["w"], params["stride"], params["padding"]
        if params["layout"] == "nchw":
            return lambda: self._conv2d(x, w, None, stride, padding)
        seen = x.permute(0, 3, 1, 2)
        return lambda: self._conv2d(seen, w, None, stride, padding).permute(0, 2, 3, 1)


def bert_layer(torch: Any, a: Mapping[str, Any], linear: Linear, up: Linear, heads: int) -> Call:
    """Encoder layer with torch's fused attention and layer norm; `up` is a linear operator and gelu."""
    x = a["x"]
    batch, length, width = x.shape
    norm, sdpa = torch.layer_norm, torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        qkv = linear(x, a["w_qkv"], a["b_qkv"]).view(batch, length, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = sdpa(q, k, v, scale=1 / math.sqrt(width // heads)).transpose(1, 2).reshape(batch, length, width)
        first = norm(x + linear(mixed, a["w_out"], a["b_out"]), (width,), a["g_1"], a["n_1"], 1e-5)
        inner = linear(up(first, a["w_up"], a["b_up"]), a["w_down"], a["b_down"])
        return norm(first + inner, (width,), a["g_2"], a["n_2"], 1e-5)

    return call


def resnet_block(torch: Any, a: Mapping[str, Any], conv2d: Conv, conv_relu: Conv) -> Call:
    """Residual block around a convolution, and one followed by relu."""
    x = a["x"]

    def call() -> Any:
        first = conv_relu(x, a["w_1"], a["b_1"], 1, 1)
        return torch.relu_(conv2d(first, a["w_2"], a["b_2"], 1, 1).add_(x))

    return call
