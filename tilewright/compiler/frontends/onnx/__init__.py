"""ONNX models, opset 13 and later, as graphs of `tw.ops`. Imported at first use; only this folder imports onnx."""

from tilewright.compiler.frontends.onnx import operators
from tilewright.compiler.frontends.onnx.importer import OnnxImport, import_onnx

__all__ = ["OnnxImport", "import_onnx", "operators"]
