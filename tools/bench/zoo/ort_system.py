"""Modules by ONNX Runtime: the exported program as TorchScript, and that as an ONNX graph, dynamic extents by name."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError
from tools.bench.zoo.modules import KIND, flat

_OPSET = 18


class OrtModule:
    """One session a module; operands and results bound to memory once a shape."""

    def __init__(self, threads: int) -> None:
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        self._threads = threads
        self._session: Any = None
        self._model = b""

    def version(self) -> str:
        import onnxruntime

        return f"onnxruntime {onnxruntime.__version__}"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind != KIND:
            raise UnsupportedError(operator.name)
        self._model = onnx_model(operator)
        self._start(self._model)

    def save(self, path: str) -> None:
        """What was prepared, as an ONNX model."""
        Path(path).write_bytes(self._model)

    def load(self, operator: Operator, path: str) -> None:
        """A saved ONNX model in place of an export."""
        self._start(path)

    def _start(self, model: bytes | str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        session, binding = self._session, self._session.io_binding()
        given = dict(zip((i.name for i in session.get_inputs()), arguments.values(), strict=True))
        results = session.run(None, given)
        for name, array in given.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for place, array in zip(session.get_outputs(), results, strict=True):
            if array.size and array.ndim:
                binding.bind_output(place.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            else:
                binding.bind_output(place.name, "cpu")
        run, keep = session.run_with_iobinding, (given, results)
        return Bound(lambda: run(binding), lambda: flat([np.asarray(r) for r in session.run(None, keep[0])]))


def onnx_model(operator: Operator) -> bytes:
    """The ONNX model of a module.

    Raises:
        UnsupportedError: PyTorch's exporter has no ONNX for an operator of it; the text says which.
    """
    import torch

    torch.set_num_threads(1)
    from tools.bench.zoo.group_module import module
    from tools.bench.zoo.modules import subject, table

    found = subject(operator)
    if "group" in operator.params:
        group = table()[str(operator.params["group"])]
        weights = dict(found.module.named_buffers())
    else:
        from tools.bench.zoo.cut import Cut, state
        from tools.bench.zoo.exported import exported_module
        from tools.bench.zoo.program_groups import whole

        cut = Cut(_exportable(exported_module(found.module, found.example, found.dynamic_shapes)))
        group, names = whole(cut, operator.name)
        weights = {n: state(cut)[p] for n, p in names.items()}
    inputs, outputs = list(group.inputs), [f"y{i}" for i in range(len(group.outputs))]
    axes = {n: {a: f"{n}_{a}" for a, d in enumerate(v.dims) if d.constant is None} for n, v in group.values().items()}
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.script(module(group, weights, packets=True))
            torch.onnx.export(script, found.example, file, dynamo=False, input_names=inputs, output_names=outputs,
                              dynamic_axes=axes, opset_version=_OPSET)  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
        raise UnsupportedError(f"{operator.name}: {str(error).splitlines()[0]}") from error
    return file.getvalue()


def _exportable(program: Any) -> Any:
    """An exported program without what the exporter has no valid ONNX for, as causal masks of transformers have it: torch.diff,
    and running sums of truth values."""
    import torch

    def running_sum(x: torch.Tensor, dim: int, *, dtype: Any = None) -> Any:
        if x.dtype is not torch.bool:
            return NotImplemented
        return x.to(torch.int64).cumsum(dim, dtype=dtype)

    aten = torch.ops.aten
    difference = torch.export.default_decompositions()[aten.diff.default]
    return program.run_decompositions({aten.diff.default: difference, aten.cumsum.default: running_sum})
