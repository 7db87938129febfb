"""Calls, arrays and streams, on a fake driver. Each function is a test; see worker.py."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from cuda_fake.fake_state import FakeState
from cuda_fake.fake_torch import FakeTorch, Parameter, Wrapped
from cuda_fake.models import CHAIN, DONATED, chain, inputs, product

import tilewright as tw
from tilewright.runtime.errors import DeviceError, DTypeError, ShapeError


def torch_of(fake: FakeState) -> FakeTorch:
    sys.modules["torch"] = made = FakeTorch(fake)
    return made


def finish(fake: FakeState, handle: int) -> None:
    from tilewright.runtime.cuda.arena import gpu

    gpu(0).stream(handle).sync()


def host_arrays_are_copied_in_and_results_out(fake: FakeState) -> None:
    fn = chain()
    for rows in (0, 1, 5, 64):
        given = inputs(rows)
        np.testing.assert_array_equal(fn(*given), product(*given))
    given, out = inputs(9), np.empty((9, 16), np.float32)
    assert fn(*given, out=out) is out
    np.testing.assert_array_equal(out, product(*given))
    assert fake.launches
    assert not fake.errors


def a_call_gives_what_the_emulator_gives(fake: FakeState) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(a.shape).astype(np.float32) for a in inputs(33)]
    np.testing.assert_array_equal(chain()(*given), chain("emulator:sm_90a")(*given))


def tensors_are_read_in_place_and_nothing_waits(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    from tilewright.runtime.cuda.arena import gpu

    stream = gpu(0).device.core.create_stream()
    torch.current = int(stream.handle)
    given = inputs(7)
    tensors = [torch.tensor(a) for a in given]
    fn(*tensors)  # loads the kernels, takes the arena
    stream.sync()
    fake.log.clear()
    fake.launches.clear()
    result = fn(*tensors)
    assert [n for n, _ in fake.log] == ["cuCtxGetCurrent", "cuStreamGetCaptureInfo", "cuStreamGetId", *["cuLaunchKernelEx"] * 2]
    assert [launch[-1] for launch in fake.launches] == [torch.current] * 2
    assert (result.data_ptr(), result.shape, torch.current) == torch.made[-1]
    stream.sync()
    np.testing.assert_array_equal(result.get(), product(*given))


def learned_calls_stay_checked(fake: FakeState) -> None:
    """A call that is unlike the one before takes the long way, with its messages."""
    fn, torch = chain(), torch_of(fake)
    given = inputs(7)
    x, w, v = (torch.tensor(a) for a in given)
    fn(x, w, v)
    shifted, half = torch.tensor(given[0], offset=4), torch.tensor(given[0].astype(np.float16))
    with pytest.raises(DTypeError, match="arg0"):
        fn(half, w, v)
    with pytest.raises(ShapeError, match="arg1"):
        fn(x, v, v)
    with pytest.raises(DTypeError, match="wanted 3 arguments"):
        fn(x, w)
    results = [fn(shifted, w, v), fn(given[0], w, v), fn(x, w, v), fn(torch.tensor(inputs(8)[0]), w, v)]
    from tilewright.runtime.cuda.arena import gpu

    stream = gpu(0).device.core.create_stream()
    torch.current = int(stream.handle)
    results.append(fn(x, w, v))
    finish(fake, 0)
    finish(fake, torch.current)
    for number in (0, 1, 2, 4):
        np.testing.assert_array_equal(results[number].get(), product(*given))
    np.testing.assert_array_equal(results[3].get(), product(inputs(8)[0], *given[1:]))


def parameters_of_modules_are_tensors_to_a_learned_call(fake: FakeState) -> None:
    """Subclasses that see operators first go the long way, which is closed here."""
    from tilewright.runtime.cuda.loaded import LoadedProgram

    fn, torch = chain(), torch_of(fake)
    given = inputs(7)
    x, w, v = torch.tensor(given[0]), torch.tensor(given[1], kind=Parameter), torch.tensor(given[2], kind=Parameter)
    wrapped = torch.tensor(given[1], kind=Wrapped)
    fn(x, w, v)
    fn(x, wrapped, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(LoadedProgram, "call")
        found = fn(x, w, v)
        with pytest.raises(AttributeError):
            fn(x, wrapped, v)
    finish(fake, 0)
    np.testing.assert_array_equal(found.get(), product(*given))


def results_of_the_callers_are_taken_by_a_learned_call(fake: FakeState) -> None:
    """Those that do not fit, or lie over an argument, go the long way, which is closed here."""
    from tilewright.runtime.cuda.loaded import LoadedProgram

    fn, torch = chain(), torch_of(fake)
    given = inputs(7)
    x, w, v = (torch.tensor(a) for a in given)
    out, late = torch.empty((7, 16), torch.float32, x.device), torch.tensor(np.zeros((7, 16), np.float32), offset=4)
    fn(x, w, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(LoadedProgram, "call")
        assert fn(x, w, v, out=out) is out and fn(x, w, v, out=(out,)) is out
        with pytest.raises(ShapeError, match="out overlaps the input arg0"):
            fn(x, w, v, out=type(x)(torch, x.data_ptr(), (7, 16), "float32", 0))
        with pytest.raises(ShapeError, match="wanted shape"):
            fn(x, w, v, out=torch.empty((6, 16), torch.float32, x.device))
        with pytest.raises(DTypeError, match="wanted f32"):
            fn(x, w, v, out=torch.empty((7, 16), torch.float16, x.device))
        with pytest.raises(ShapeError, match="16 bytes"):
            fn(x, w, v, out=late)
    finish(fake, 0)
    np.testing.assert_array_equal(out.get(), product(*given))


def the_arguments_are_checked(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    x, w, v = (torch.tensor(a) for a in inputs(4))
    with pytest.raises(ShapeError, match="arg1, axis 0"):
        fn(x, v, v)
    with pytest.raises(DTypeError, match="wanted f32"):
        fn(torch.tensor(np.zeros((4, 40), np.float64)), w, v)
    with pytest.raises(ShapeError, match="out overlaps the input arg0"):
        fn(x, w, v, out=type(x)(torch, x.data_ptr(), (4, 16), "float32", 0))
    with pytest.raises(DeviceError, match="out is no CUDA array"):
        fn(x, w, v, out=np.empty((4, 16), np.float32))
    with pytest.raises(DTypeError, match="__cuda_stream__"):
        fn(x, w, v, stream="default")
    out = torch.empty((4, 16), torch.float32, x.device)
    assert fn(x, w, v, out=out) is out
    finish(fake, 0)
    np.testing.assert_array_equal(out.get(), product(*inputs(4)))


def tensors_that_are_not_dense_or_aligned_are_copied(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    given = inputs(4)
    x, w, v = (torch.tensor(a) for a in given)
    loose = torch.tensor(given[0])
    loose._dense = False
    shifted = torch.tensor(given[1], offset=4)
    result = fn(loose, shifted, v)
    finish(fake, 0)
    np.testing.assert_array_equal(result.get(), product(*given))
    late = torch.tensor(np.zeros((4, 16), np.float32), offset=4)
    with pytest.raises(ShapeError, match="16 bytes"):
        fn(x, w, v, out=late)


def host_and_device_arguments_mix(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    given = inputs(6)
    result = fn(torch.tensor(given[0]), given[1], given[2])
    finish(fake, 0)
    np.testing.assert_array_equal(result.get(), product(*given))
    assert not fake.errors


def a_stream_of_the_callers_choice(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    from tilewright.runtime.cuda.arena import gpu

    stream = gpu(0).device.core.create_stream()
    given = inputs(6)
    tensors = [torch.tensor(a) for a in given]
    fake.launches.clear()
    for chosen in (stream, int(stream.handle)):
        result = fn(*tensors, stream=chosen)
        assert {launch[-1] for launch in fake.launches} == {int(stream.handle)}
        assert torch.made[-1][2] == int(stream.handle)
        assert tensors[0].used_on[-1] == int(stream.handle)
    assert torch.current == 0
    stream.sync()
    np.testing.assert_array_equal(result.get(), product(*given))


def streams_do_not_share_an_arena(fake: FakeState) -> None:
    """The queues of two streams run one after the other in either order; temporaries in common would be overwritten."""
    fn, torch = chain(), torch_of(fake)
    from tilewright.runtime.cuda.arena import gpu

    streams = [gpu(0).device.core.create_stream() for _ in range(2)]
    for order in (streams, streams[::-1]):
        given = [inputs(8, seed) for seed in range(2)]
        results = [fn(*(torch.tensor(a) for a in g), stream=s) for g, s in zip(given, streams, strict=True)]
        for s in order:
            s.sync()
        for g, r in zip(given, results, strict=True):
            np.testing.assert_array_equal(r.get(), product(*g))


def two_models_share_the_arena_of_a_stream(fake: FakeState) -> None:
    torch = torch_of(fake)
    from tilewright.runtime.cuda.arena import gpu

    other = tw.compile(CHAIN.replace("24", "32"), {"M": (0, 4096)}, target="cuda:sm_90a")
    stream = gpu(0).device.core.create_stream()
    pairs = []
    for rows in (3, 100, 5):
        given = inputs(rows)
        wide = [given[0], np.ones((40, 32), np.float32), np.ones((32, 16), np.float32)]
        pairs.append((chain()(*(torch.tensor(a) for a in given), stream=stream), product(*given)))
        pairs.append((other(*(torch.tensor(a) for a in wide), stream=stream), product(*wide)))
    fake.log.clear()
    stream.sync()
    for got, want in pairs:
        np.testing.assert_array_equal(got.get(), want)
    assert not fake.errors


def many_threads_call_at_once(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    from tilewright.runtime.cuda.arena import gpu

    shared = gpu(0).device.core.create_stream()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        own = shared if seed % 2 else gpu(0).device.core.create_stream()
        for turn in range(3):
            given = inputs(4 + 3 * seed, seed + turn)
            result = fn(*(torch.tensor(a) for a in given), stream=own)
            own.sync()
            if not np.array_equal(result.get(), product(*given)):
                wrong.append((seed, turn))

    def entered(seed: int) -> None:
        with gpu(0).current():
            work(seed)

    threads = [threading.Thread(target=entered, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert not fake.errors


def a_thread_without_a_context_may_call(fake: FakeState) -> None:
    fn, found = chain(), []
    given = inputs(5)
    thread = threading.Thread(target=lambda: found.append((fn(*given), list(fake.contexts()))))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0][0], product(*given))
    assert found[0][1] == []  # the thread is left as it was


def constants_are_placed_once(fake: FakeState) -> None:
    given = inputs(5)
    fn = tw.compile(CHAIN, {"M": (0, 64)}, target="cuda:sm_90a", constants={"arg1": given[1], "arg2": given[2]})
    np.testing.assert_array_equal(fn(given[0]), product(*given))
    fake.log.clear()
    np.testing.assert_array_equal(fn(given[0]), product(*given))
    assert fake.calls("cuMemcpyHtoDAsync") == 1
    before = len(fake.live)
    del fn
    assert len(fake.live) <= before


def a_donated_tensor_takes_the_result(fake: FakeState) -> None:
    torch = torch_of(fake)
    fn = tw.compile(DONATED, {"M": (1, 4096)}, target="cuda:sm_90a", donate=("arg0",))
    x, y = torch.tensor(np.arange(100, dtype=np.float32)), torch.tensor(np.ones(100, np.float32))
    assert fn(x, y) is x
    finish(fake, 0)
    np.testing.assert_array_equal(x.get(), np.arange(100) + 1)
    np.testing.assert_array_equal(fn(np.zeros(8, np.float32), np.ones(8, np.float32)), np.ones(8))


class Exported:
    """An array of a library that speaks only `__cuda_array_interface__`, made on a stream of its own."""

    def __init__(self, fake: FakeState, values: np.ndarray, stream: Any, writes: bool = True) -> None:
        self.values, self.address = values, fake.devices[0].alloc(max(values.nbytes, 1))
        if writes:  # the values arrive when the stream gets there
            from cuda_fake.fake_state import Stream

            queue: Stream = fake._streams[int(stream.handle)]
            queue.queue.append(lambda: fake.devices[0].copy_in(self.address, values))
        self.stream = int(stream.handle)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": self.values.shape, "typestr": self.values.dtype.str, "data": (self.address, False),
                "strides": None, "stream": self.stream}


def arrays_of_other_libraries(fake: FakeState) -> None:
    """Their streams are waited for on the device; results go on through DLPack in order."""
    from tilewright.runtime.cuda.arena import gpu
    from tilewright.runtime.cuda.cuda_arrays import CudaArray

    theirs, ours = (gpu(0).device.core.create_stream() for _ in range(2))
    given = inputs(6)
    first = chain()(*(Exported(fake, a, theirs) for a in given), stream=ours)
    assert isinstance(first, CudaArray)
    assert first.shape == (6, 16)
    assert fake.calls("cuStreamWaitEvent")
    weights = [np.ones((16, 24), np.float32), np.ones((24, 16), np.float32)]
    onward = tw.compile(CHAIN.replace("40", "16"), {"M": (0, 64)}, target="cuda:sm_90a")
    second = onward(first, *(Exported(fake, a, theirs) for a in weights), stream=theirs)
    np.testing.assert_array_equal(second.numpy(), product(product(*given), *weights))
    from cuda.core.utils import StridedMemoryView

    viewed = StridedMemoryView.from_dlpack(second, stream_ptr=int(ours.handle))
    assert (viewed.ptr, tuple(viewed.shape), viewed.dtype, viewed.device_id) == (second.address, (6, 16), np.dtype("f4"), 0)


def results_go_to_the_callers_library(fake: FakeState) -> None:
    """An array with a namespace gets what the namespace makes of our DLPack."""
    from tilewright.runtime.cuda.arena import gpu

    stream = gpu(0).device.core.create_stream()
    made: list[Any] = []

    class Namespace:
        @staticmethod
        def from_dlpack(value: Any) -> str:
            made.append(value.__dlpack__(stream=int(stream.handle), max_version=(1, 1)))
            assert value.__dlpack_device__() == (2, 0)
            return "theirs"

    class Known(Exported):
        def __array_namespace__(self) -> type[Namespace]:
            return Namespace

    assert chain()(*(Known(fake, a, stream) for a in inputs(3)), stream=stream) == "theirs"
    assert len(made) == 1


def a_saved_model_runs(fake: FakeState, folder: Any) -> None:
    fn, given = chain(), inputs(5)
    fn.save(folder / "chain.tw")
    loaded = tw.load(folder / "chain.tw")
    np.testing.assert_array_equal(loaded(*given), fn(*given))


def tensor_maps_are_encoded(fake: FakeState) -> None:
    """A model whose kernel takes bulk copies, bit for bit as on the emulator."""
    from cuda_fake.scenarios_kernels import dense

    fn, given = dense("cuda:sm_90a")
    expected = dense("emulator:sm_90a")[0](*given)
    np.testing.assert_array_equal(fn(*given), expected)
    assert fake.calls("cuTensorMapEncodeTiled")
