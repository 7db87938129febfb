"""The data of `dense_resource` constants, which exporters put in a section of its own behind the module's text.

The bindings show such an attribute, but not its data; so the data is read where it stands: name and hexadecimal digits, of which
the first four bytes are the alignment that the data asks for (MLIR's language reference, "File metadata dictionary").
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tilewright.passes.mlir import ir
from tilewright.runtime.errors import IngestError
from tilewright.runtime.tensor import DType
from tilewright.runtime.wording import option

_HEADER = 4  # bytes, little endian: the alignment
_SECTION = "{-#"
_ENTRY = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+))\s*:\s*"0x([0-9A-Fa-f]*)"')
_NAME = re.compile(r'dense_resource<(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+))>')


def resource_name(attribute: ir.Attribute) -> str | None:
    """The name of the data that a constant refers to; None where the constant holds its data itself."""
    if isinstance(attribute, ir.DenseElementsAttr):
        return None
    found = _NAME.match(str(attribute))
    return None if found is None else found[1] or found[2]


def resources_of(text: str) -> dict[str, str]:
    """Name -> hexadecimal digits of all data in the sections of a module's text."""
    found: dict[str, str] = {}
    start = text.find(_SECTION)
    while start >= 0:
        end = text.find("#-}", start)
        for entry in _ENTRY.finditer(text, start, end if end >= 0 else len(text)):
            found[entry[1] or entry[2]] = entry[3]
        start = text.find(_SECTION, start + len(_SECTION)) if end < 0 else text.find(_SECTION, end)
    return found


def resource_array(op: ir.Operation, name: str, resources: Mapping[str, str]) -> np.ndarray:
    """The value of a constant as a contiguous array.

    Raises:
        IngestError: the text holds no data of this name, or data of another size.
    """
    t = ir.RankedTensorType(op.results[0].type)
    where, dtype, shape = f"{op.name} {t} at {op.location}", DType(str(t.element_type)), tuple(t.shape)
    if name not in resources:
        raise IngestError(f"{where}: the data of dense_resource<{name}> is not in the model; it is left out when a module is "
                          "printed with a limit on large constants: print it without one, or pass the weights with "
                          + option("constants"))
    digits = resources[name]
    data = bytes.fromhex(digits) if len(digits) % 2 == 0 else b""
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.numpy.itemsize
    if len(data) != _HEADER + wanted:
        raise IngestError(f"{where}: dense_resource<{name}> holds {max(0, len(data) - _HEADER)} bytes of data; wanted {wanted}")
    return np.frombuffer(data, dtype=dtype.numpy, offset=_HEADER).reshape(shape).copy()
