"""Float64 NumPy evaluation of linalg on tensors, for `--check` and the tests. Shares no pass with the compiler."""

from compiler.reference.comparison import Comparison, compare
from compiler.reference.interpreter import evaluate

__all__ = ["Comparison", "compare", "evaluate"]
