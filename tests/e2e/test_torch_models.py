"""Small PyTorch models through the importer: every dynamic dim, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.compiler.frontends.torch.importer import import_torch  # noqa: E402
from tilewright.runtime.errors import DTypeError, IngestError  # noqa: E402

Dim, nn, F = torch.export.Dim, torch.nn, torch.nn.functional
WIDTH = 32


def leaves(value: Any) -> list[np.ndarray]:
    return [np.asarray(v.detach() if isinstance(v, torch.Tensor) else v) for v in torch.utils._pytree.tree_leaves(value)]


def check(model: nn.Module, shapes: Any, inputs: Sequence[Sequence[torch.Tensor]]) -> Any:
    """Compiles with the first inputs as example and runs all of them; the compiled function."""
    model = model.eval()
    fn = tw.compile(model, args=tuple(inputs[0]), dynamic_shapes=shapes)
    for given in inputs:
        with torch.no_grad():
            wanted = leaves(model(*given))
        got = leaves(fn(*given))
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype
            assert np.linalg.norm((g - w).astype(float)) <= 2e-5 * max(float(np.linalg.norm(w.astype(float))), 1e-30)
    return fn


class Decoder(nn.Module):
    """A decoder layer with grouped heads, rotary embeddings by complex numbers and a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(50, WIDTH)
        self.norm, self.last = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("turns", torch.polar(torch.ones(16, 4), torch.rand(16, 4)))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        batch, length = ids.shape
        x = self.tokens(ids)
        h = self.norm(x)
        q = self.rotated(self.q(h).view(batch, length, 4, 8)).transpose(1, 2)
        k, v = self.kv(h).view(batch, length, 2, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        order = torch.arange(length)
        seen = (order[None, :] <= order[:, None])[None, None] & mask[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        x = x + self.down(y.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, value = self.up(self.last(x)).chunk(2, -1)
        return {"logits": self.head(x + F.silu(gate) * value), "hidden": x}

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1], None]).flatten(3)


def tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length - length // 3 :] = 0
    return torch.randint(0, 50, (batch, length)), mask


def test_a_decoder_with_batch_and_sequence_dynamic() -> None:
    batch, length = Dim("batch", min=1, max=4), Dim("length", min=1, max=16)
    shapes = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    fn = check(Decoder(), shapes, [tokens(2, 5), tokens(1, 1), tokens(3, 16), tokens(4, 7)])
    assert set(fn.dims) == {"batch", "length"}
    ids, mask = tokens(2, 3)
    assert list(fn(mask=mask, ids=ids)) == ["logits", "hidden"]
    sizes = [c.shape for c in fn.program.constants]
    assert sizes.count((50, WIDTH)) == 1  # tied weights are stored once


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.first[1].running_mean.uniform_()
        self.first[1].running_var.uniform_(0.5, 2)
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding="same", groups=4), nn.GroupNorm(2, 8), nn.SiLU())
        self.up = nn.ConvTranspose2d(8, 4, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x)
        x = x + self.second(x)
        return self.up(x), F.pad(x, (1, 2, 0, 1)).mean((2, 3))


def test_images_whose_sides_are_multiples() -> None:
    height, width = 4 * Dim("height", min=2, max=8), 4 * Dim("width", min=2, max=8)
    inputs = [(torch.randn(n, 3, 4 * h, 4 * w),) for n, h, w in ((2, 3, 5), (1, 2, 2), (1, 8, 4))]
    fn = check(Images(), ({0: Dim("batch", min=1, max=2), 2: height, 3: width},), inputs)
    with pytest.raises(tw.errors.ShapeError):
        fn(torch.randn(1, 3, 10, 8))


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        self.sums[:, : x.shape[0]].add_(x.sum(0)[:, None])
        y = x * scale
        y[:, 0] = 1 / (x.shape[0] ** 0.5)
        return y + self.sums.sum()


def test_a_buffer_that_the_model_changes_is_an_input_and_a_result() -> None:
    model = Cache().eval()
    fn = tw.compile(model, {"n": (1, 6)}, args=(torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    x, sums = torch.randn(5, 4), torch.randn(4, 6)
    model.sums.copy_(sums)
    wanted = model(x)
    got, changed = fn(x, sums=sums)
    assert torch.allclose(torch.as_tensor(got), wanted, atol=1e-5)
    assert torch.allclose(torch.as_tensor(changed["sums"]), model.sums, atol=1e-5)


def test_names_and_ranges_of_dims_without_names() -> None:
    program = torch.export.export(nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes=({0: Dim.AUTO},), strict=False)
    imported = import_torch(program)
    assert imported.dims == {"input_0": tw.Dim(1, 1 << 16)}
    assert import_torch(program, dims={"input_0": tw.Dim(1, 8)}).dims == {"input_0": tw.Dim(1, 8)}


class Numbers(nn.Module):
    def forward(self, x: Any, power: int, scale: float = 0.5) -> Any:
        return x**power * scale, x.sum().item(), x.shape[0], power


def test_numbers_among_arguments_and_results() -> None:
    x = torch.ones(3, 2)
    fn = tw.compile(Numbers().eval(), args=(x, 3), dynamic_shapes={"x": {0: Dim("rows", max=9)}, "power": None})
    for args in ((x,), (x, 3)):
        power, total, rows, three = fn(*args)
        assert power.shape == (3, 2) and (total, rows, three) == (6.0, 3, 3)
        assert type(total) is float and type(rows) is int
    with pytest.raises(DTypeError, match="argument power: wanted 3, as the model was compiled for, got 4"):
        fn(x, 4)
    with pytest.raises(IngestError, match="no result of the model is a tensor"):
        tw.compile(Refused(lambda x: 5).eval(), args=(x,))


class Refused(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.nonzero(), ("aten.nonzero.default", "depends on data", "padded")),
        (lambda x: x[x > 0], ("aten.index.Tensor", "mask")),
        (lambda x: x + torch.rand_like(x), ("aten.rand_like.default", "argument")),
        (lambda x: torch.linalg.eigvalsh(x @ x.T), ("linalg", "tw.frontends.register")),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_line_of_the_model(function: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(IngestError) as refusal:
        import_torch(Refused(function).eval(), (torch.randn(4, 4),), dynamic_shapes=({0: Dim.AUTO},))
    assert "test_torch_models.py:" in str(refusal.value) or "node cond" in str(refusal.value)
    assert all(word in str(refusal.value) for word in words)


def test_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(IngestError, match=r"eval\(\)"):
        import_torch(nn.Dropout(), (torch.randn(2),))
