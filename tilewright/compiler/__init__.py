"""From a model to a compiled function. Importing it on another platform than Linux x86-64 says so in one line."""

from tilewright.runtime.host.platform_check import check_platform

check_platform()
