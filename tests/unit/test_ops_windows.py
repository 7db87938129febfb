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
    x, w, g, d, b, y, k, k2, z, t, tb, v = (checks[n] for n in ("x", "w", "g", "d", "b", "y", "k", "k2", "z", "t", "tb", "v"))
    add("conv3d", ops.conv3d(x, w, b, stride=2, padding=1), lambda a: f.conv3d(a["x"], a["w"], a["b"], 2, 1))
    add("conv3d in groups", ops.conv3d(x, g, dilation=(1, 1, 2), padding=(0, 1, 2), groups=2),
        lambda a: f.conv3d(a["x"], a["g"], None, 1, (0, 1, 2), (1, 1, 2), 2))
    add("conv3d by channel", ops.conv3d(x, d, groups=4), lambda a: f.conv3d(a["x"], a["d"], groups=4))
    add("conv2d, same", ops.conv2d(z, ops.transpose(ops.narrow(t, 1, 0, 2), (1, 0, 2, 3)), padding=((0, 1), z.dims[3] * 0 + 1)),
        lambda a: f.conv2d(a["z"], a["t"][:, :2].transpose(0, 1), padding="same"))
    add("transposed 1d", ops.conv_transpose(y, k, stride=3, padding=1, output_padding=2),
        lambda a: f.conv_transpose1d(a["y"], a["k"], None, 3, 1, 2))
    add("transposed 1d in groups", ops.conv_transpose(y, k2, groups=2, stride=2, dilation=2),
        lambda a: f.conv_transpose1d(a["y"], a["k2"], stride=2, groups=2, dilation=2))
    add("transposed 2d", ops.conv_transpose(z, t, tb, stride=(2, 1), padding=(2, 1)),
        lambda a: f.conv_transpose2d(a["z"], a["t"], a["tb"], (2, 1), (2, 1)))
    add("transposed 3d", ops.conv_transpose(x, v, stride=2), lambda a: f.conv_transpose3d(a["x"], a["v"], stride=2))
    checks.evaluate(SHAPES)


def test_pooling() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    checks, add = checks_of({"x": Given(["N", 2, "H", "W"]), "y": Given(["N", 2, "H"]), "z": Given(["N", 2, 5, "H", "W"])}, torch)
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
    with pytest.raises(OptionError, match="use nearest, floor, linear, cubic and half_pixel"):
        ops.interpolate(x, [1, 2], "area")
    with pytest.raises(OptionError, match="use ncdhw or ndhwc"):
        ops.conv3d(x, x, layout="nchw")
