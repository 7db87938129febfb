"""PyTorch operators in breadth, compiled with dynamic shapes and compared with PyTorch itself: values, element types, NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.compiler.frontends.torch.importer import import_torch  # noqa: E402
from tilewright.compiler.reference import evaluate  # noqa: E402
from tilewright.runtime.errors import IngestError  # noqa: E402

Tensors = Sequence[Any]
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.5, 1e-6, -40.0, 88.0, float("inf"), float("-inf"), float("nan"))


def model(function: Callable[..., Any]) -> Any:
    class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return function(x, y)

    return Model().eval()


def check(function: Callable[..., Any], cases: Sequence[Tensors], dynamic: Any = torch.export.Dim.AUTO) -> None:
    """The results of a function of two tensors, compiled once for all cases, whose first axes differ."""
    axes = tuple({0: dynamic} if t.ndim else {} for t in cases[0])
    compiled = tw.compile(model(function), args=tuple(cases[0]), dynamic_shapes=axes)
    for tensors in cases:
        wanted = function(*tensors)
        found = compiled(*tensors)
        whole = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        results = found if isinstance(found, (tuple, list)) else (found,)
        for number, (w, f) in enumerate(zip(whole, results, strict=True)):
            assert f.dtype == w.dtype and f.shape == w.shape, (number, f.dtype, w.dtype, f.shape, w.shape)
            said = f"result {number}: {{}}".format
            torch.testing.assert_close(f, w, rtol=2e-5, atol=2e-6, equal_nan=True, msg=said)


def pair(*shape: int, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(2)]


def test_functions_at_zeros_infinities_and_nan() -> None:
    def run(x: Any, y: Any) -> Any:
        return (torch.sin(x), torch.expm1(x), torch.log1p(x), torch.round(x), torch.trunc(x), torch.frac(y), torch.sign(x),
                x**y,
                x**2, torch.atan2(x, y), torch.hypot(x, y), torch.fmod(x, y), torch.remainder(x, y), torch.floor_divide(x, y),
                torch.copysign(x, y), torch.nan_to_num(x), torch.fmax(x, y), torch.minimum(x, y), torch.logaddexp(x, y),
                torch.xlogy(x, y), torch.heaviside(x, y), torch.isinf(x), torch.signbit(x), x.clamp(-1, 2), x > y,
                torch.nextafter(x, y), torch.logit(x, 0.2), torch.logit(x, 0.6))  # fmt: skip

    values = torch.tensor(SPECIAL)
    grid = torch.cartesian_prod(values, values)
    check(run, [grid.T.contiguous().unbind(0), pair(37)])


def test_activations() -> None:
    from torch.nn import functional as f

    def run(x: Any, y: Any) -> Any:
        return (f.elu(x, 0.7), f.selu(x), f.celu(x, 1.3), f.mish(x), f.softplus(x, 2, 5), f.hardswish(x), f.hardtanh(x, -0.5,
                2),
                f.leaky_relu(x), f.gelu(x, approximate="tanh"), f.logsigmoid(x), f.softshrink(x, 0.3), f.hardshrink(x, 0.3),
                f.threshold(x, 0.1, 7), torch.logit(x.sigmoid(), 1e-3), f.prelu(x, y[0].abs()), f.glu(y, -1),
                f.relu6(x))  # fmt: skip

    check(run, [pair(5, 4), pair(9, 4, seed=1)])


def test_special_functions() -> None:
    def run(x: Any, y: Any) -> Any:
        unit = torch.tanh(y) * 0.999
        s = torch.special
        return (torch.lgamma(x), torch.digamma(x), torch.polygamma(1, x), torch.polygamma(3, x), torch.erfinv(unit),
                s.ndtri(unit.abs()), s.log_ndtr(x), s.erfcx(x), torch.i0(x), s.i1e(x), s.bessel_j0(x), s.bessel_y1(y.abs()),
                s.modified_bessel_k0(y.abs()), s.entr(y.abs()), torch.sinc(x), s.xlog1py(x, y.abs()))  # fmt: skip

    x = torch.linspace(-4.9, 12, 41)
    check(run, [[x, x.flip(0) + 0.05], pair(8)])


def test_promotion_is_that_of_torch() -> None:
    def run(x: Any, y: Any) -> Any:
        truth = x > 0
        return (x + y, x * 2.5, x / 2, truth + y, truth + 1, truth * truth, truth + truth, y / 3, y // 2, y % -3, y**2,
                torch.where(truth, y, 0.5), x + torch.tensor(2.0, dtype=torch.float64), y + torch.tensor(1.5),
                torch.sqrt(y.abs()),
                y.to(torch.int8) + 100, y.clamp(min=0.5), torch.sum(truth), torch.mean(x.half(), 0), -y)  # fmt: skip

    cases = [[a, (b * 5).to(torch.int32)] for a, b in (pair(6, 3), pair(11, 3, seed=3))]
    check(run, cases)


def test_integers() -> None:
    def run(x: Any, y: Any) -> Any:
        divisor = torch.where(y == 0, 3, y)
        return (x // divisor, x % divisor, torch.fmod(x, divisor), torch.div(x, divisor, rounding_mode="trunc"), x & y,
                x | y, x ^ y, ~x, x << (y.abs() * 9), x >> (y.abs() * 9), x ** y.abs(), torch.sign(x), x.abs(),
                torch.bitwise_not(x > y), x.float() / divisor, torch.maximum(x, y),
                torch.addmm(y[0, :5], x, y[:5].T, beta=2.5, alpha=3.7))  # fmt: skip

    cases = [[(t * 4).to(torch.int64) for t in pair(n, 7, seed=n)] for n in (5, 12)]
    check(run, cases)


def test_reductions() -> None:
    def run(x: Any, y: Any) -> Any:
        return (x.sum(0), y.sum(-1, keepdim=True), y.prod(1), x.amax((0, 1)), x.max(0).values, x.argmax(0), y.argmin(1),
                y.min(1).indices, x.var(0), x.std(1, correction=0), torch.var_mean(x, (0, 1)), x.nansum(0), (x > 0).any(0),
                (y > 0).all(1), torch.count_nonzero(y, 0), torch.linalg.vector_norm(x, 3, 1),
                torch.linalg.vector_norm(x, float("inf"), 0), x.logsumexp(0), y.mean(0, dtype=torch.float32),
                torch.aminmax(x, dim=1).max)  # fmt: skip

    def flat(x: Any, y: Any) -> Any:
        return [t for part in run(x, y) for t in (part if isinstance(part, tuple) else (part,))]

    cases = [[a, (b * 3).to(torch.int64)] for a, b in (pair(7, 5), pair(19, 5, seed=2))]
    cases[1][0][3, 2] = float("nan")
    check(flat, cases)


def test_places_that_tensors_name() -> None:
    def run(x: Any, y: Any) -> Any:
        place = (y * 3).to(torch.int64) % 4
        column = place[:, 0]
        return (torch.gather(x, 1, place), x[:, column - 4], x[column], x.index_select(1, column), torch.take(x, place - 4),
                x.scatter(1, place, y), x.scatter_add(1, place, y), x.scatter_reduce(1, place, y, "amax", include_self=False),
                x.scatter_reduce(1, place, y, "mean"), x.index_add(1, column, y[:, :1].expand(-1, column.shape[0])),
                x.index_fill(1,
                column, 2.5), x.masked_fill(y > 0, -1), torch.index_put(x, (column.clamp(max=1), place[:, 1]), y[:, 0],
                accumulate=True), x.masked_scatter(y > 0, y))  # fmt: skip

    check(run, [pair(4, 4), pair(6, 4, seed=5)])


def test_order() -> None:
    def run(x: Any, y: Any) -> Any:
        s = torch.sort(x, dim=0, descending=True, stable=True)
        t, k, m = torch.topk(y, 2, 1), torch.kthvalue(x, 2, 1), torch.cummax(y, 0)
        return (s.values, s.indices, t.values, t.indices, k.values, m.values, m.indices, torch.cumsum(x, 0), torch.cumprod(y,
                1),
                x.median(), y.median(1).values, torch.logcumsumexp(y, 0), torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]),
                y),
                torch.nanmedian(x, 0).values)

    cases = [pair(6, 4), pair(13, 4, seed=4)]
    cases[1][0][2, 1] = float("nan")
    check(run, cases)


def test_windows_and_strided_parts() -> None:
    from torch.nn import functional as f

    def run(x: Any, y: Any) -> Any:
        values, places = f.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
        return (values, places, f.avg_pool2d(x, 2, 1, count_include_pad=False), f.adaptive_avg_pool2d(x, (3, 2)),
                f.adaptive_max_pool1d(x[0], 3), torch.diagonal(x, 1, 2, 3), torch.linalg.diagonal(x, offset=-2, dim1=1, dim2=3),
                torch.linalg.diagonal(y, offset=1), x.unfold(3, 3, 2), torch.tril(y > 0), f.pad(x,
                (1, 2, 0, 1), mode="replicate"), torch.diagonal_scatter(y, y[:, :, 0], 0, 1, 2), f.avg_pool2d(x, 2,
                divisor_override=3))  # fmt: skip

    cases = [[torch.randn(n, 3, 7, 6), torch.randn(n, 5, 5)] for n in (2, 4)]
    check(run, cases)


def test_convolutions_and_resampling() -> None:
    from torch.nn import functional as f

    def run(x: Any, y: Any) -> Any:
        image = x[:, :, 0]
        return (f.conv3d(x, y, padding=1), f.conv_transpose3d(x, y.transpose(0, 1), stride=(1, 2, 2), output_padding=(0, 1, 0)),
                f.conv2d(image[0], y[:, :, 0], padding="same"), f.interpolate(image, scale_factor=1.7),
                f.interpolate(image, (5, 9), mode="nearest-exact"), f.interpolate(image, scale_factor=(0.6, 2), mode="bilinear"),
                f.interpolate(image, (4, 9), mode="bicubic", align_corners=True),
                f.interpolate(image, (3, 5), mode="bilinear", antialias=True))  # fmt: skip

    means(model(run), torch.randn(2, 3, 3, 7, 6), torch.randn(4, 3, 3, 3, 3))


class Recurrent(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True)
        self.gru, self.rnn = torch.nn.GRU(5, 4, bias=False), torch.nn.RNN(5, 4)
        self.cells = torch.nn.ModuleList([torch.nn.LSTMCell(5, 4), torch.nn.GRUCell(5, 4), torch.nn.RNNCell(5, 4)])

    def forward(self, x: Any, y: Any) -> Any:
        found, (hidden, cell) = self.lstm(x)
        gru, rnn = self.gru(x), self.rnn(x)
        lstm_cell, gru_cell, rnn_cell = self.cells
        return (found, hidden, cell, *gru, *rnn, *lstm_cell(x[0], (y, y)), gru_cell(x[0], y), rnn_cell(x[0], y))


def test_recurrent_layers() -> None:
    means(Recurrent().eval(), torch.randn(3, 3, 5), torch.randn(3, 4))


def means(module: Any, *inputs: Any) -> None:
    """What a module's text means, by the reference interpreter, is what the module gives."""
    imported = import_torch(module, inputs)
    found = evaluate(imported.text, [*(t.numpy() for t in inputs), *imported.constants.values()])
    with torch.no_grad():
        wanted = module(*inputs)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(got).float(), want, rtol=2e-5, atol=2e-5)


