"""Float64 NumPy evaluation of linalg on tensors, for `--check` and the tests. Shares no pass with the compiler."""

from tilewright.compiler.reference.comparison import Comparison, compare
from tilewright.compiler.reference.interpreter import evaluate
from tilewright.compiler.reference.ragged import evaluate_ragged

__all__ = ["Comparison", "compare", "evaluate", "evaluate_ragged"]
