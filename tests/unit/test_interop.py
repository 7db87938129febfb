"""Arrays of other libraries: read and written in place, given back as their own kind, refused with the reason."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.runtime.call.dlpack import from_dlpack
from tilewright.runtime.call.interop import view
from tilewright.runtime.errors import DeviceError, DTypeError


class Exporter:
    """Exports a numpy array as another library would; `version` False gives the capsule of old exporters."""

    def __init__(self, array: np.ndarray[Any, Any], version: bool = True) -> None:
        self.array = array
        self.version = version

    def __dlpack__(self, **options: Any) -> Any:
        if not self.version and options:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Other(Exporter):
    """An array of a library that follows the array API."""

    def __array_namespace__(self) -> type[Other]:
        return Other

    @staticmethod
    def from_dlpack(array: np.ndarray[Any, Any]) -> Other:
        return Other(array)


@pytest.mark.parametrize("version", [True, False])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "?", "u1"])
def test_memory_is_shared(dtype: str, version: bool) -> None:
    array = (np.arange(24) % 7).astype(dtype).reshape(2, 3, 4)
    for given in (array, array.T, array[:, ::2], array[:0], array[0, 0, 0:1].reshape(())):
        found = from_dlpack(Exporter(given, version), "arg0")
        np.testing.assert_array_equal(found, given, strict=True)
        assert given.size == 0 or found.ctypes.data == given.ctypes.data


def test_old_exporters_may_be_written_and_read_only_ones_not() -> None:
    array = np.zeros(3, np.float32)
    from_dlpack(Exporter(array, version=False), "out")[:] = 1
    from_dlpack(Exporter(array), "out")[1] = 2
    assert array.tolist() == [1, 2, 1]
    array.flags.writeable = False
    assert not from_dlpack(Exporter(array), "out").flags.writeable


def test_memory_lives_as_long_as_the_view() -> None:
    found = from_dlpack(Exporter(np.full(100_000, 3, np.float32)), "arg0")
    np.full(100_000, 4, np.float32)
    assert (found == 3).all()


class Capsule:
    """A hand-made DLPack tensor."""

    def __init__(self, code: int, bits: int, data: np.ndarray[Any, Any], device: int = 1, lanes: int = 1) -> None:
        self.device = device
        self.keep = data
        self.shape = (ctypes.c_int64 * data.ndim)(*data.shape)
        tensor = struct.pack("<QiiiBBHQQQ", data.ctypes.data, device, 0, data.ndim, code, bits, lanes,
                             ctypes.addressof(self.shape), 0, 0)  # fmt: skip
        self.tensor = ctypes.create_string_buffer(tensor + bytes(16))
        self.name = b"dltensor"

    def __dlpack__(self) -> Any:
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        return new(ctypes.addressof(self.tensor), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [(4, 16, ml_dtypes.bfloat16), (10, 8, ml_dtypes.float8_e4m3fn), (12, 8, ml_dtypes.float8_e5m2), (6, 8, np.bool_)],
)
def test_types_that_numpy_does_not_have(code: int, bits: int, dtype: Any) -> None:
    array = np.array([[0, 1, 2], [1, 0, 1]]).astype(dtype)
    found = from_dlpack(Capsule(code, bits, array), "arg0")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype(np.float32), array.astype(np.float32))


def test_what_cannot_be_read() -> None:
    array = np.zeros(4, np.float32)
    with pytest.raises(DTypeError, match=r"argument arg0 has elements of DLPack type \(5, 64 bits, 1 lanes\)"):
        from_dlpack(Capsule(5, 64, array), "arg0")
    with pytest.raises(DTypeError, match="2 lanes"):
        from_dlpack(Capsule(2, 32, array, lanes=2), "arg0")
    with pytest.raises(DeviceError, match=r"argument arg0 lives on a device \(DLPack device 2:0\).*copy it to the CPU"):
        from_dlpack(Capsule(2, 32, array, device=2), "arg0")
    with pytest.raises(DTypeError, match="cannot be read through DLPack"):
        from_dlpack(Exporter(np.zeros(2, "M8[s]")), "arg0")
    with pytest.raises(DTypeError, match="argument arg0: wanted an array"):
        view("text", "arg0")


def test_a_used_capsule_is_refused() -> None:
    used = Capsule(2, 32, np.zeros(4, np.float32))
    used.name = b"used_dltensor"
    with pytest.raises(DTypeError, match="not a fresh DLPack capsule"):
        from_dlpack(used, "arg0")


def test_results_are_given_back_as_the_same_kind() -> None:
    array = np.arange(3, dtype=np.float32)
    assert view(array, "arg0")[1] is None
    assert view(np.float32(1), "arg0")[0].shape == ()
    assert view(Exporter(array), "arg0")[1] is None
    found, wrap = view(Other(array), "arg0")
    assert wrap is not None
    result = wrap(found)
    assert isinstance(result, Other) and np.shares_memory(result.array, array)


@pytest.fixture
def torch() -> Iterator[Any]:
    yield pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "bool"])
def test_torch_both_ways_without_a_copy(torch: Any, name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    array, wrap = view(tensor, "arg0")
    assert array.ctypes.data == tensor.data_ptr() and array.shape == (2, 3) and wrap is not None
    back = wrap(array)
    assert back.dtype == tensor.dtype and back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)


def test_torch_that_is_not_plain(torch: Any) -> None:
    weights = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert view(weights, "arg0")[0].ctypes.data == weights.data_ptr()
    with pytest.raises(DTypeError, match=r"argument arg0: wanted a tensor without a gradient.*pass arg0\.detach\(\)"):
        view(weights, "arg0")
    transposed = torch.arange(6.0).reshape(2, 3).T
    np.testing.assert_array_equal(view(transposed, "arg0")[0], transposed.numpy())
    with pytest.raises(DTypeError, match="argument arg0: a torch tensor of"):
        view(torch.ones(3).to_sparse(), "arg0")
    with pytest.raises(DeviceError, match="arg0 is a meta tensor"):
        view(torch.ones(3, device="meta"), "arg0")