def test_composites_are_decomposed() -> None:
    from torch.nn import functional as f

    def run(x: Any, y: Any) -> Any:
        return (f.smooth_l1_loss(x, y), f.huber_loss(x, y, reduction="none"), f.kl_div(x, y.softmax(1)),
                f.binary_cross_entropy_with_logits(x, y), torch.trapezoid(x, dim=1), torch.cdist(x, y), torch.diff(x, dim=1),
                torch.rot90(y), f.cosine_similarity(x, y), torch.addcmul(x, x, y, value=0.5), torch.lerp(x, y, 0.3),
                torch.bucketize(x, torch.tensor([-0.5, 0.5])))  # fmt: skip

    check(run, [pair(4, 6), pair(9, 6, seed=6)])


def test_no_elements() -> None:
    def run(x: Any, y: Any) -> Any:
        return x.sum(0), x.prod(), torch.cat([x, y]), x.sum(1), x + 1, x.any(), x.mean(), x.argsort(1)

    x, y = torch.zeros(0, 3), torch.ones(2, 3)
    compiled = tw.compile(model(run), args=(x, y))
    for found, wanted in zip(compiled(x, y), run(x, y), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_axes_without_elements() -> None:
    """That are so for every shape, between axes that are not."""
    def run(x: Any, y: Any) -> Any:
        order, values = torch.sort(x, 1), torch.topk(y, 0, 1).values
        return (x.cumsum(1), *order, values, x.sum(1), torch.cat([x, y], 1), y[:, 1:1].flip(0), x.exp(), x.transpose(1, 2) @ x,
                torch.softmax(x, 1), x.flip(2).argsort(1), torch.cat([x, x], 1).cummax(2).values)

    check(run, [[torch.ones(n, 0, 3), torch.ones(n, 2, 3)] for n in (2, 5)])


@pytest.mark.parametrize(("function", "said"), [
    (lambda x, y: x[y > 0], "depend"),
    (lambda x, y: torch.argsort(x > 0), "stable=True"),
    (lambda x, y: torch.bernoulli(y), "random"),
    (lambda x, y: torch.linalg.svd(x)[1], "not known"),
    (lambda x, y: torch.nn.functional.interpolate(x[None, None], (2, 2), mode="bilinear", align_corners=True, antialias=True),
     "align_corners=False"),
])  # fmt: skip
def test_refused_with_operator_and_line(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(IngestError, match=said) as caught:
        import_torch(model(function), (torch.rand(3, 3), torch.rand(3, 3)))
    assert "test_torch_operators.py" in str(caught.value) and "aten." in str(caught.value)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_fourier_transforms(norm: str) -> None:
    """Along axes of odd and even length, and both; of real and complex tensors, there and back."""

    def run(x: Any, y: Any) -> Any:
        f, n = torch.fft, {"norm": norm}
        z = torch.complex(x, y)
        spectra = (f.fft(z, dim=0, **n), f.ifft(z, dim=1, **n), f.fftn(x, **n), f.rfft(x, dim=0, **n), f.rfft2(x, **n),
                   f.ifft2(z, **n), f.rfft(y, **n) * f.rfft(x, **n))
        real = (f.irfft(f.rfft(x, dim=0), x.shape[0], dim=0, **n), f.irfft2(f.rfft2(x * 2), x.shape, **n), f.irfft(z, 9, **n),
                f.hfft(z, 8, **n), f.fft(x, **n).real)
        return *map(torch.view_as_real, spectra), *real

    means(model(run), *pair(6, 5))
    means(model(run), *pair(1, 4, seed=1))


def test_a_spectrum_along_an_axis_of_any_length() -> None:
    def run(x: Any, y: Any) -> Any:
        return torch.view_as_real(torch.fft.rfft(x, dim=0))

    check(run, [pair(6, 5), pair(9, 5, seed=1), pair(1, 5, seed=2)])


def test_slices_from_what_is_left_of_a_longer_axis() -> None:
    """A table of biases of which the last x.shape[0] columns are read (MPT): the range says which size is the larger."""
    table = torch.randn(3, 1, 64)

    def run(x: Any, y: Any) -> Any:
        size = x.shape[0]
        return x @ y.T + table[:, max(0, 1 - size) :, max(0, 64 - size) :]

    check(run, [pair(7, 4), pair(64, 4, seed=1), pair(1, 4, seed=2)], torch.export.Dim("rows", min=1, max=64))


def test_paths_that_an_example_takes_are_told_with_their_line() -> None:
    def padded(x: Any, y: Any) -> Any:
        left = (4 - x.shape[0] % 4) % 4
        return torch.cat([x, y[:left]]) if left > 0 else x * 2

    def stepped(x: Any, y: Any) -> Any:
        for row in range(x.shape[0]):
            y = y + x[row]
        return y

    rows = ({0: torch.export.Dim("rows", min=1, max=64)}, None)
    with pytest.raises(IngestError, match=r"one path where .*rows.* > 0 \(.*_operators.py:\d+ in padded.*at rows = \d*[048];"):
        tw.compile(model(padded), args=(torch.rand(7, 3), torch.rand(4, 3)), dynamic_shapes=rows)
    with pytest.raises(IngestError, match=r"takes rows = 7 of the example for a fixed number \(.*_operators.py:\d+ in stepped"):
        tw.compile(model(stepped), args=(torch.rand(7, 3), torch.rand(3)), dynamic_shapes=rows)


@pytest.mark.parametrize("right", [False, True])
def test_places_among_any_number_of_boundaries(right: bool) -> None:
    """The steps of halves go by the bound of the range, 40,000, and end at the last boundary that there is."""

    def cases(n: int) -> Tensors:
        bounds = torch.rand(n, generator=torch.Generator().manual_seed(n)).sort()[0]
        return bounds, torch.cat([bounds[:7], bounds[-1:] + 0.1, torch.tensor([-1.0, 0.5, float("nan"), float("inf")])])

    rows = torch.export.Dim("n", min=1, max=40000)
    run = tw.compile(model(lambda x, y: torch.searchsorted(x, y, right=right)), args=tuple(cases(9)),
                     dynamic_shapes=({0: rows}, {0: torch.export.Dim("m", min=1, max=64)}))
    for n in (1, 2, 31, 33, 1000, 40000):
        assert torch.equal(run(*cases(n)), torch.searchsorted(*cases(n), right=right)), n


def test_inverse_of_erf() -> None:
    """Of f32 within 1.7 ulp, in both of its ranges and to the last number in front of 1."""
    from scipy.special import erfinv

    def inverse(x: Any) -> Any:
        return torch.as_tensor(tw.compile(model(lambda a, b: torch.erfinv(a)), args=(x, x))(x, x))

    rng = np.random.default_rng(5)
    near = 1 - np.arange(1, 513, dtype=np.float32) * np.float32(2.0**-24)
    x = np.concatenate([rng.random(2048, np.float32), near, 2.0 ** -rng.uniform(1, 130, 512).astype(np.float32)])
    x = np.concatenate([x, -x])
    want = erfinv(x.astype(np.float64))
    off = np.abs(inverse(torch.from_numpy(x)).numpy().astype(np.float64) - want)
    assert (off <= 1.7 * np.spacing(np.abs(want).astype(np.float32))).all()
    ends = torch.tensor([0.0, -0.0, 1, -1, 1.5, -2, torch.nan, torch.inf])
    got = inverse(ends)
    torch.testing.assert_close(got, torch.erfinv(ends), equal_nan=True)
    assert torch.signbit(got[1])
