"""Memory of results that become PyTorch's tensors: a block with the DLManagedTensorVersioned in front of the elements.

PyTorch's own allocator of DLPack's exchange makes a tensor, exports it and imports it again. A block that begins with what
describes it is given back by C's `free`, which gets the address of the DLManagedTensorVersioned: its deleter.
Reference: DLPack 1.1.
"""

from __future__ import annotations

import ctypes

from tilewright.runtime.device import LoadedCode

BLOCKS = "tw_torch_blocks"  # a binder's table of the addresses of C's `aligned_alloc` and `free`, zeros where PyTorch allocates
ALIGN = 64  # bytes, as PyTorch's own
# Byte offsets in a DLManagedTensorVersioned, and its size.
DELETER, MANAGED_BYTES = 16, 80


def fill_blocks(code: LoadedCode) -> None:
    """Write a binder's table, where it has one; artifacts from before there was this table have none."""
    try:
        table = code.address(BLOCKS)
    except KeyError:
        return
    library = ctypes.CDLL(None)
    found = [getattr(library, name, None) for name in ("aligned_alloc", "free")]
    if None not in found:
        for number, function in reversed(list(enumerate(found))):  # the one that is looked at last
            address = ctypes.cast(function, ctypes.c_void_p).value or 0
            ctypes.c_uint64.from_address(table + 8 * number).value = address
