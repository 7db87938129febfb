"""The CPU: its device and thread pool, native calls.

Importing it on another platform or in a subinterpreter says so in one line.
"""

from tilewright.runtime.host.platform_check import check_platform
from tilewright.runtime.interpreter import check_interpreter

check_platform()
check_interpreter()
