"""Calls with tensors of PyTorch: which of them native code takes, and that all others go to Python with the same outcome."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from call_harness import F, T, a, compiled, f32, spied, vector

from tilewright.runtime.call import python_abi
from tilewright.runtime.call.torch_layout import torch_layout
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Check, Constant, DimInfo
from tilewright.runtime.tensor import DType

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not python_abi.is_supported() or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
                                reason="this PyTorch is called through Python only")  # fmt: skip


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    return spied(monkeypatch)


def known(fn: CompiledFunction, forwarded: list[tuple[Any, ...]], *args: Any) -> CompiledFunction:
    """The function after its first call with a tensor, from which on native code knows PyTorch."""
    fn(*args)
    assert len(forwarded) == 1
    forwarded.clear()
    return fn


def add(forwarded: list[tuple[Any, ...]]) -> CompiledFunction:
    return known(vector(), forwarded, torch.ones(2), torch.ones(2))


def test_tensors_never_meet_python(forwarded: list[Any]) -> None:
    fn = add(forwarded)
    x, w, out = torch.arange(5.0), torch.ones(5), torch.empty(5)
    y = fn(x, w)
    assert type(y) is torch.Tensor and y.dtype is torch.float32 and not y.requires_grad and torch.equal(y, x + 1)
    assert fn(x, w, out=out) is out and torch.equal(out, x + 1)
    assert torch.equal(fn(x.numpy(), w), x + 1) and type(fn(x, w.numpy())) is torch.Tensor
    assert fn(x.numpy(), w.numpy(), out=out) is out
    room = a(5)
    assert fn(x, w, out=room) is room and room[4] == 5
    assert torch.equal(fn(torch.arange(9.0)[4:], w), x + 5)  # it begins inside its storage
    assert torch.equal(fn(x, w, threads=1), fn(x, w, threads=None, out=None))
    with torch.no_grad():
        assert torch.equal(fn(torch.nn.Parameter(x), w.clone().requires_grad_()), x + 1)
    with torch.inference_mode():
        assert torch.equal(fn(x, torch.ones(5)), x + 1)
    assert not forwarded
    assert type(fn(x.numpy(), w.numpy())) is np.ndarray and not forwarded


@pytest.mark.parametrize(("name", "kind"), [("float64", DType.F64), ("bfloat16", DType.BF16), ("float8_e4m3fn", DType.F8E4M3),
                                            ("float8_e5m2", DType.F8E5M2), ("bool", DType.I1)])  # fmt: skip
def test_element_types(name: str, kind: DType, forwarded: list[Any]) -> None:

    def copy(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        count = dims[0] * kind.bytes // 4
        f32(tensors[1], count)[:] = f32(tensors[0], count)
        return 0

    x = torch.arange(8).remainder(2).to(getattr(torch, name))
    fn = known(compiled([(kind, ("T",))], [(kind, ("T",))], [T], copy), forwarded, x)
    y = fn(x)
    assert y.dtype is x.dtype and torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    assert not forwarded


def test_ranks_scalars_constants_and_several_results(forwarded: list[Any]) -> None:
    def body(tensors: Any, scalars: Any, dims: Any, _t: int) -> int:
        f32(tensors[3], 1)[0] = f32(tensors[1], 1)[0] + f32(tensors[2], 2)[1]
        f32(tensors[4], 2 * dims[0])[:] = f32(tensors[0], 2 * dims[0]) * scalars[0]
        return 0

    fn = compiled([(F, ("T", "2")), (F, ()), (DType.I64, None)], [(F, ()), (F, ("2", "T"))], [T], body,
                  constants=(Constant("c", F, (2,), "x"),), memory={"x": np.array([4, 6], np.float32).tobytes()})  # fmt: skip
    x, one = torch.arange(6.0).view(3, 2), torch.tensor(1.0)
    known(fn, forwarded, x, one, 3)
    y, z = fn(x, one, 3)
    assert y.shape == () and y == 7 and z.shape == (2, 3) and torch.equal(z, 3 * x.view(2, 3))
    assert fn(x, one, 3, out=(y, z))[1] is z
    assert fn(x[:1].expand(1, 2), one, 2)[1].shape == (2, 1)  # strides of extents of one say nothing
    assert not forwarded



class Own(torch.Tensor):  # type: ignore[misc]
    pass


X, W = torch.arange(4.0), torch.ones(4)
PYTHONS: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "strided": lambda: ((torch.arange(8.0)[::2], W), {}),
    "expanded": lambda: ((torch.ones(1).expand(4), W), {}),
    "negated": lambda: ((torch.imag(torch.ones(4, dtype=torch.complex64).conj()).resolve_conj(), W), {}),
    "unaligned": lambda: ((torch.from_numpy(np.frombuffer(bytes(17), np.uint8)[1:].view(np.float32)), W), {}),
    "element type": lambda: ((X.double(), W), {}),
    "rank": lambda: ((X.view(2, 2), W), {}),
    "above range": lambda: ((torch.ones(17), torch.ones(17)), {}),
    "extent": lambda: ((X, torch.ones(3)), {}),
    "gradient": lambda: ((X.clone().requires_grad_(), W), {}),
    "parameter": lambda: ((torch.nn.Parameter(X), W), {}),
    "sparse": lambda: ((X.to_sparse(), W), {}),
    "meta": lambda: ((X.to("meta"), W), {}),
    "nowhere": lambda: ((torch._efficientzerotensor(4), W), {}),
    "subclass": lambda: ((X.as_subclass(Own), W), {}),
    "no array": lambda: ((X, None), {}),
    "out overlaps": lambda: ((room := torch.ones(7), W)[:0] or (room[:4], W), {"out": room[3:]}),
    "out gradient": lambda: ((X, W), {"out": torch.ones(4, requires_grad=True)}),
    "out shape": lambda: ((X, W), {"out": torch.ones(5)}),
    "out strided": lambda: ((X, W), {"out": torch.ones(8)[::2]}),
    "no threads": lambda: ((X, W), {"threads": 0}),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[CompiledFunction, list[tuple[Any, ...]]]]:
    with pytest.MonkeyPatch.context() as patch:
        seen = spied(patch)
        yield add(seen), seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", PYTHONS)
def test_every_other_call_goes_to_python_as_it_is(kind: str, shared: tuple[CompiledFunction, list[Any]]) -> None:
    fn, forwarded = shared
    forwarded.clear()
    results = []
    for call in (fn, fn._caller.call):
        args, kwargs = PYTHONS[kind]()
        try:
            results.append(call(*args, **kwargs))
        except Exception as error:
            results.append((type(error), str(error)))
        assert forwarded and any(value is args[0] for value in forwarded[0])
        forwarded.clear()
    got, want = results
    assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


def test_a_tensor_that_is_wrapped_by_a_transform_is_not_read(forwarded: list[Any]) -> None:
    fn = add(forwarded)
    with pytest.raises(Exception, match=r"arg0|storage|vmap"):
        torch.func.vmap(lambda x: fn(x, W))(torch.ones(3, 4))


def test_a_failed_check_is_raised_once(forwarded: list[Any]) -> None:
    statuses = [1, 1, 1, 0]
    fn = vector(lambda *_: statuses.pop(), checks=(Check("T", "T is even"),))
    known(fn, forwarded, X, W)
    with pytest.raises(ShapeError, match="T is even"):
        fn(X, W)
    assert not statuses  # by tensors, by the arrays that they are, and by Python, which says so


def test_references_and_memory_are_exact(forwarded: list[Any]) -> None:
    fn = add(forwarded)
    x, w, out, parameter = torch.arange(4.0), torch.ones(4), torch.empty(4), torch.nn.Parameter(torch.ones(4))
    watched, shared = (x, w, out, parameter, fn), (True, torch.Tensor, torch.Tensor.is_neg)

    def calls() -> None:
        fn(x, w, out=out)
        fn(x, w.numpy(), threads=1)
        with torch.no_grad():
            fn(parameter, w)

    calls()
    gc.collect()
    before, others = ([sys.getrefcount(o) for o in objects] for objects in (watched, shared))
    for _ in range(500):
        calls()
    assert [sys.getrefcount(o) for o in watched] == before and not forwarded
    moved = [sys.getrefcount(o) - count for o, count in zip(shared, others, strict=True)]
    assert all(-100 < by < 100 for by in moved), moved  # other threads of the process hold them too
    y = fn(x, w)
    assert sys.getrefcount(y) == 2
    shared, data = y.numpy(), y.data_ptr()
    del y
    gc.collect()
    assert shared.ctypes.data == data and list(shared) == [1, 2, 3, 4]


def test_dims_are_checked_as_numpys(forwarded: list[Any]) -> None:
    fn = compiled([(F, ("B", "T"))], [(F, ("B",))], [DimInfo("B", 1, 4), DimInfo("T", 2, 8, 2)])
    known(fn, forwarded, torch.ones(1, 2))
    for shape in ((4, 8), (1, 2)):
        assert fn(torch.ones(*shape)).shape == shape[:1]
    assert not forwarded
    for shape in ((5, 2), (1, 3), (1, 10), (0, 2)):
        with pytest.raises(ShapeError):
            fn(torch.ones(*shape))


def test_where_tensors_keep_their_sign_and_gradient() -> None:
    """What native code reads out of a tensor is what PyTorch says of it."""
    layout = torch_layout()
    assert layout is not None
    plain, leaf, whole = torch.ones(4), torch.ones(4, requires_grad=True), torch.ones(4, dtype=torch.complex64)
    tensors = [plain, plain[1:], leaf, leaf * 2, leaf.detach(), torch.nn.Parameter(plain), whole.imag, whole.conj().imag,
               whole.conj().imag[1:], torch.ones(3, dtype=torch.int8), torch.empty(0)]
    for tensor in tensors:
        assert python_abi.word(id(tensor), layout.tensor) == tensor._cdata
        assert bool(python_abi.word(tensor._cdata, layout.keys) & layout.negative) == tensor.is_neg()
        assert python_abi.word(tensor._cdata, layout.gradient) or not tensor.requires_grad
    assert not python_abi.word(plain._cdata, layout.gradient)
