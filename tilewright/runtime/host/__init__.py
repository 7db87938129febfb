"""The CPU: its device and thread pool, native calls. Importing it on another platform says so in one line."""

from tilewright.runtime.host.platform_check import check_platform

check_platform()
