"""Convolutions and pooling over one to three axes against torch; the forms without a named operation compiled too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.runtime.errors import OptionError, ShapeError

SHAPES = [{"N": 1, "H": 5, "W": 7}, {"N": 2, "H": 12, "W": 9}]
DIMS = {"N": (1, 4), "H": (3, 32), "W": (3, 32)}


def checks_of(inputs: dict[str, Given], torch: Any) -> tuple[Checks, Callable[..., None]]:
    used = {d for given in inputs.values() for d in given.dims}
    checks = Checks(inputs, {n: r for n, r in DIMS.items() if n in used})

    def add(name: str, got: ops.Tensor, want: Callable[[Any], Any]) -> None:
        checks.add(name, got, lambda v, _: np.asarray(want({n: torch.from_numpy(a) for n, a in v.items()})))

    return checks, add


def test_convolutions() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    checks, add = checks_of({
        "x": Given(["N", 4, 3, "H", "W"]), "w": Given([6, 4, 2, 3, 3]), "g": Given([8, 2, 1, 3, 2]), "d": Given([4, 1, 2, 2, 2]),
        "b": Given([6]), "y": Given(["N", 4, "H"]), "k": Given([4, 3, 3]), "k2": Given([4, 2, 3]), "z": Given(["N", 4, "H", "W"]),
        "t": Given([4, 3, 2, 3]), "tb": Given([3]), "v": Given([4, 2, 1, 2, 2]),
    }, torch)

    def cropped(a: dict[str, Any], side: str) -> Any:
        """A kernel of 3 with a stride of 2 gives one element too many."""
        whole = f.conv_transpose1d(a["y"], a["k"], None, 2)
        return whole[..., :-1] if side == "same" else whole[..., 1:]

    def strided(a: dict[str, Any], side: str) -> Any:
        total = max((-(-a["y"].shape[2] // 2) - 1) * 2 + 3 - a["y"].shape[2], 0)
        less, more = total // 2, total - total // 2
        return f.conv1d(f.pad(a["y"], (less, more) if side == "same" else (more, less)), a["k"].transpose(0, 1), stride=2)

    x, w, g, d, b, y, k, k2, z, t, tb, v = (checks[n] for n in ("x", "w", "g", "d", "b", "y", "k", "k2", "z", "t", "tb", "v"))
    add("conv3d", ops.conv3d(x, w, b, stride=2, padding=1), lambda a: f.conv3d(a["x"], a["w"], a["b"], 2, 1))
    add("conv3d in groups", ops.conv3d(x, g, dilation=(1, 1, 2), padding=(0, 1, 2), groups=2),
        lambda a: f.conv3d(a["x"], a["g"], None, 1, (0, 1, 2), (1, 1, 2), 2))
    add("conv3d by channel", ops.conv3d(x, d, groups=4), lambda a: f.conv3d(a["x"], a["d"], groups=4))
    add("conv2d, same", ops.conv2d(z, ops.transpose(ops.narrow(t, 1, 0, 2), (1, 0, 2, 3)), padding=((0, 1), z.dims[3] * 0 + 1)),
        lambda a: f.conv2d(a["z"], a["t"][:, :2].transpose(0, 1), padding="same"))
    for side in ("same", "same_lower"):
        add(f"conv1d, {side}", ops.conv1d(y, ops.transpose(k, (1, 0, 2)), stride=2, padding=side),
            lambda a, s=side: strided(a, s))
    add("transposed 1d", ops.conv_transpose(y, k, stride=3, padding=1, output_padding=2),
        lambda a: f.conv_transpose1d(a["y"], a["k"], None, 3, 1, 2))
    add("transposed 1d in groups", ops.conv_transpose(y, k2, groups=2, stride=2, dilation=2),
        lambda a: f.conv_transpose1d(a["y"], a["k2"], stride=2, groups=2, dilation=2))
    add("transposed 2d", ops.conv_transpose(z, t, tb, stride=(2, 1), padding=(2, 1)),
        lambda a: f.conv_transpose2d(a["z"], a["t"], a["tb"], (2, 1), (2, 1)))
    for side in ("same", "same_lower"):
        add(f"transposed, {side}", ops.conv_transpose(y, k, stride=2, padding=side), lambda a, s=side: cropped(a, s))
    add("transposed to sizes", ops.conv_transpose(y, k, stride=2, sizes=[y.dims[2] * 2 + 3]),
        lambda a: f.pad(f.conv_transpose1d(a["y"], a["k"], stride=2), (0, 2)))
    add("transposed 3d", ops.conv_transpose(x, v, stride=2), lambda a: f.conv_transpose3d(a["x"], a["v"], stride=2))
    checks.evaluate(SHAPES)


def test_pooling() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    checks, add = checks_of({"x": Given(["N", 2, "H", "W"]), "y": Given(["N", 2, "H"]), "z": Given(["N", 2, 5, "H", "W"])}, torch)

    def dilated(y: Any, include: bool) -> Any:
        """Means of elements 3 apart, 2 a window, by hand."""
        count = min(-(-(y.shape[2] + 2 - 4) // 2) + 1, -(-(y.shape[2] + 1) // 2))
        columns = []
        for o in range(count):
            places = [o * 2 - 1, o * 2 + 2]
            inside = [y[:, :, p] for p in places if 0 <= p < y.shape[2]]
            n = sum(-1 <= p < y.shape[2] + 1 for p in places) if include else len(inside)
            columns.append(sum(inside, torch.zeros(y.shape[:2])) / n)
        return torch.stack(columns, 2)

    x, y, z = (checks[n] for n in "xyz")
    short = ops.select(z, 3, 0)
    add("max 2d beyond", ops.max_pool2d(short, (7, 2), ceil_mode=True),
        lambda a: f.max_pool2d(a["z"][:, :, :, 0], (7, 2), ceil_mode=True))
    add("avg 2d beyond", ops.avg_pool2d(short, (7, 2), ceil_mode=True),
        lambda a: f.avg_pool2d(a["z"][:, :, :, 0], (7, 2), ceil_mode=True))
    for ceil in (False, True):
        add(f"max 1d {ceil}", ops.max_pool1d(y, 3, 2, 1, ceil_mode=ceil),
            lambda a, c=ceil: f.max_pool1d(a["y"], 3, 2, 1, ceil_mode=c))
        add(f"max 2d {ceil}", ops.max_pool2d(x, (3, 2), (2, 3), 1, (1, 2), ceil_mode=ceil),
            lambda a, c=ceil: f.max_pool2d(a["x"], (3, 2), (2, 3), 1, (1, 2), c))
        add(f"max 3d {ceil}", ops.max_pool3d(z, 2, ceil_mode=ceil), lambda a, c=ceil: f.max_pool3d(a["z"], 2, ceil_mode=c))
        for include in (False, True):
            add(f"avg 1d {ceil} {include}", ops.avg_pool1d(y, 3, 2, 1, include, ceil_mode=ceil),
                lambda a, c=ceil, i=include: f.avg_pool1d(a["y"], 3, 2, 1, c, i))
            add(f"avg 2d {ceil} {include}", ops.avg_pool2d(x, 3, 2, (0, 1), include, ceil_mode=ceil),
                lambda a, c=ceil, i=include: f.avg_pool2d(a["x"], 3, 2, (0, 1), c, i))
            add(f"avg 3d {ceil} {include}", ops.avg_pool3d(z, 3, 2, 1, include, ceil_mode=ceil),
                lambda a, c=ceil, i=include: f.avg_pool3d(a["z"], 3, 2, 1, c, i))
    for n, t in enumerate((y, x, z), 1):
        pool, name = getattr(f, f"max_pool{n}d"), "yxz"[n - 1]
        for i, got in enumerate(ops.max_pool_with_indices(t, 3, 2, 1, 1, ceil_mode=True)):
            add(f"max {n}d, {i}", got, lambda a, p=pool, x=name, i=i: p(a[x], 3, 2, 1, 1, True, True)[i])
    for i, got in enumerate(ops.max_pool_with_indices(x, (2, 3), 1, (1, 0), (2, 1))):
        add(f"max with dilation, {i}", got, lambda a, i=i: f.max_pool2d(a["x"], (2, 3), 1, (1, 0), (2, 1), False, True)[i])
    for i, got in enumerate(ops.adaptive_max_pool_with_indices(x, [3, None])):
        add(f"adaptive max, {i}", got, lambda a, i=i: f.adaptive_max_pool2d(a["x"], (3, None), True)[i])
    add("sum", ops.sum_pool(x, 2, 1, 1), lambda a: f.avg_pool2d(a["x"], 2, 1, 1) * 4)
    for include in (False, True):  # what a window adds up of ones is what it counts
        add(f"avg with dilation, {include}", ops.avg_pool1d(y, 2, 2, 1, include, dilation=3, ceil_mode=True),
            lambda a, i=include: dilated(a["y"], i))
    add("adaptive avg", ops.adaptive_avg_pool(x, [3, None]), lambda a: f.adaptive_avg_pool2d(a["x"], (3, None)))
    add("adaptive avg 3d", ops.adaptive_avg_pool(z, [2, 4, 1]), lambda a: f.adaptive_avg_pool3d(a["z"], (2, 4, 1)))
    add("adaptive max", ops.adaptive_max_pool(x, [4, 5]), lambda a: f.adaptive_max_pool2d(a["x"], (4, 5)))
    add("adaptive to an extent", ops.adaptive_avg_pool(y, [y.dims[2] // 2 + 1]),
        lambda a: f.adaptive_avg_pool1d(a["y"], a["y"].shape[2] // 2 + 1))
    checks.evaluate(SHAPES)


def test_compiled() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    checks, add = checks_of({"x": Given(["N", 4, 3, "H", "W"]), "w": Given([6, 4, 2, 3, 3]), "y": Given(["N", 4, "H"], "f16"),
                             "z": Given(["N", 4, "H", "W"]), "t": Given([4, 3, 2, 3]), "i": Given(["N", 4, "H"], "i32")}, torch)
    x, w, y, z, t, i = (checks[n] for n in "xwyzti")
    for n, got in enumerate(ops.max_pool_with_indices(z, 3, 2, 1)):
        add(f"max with indices, {n}", got, lambda a, n=n: f.max_pool2d(a["z"], 3, 2, 1, return_indices=True)[n])
    add("avg of integers", ops.avg_pool1d(i, 3, 2, 1, False),
        lambda a: f.avg_pool1d(a["i"].double(), 3, 2, 1, False, False).int())
    add("conv3d", ops.conv3d(x, w, padding=1), lambda a: f.conv3d(a["x"], a["w"], padding=1))
    add("transposed", ops.conv_transpose(z, t, stride=2, padding=1),
        lambda a: f.conv_transpose2d(a["z"], a["t"], stride=2, padding=1))
    add("max 3d", ops.max_pool3d(x, 2, 1, ceil_mode=True), lambda a: f.max_pool3d(a["x"], 2, 1, ceil_mode=True))
    add("max of integers", ops.max_pool1d(i, 3, 2, 1), lambda a: f.max_pool1d(a["i"].double(), 3, 2, 1).int())
    add("avg f16", ops.avg_pool1d(y, 3, 2, 1, False, ceil_mode=True),
        lambda a: f.avg_pool1d(a["y"].float(), 3, 2, 1, True, False).half())
    add("adaptive", ops.adaptive_avg_pool(z, [3, 5]), lambda a: f.adaptive_avg_pool2d(a["z"], (3, 5)))
    checks.run(SHAPES)


def test_resampling() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    given = {"x": Given(["N", 2, "H", "W"]), "y": Given(["N", 2, "H"], "f16"), "i": Given(["N", 2, "H"], "i32")}
    checks, add = checks_of(given, torch)
    x, y, i = (checks[n] for n in "xyi")
    wide, high = x.dims[3] * 2, x.dims[2] // 2 + 1

    def size(a: Any) -> tuple[int, int]:
        return a["x"].shape[2] // 2 + 1, a["x"].shape[3] * 2

    add("nearest", ops.interpolate(x, [high, wide], "floor", "asymmetric"), lambda a: f.interpolate(a["x"], size(a)))
    add("nearest exact", ops.interpolate(x, [7, 11]), lambda a: f.interpolate(a["x"], (7, 11), mode="nearest-exact"))
    for align in (False, True):
        corners = "align_corners" if align else "half_pixel"
        add(f"linear {align}", ops.interpolate(x, [high, wide], "linear", corners),
            lambda a, c=align: f.interpolate(a["x"], size(a), mode="bilinear", align_corners=c))
        add(f"cubic {align}", ops.interpolate(x, [high, 13], "cubic", corners),
            lambda a, c=align: f.interpolate(a["x"], (size(a)[0], 13), mode="bicubic", align_corners=c))
    add("by scales", ops.interpolate(y, [y.dims[2] * 3 // 2], "linear", scales=[1.5]),
        lambda a: f.interpolate(a["y"].float(), scale_factor=1.5, mode="linear").half())
    add("integers", ops.interpolate(i, [5], "floor", "asymmetric"), lambda a: f.interpolate(a["i"].double(), 5).int())
    checks.run(SHAPES)


def test_mistakes_are_named() -> None:
    g = ops.Graph()
    x = g.input("x", ["N", 4, "H", 2])
    with pytest.raises(ShapeError, match="a weight of 6"):
        ops.conv_transpose(x, g.input("w", [6, 3, 2, 2]))
    with pytest.raises(ShapeError, match=r"a window of 3 does not fit \[N, 4, H, 2\] on axis 3"):
        ops.max_pool2d(x, 3, 1, ceil_mode=True)
    with pytest.raises(ShapeError, match="1 sizes for the axes after the channels"):
        ops.adaptive_avg_pool(x, [1])
    with pytest.raises(OptionError, match="use nearest, nearest_left, floor, ceil, linear, cubic and half_pixel"):
        ops.interpolate(x, [1, 2], "area")
    with pytest.raises(OptionError, match="padding 'full'; wanted widths, 'valid', 'same' or 'same_lower'"):
        ops.max_pool2d(x, 2, padding="full")
    with pytest.raises(OptionError, match="padding 1 beside sizes"):
        ops.conv_transpose(x, g.input("v", [4, 3, 2, 2]), padding=1, sizes=[8, 8])
    with pytest.raises(ShapeError, match="sum_pool: the input has rank 2"):
        ops.sum_pool(ops.reshape(x, [-1, 2]), 2)
    with pytest.raises(OptionError, match="use ncdhw or ndhwc"):
        ops.conv3d(x, x, layout="nchw")


@pytest.mark.parametrize("call", [
    lambda x, w, **given: ops.conv2d(x, w, **given),
    lambda x, w, **given: ops.conv_transpose(x, w, **given),
    lambda x, w, **given: ops.avg_pool2d(x, 2, **given),
    lambda x, w, **given: ops.interpolate(x, [4, 4], **given),
], ids=["conv2d", "conv_transpose", "avg_pool2d", "interpolate"])
def test_unknown_keywords_are_refused(call: Callable[..., ops.Tensor]) -> None:
    """`strides=2` was left out without a word, and the window took steps of one."""
    g = ops.Graph()
    x, w = g.input("x", ["N", 4, "H", 2]), g.input("w", [4, 4, 1, 1])
    with pytest.raises(TypeError, match="unexpected keyword 'strides'; of such it takes"):
        call(x, w, strides=2)
