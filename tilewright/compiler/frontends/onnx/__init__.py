"""ONNX models, opset 13 and later, as graphs of `tw.ops`. Imported at first use; only this folder imports onnx."""
