"""Peers of products with weights in few bits: torch's f16 product of the decoded weights, torch's kernel for 4 bits (tinygemm, of
bf16), and ours in Triton. Each is a call and its operands; on a CPU torch has other kernels of the same arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tools.bench.gpu.codes_cases import PERIOD, CodesCase

Call = Callable[..., Any]
Sets = list[tuple[Any, ...]]
PEERS = ("torch", "torch int4", "triton")
_TILES, _GROUPS = 8, (32, 64, 128, 256)  # of torch's kernel: tiles of k in its layout, and what groups it takes
_MIDDLE = 8.0
_MOST_ROWS = 16  # of the Triton kernel: what it compiles for more takes longer than the rest of the benchmark


class Operands:
    """Of a case on a device: x of some rows, the wanted result in f64, and the weights as each peer wants them."""

    def __init__(self, torch: Any, case: CodesCase, device: str = "cuda") -> None:
        self.torch, self.case, self.device = torch, case, device
        self.element = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[case.element]
        self._rows = torch.arange(case.n, device=device) % PERIOD

    def x(self, rows: int) -> Any:
        made = self.torch.Generator(self.device).manual_seed(rows)
        return self.torch.randn((rows, self.case.k), generator=made, device=self.device).to(self.element)

    def wanted(self, x: Any) -> Any:
        """x by the decoded weights, in f64."""
        return (x.double() @ self._placed(self.case.weight).double().T)[:, self._rows]

    def plain(self) -> Any:
        """Decoded weights [n, k] of f16, or of bf16 where x is."""
        kind = self.element if self.case.element == "bf16" else self.torch.float16
        return self.whole(self.case.weight).to(kind)

    def whole(self, rows: np.ndarray[Any, Any]) -> Any:
        """All n rows of those that differ."""
        return self._placed(rows)[self._rows].contiguous()

    def _placed(self, rows: np.ndarray[Any, Any]) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)

    def tiled(self) -> tuple[Any, Any]:
        """Codes as torch's kernel has them, and scales with zero points, [groups, n, 2]: a value is code - 8 times the scale, and
        the zero point more."""
        case, torch = self.case, self.torch
        codes = self.whole(case.integers)
        if self.device == "cpu":
            held = torch._convert_weight_to_int4pack_for_cpu(codes.int(), _TILES)
        else:
            held = torch._convert_weight_to_int4pack((codes[:, ::2] << 4 | codes[:, 1::2]).contiguous(), _TILES)
        scale = self.whole(case.rows_of("scale").astype(np.float32))
        zero = (_MIDDLE - self.whole(case.rows_of("zero")).float()) * scale if case.zero else torch.zeros_like(scale)
        return held, torch.stack([scale, zero], -1).transpose(0, 1).contiguous().to(torch.bfloat16)

    def paired(self) -> Any:
        """Operands of triton_codes.matmul."""
        from tools.bench.gpu.triton_codes import Codes, laid_out

        case = self.case
        zeros = self.whole(case.rows_of("zero")).to(self.element) if case.zero else None
        scales = self.whole(case.rows_of("scale")).to(self.element)
        return Codes(laid_out(self.whole(case.integers)), scales, zeros, case.group)


class Peers:
    """The systems of a case, with operands for `count` calls that share no memory. timer: seconds of a call over such sets, by
    which a form of the Triton kernel is chosen."""

    def __init__(self, operands: Operands, count: int, timer: Callable[[Call, Sets], float],
                 wanted: Sequence[str] = PEERS) -> None:
        self.operands, self.count, self.timer = operands, count, timer
        case = operands.case
        small = not case.entries and case.bits == 4
        self.failed = dict[str, str]()
        self._weights = dict[str, list[Any]]()
        fits = {"torch": True, "torch int4": small and case.group in _GROUPS, "triton": small and case.element != "f32"}
        makers: Mapping[str, Callable[[], Any]] = {"torch": operands.plain, "torch int4": operands.tiled,
                                                   "triton": operands.paired}
        for name in wanted:
            if fits[name]:
                try:
                    self._weights[name] = [makers[name]() for _ in range(count)]
                except (RuntimeError, ImportError, AttributeError, TypeError) as error:
                    self.failed[name] = _told(error)

    def systems(self, x: Any) -> dict[str, tuple[Call, Sets]]:
        """System -> its call and sets of operands, for these rows."""
        torch, case, found = self.operands.torch, self.operands.case, dict[str, tuple[Call, list[tuple[Any, ...]]]]()
        for name, weights in self._weights.items():
            if name == "torch":
                left = x if x.dtype == weights[0].dtype else x.to(weights[0].dtype)
                found[name] = torch.nn.functional.linear, [(left, w) for w in weights]
            elif name == "torch int4":
                product = torch._weight_int4pack_mm if x.is_cuda else torch._weight_int4pack_mm_for_cpu
                left = x.to(torch.bfloat16)
                found[name] = functools.partial(_tiled, product, case.group), [(left, *w) for w in weights]
            elif len(x) <= _MOST_ROWS:
                sets: Sets = [(x, w) for w in weights]
                try:
                    found[name] = self._by_triton(sets), sets
                except (RuntimeError, TypeError, ValueError) as error:
                    self.failed[name] = _told(error)
        return found

    def _by_triton(self, sets: Sets) -> Call:
        from tools.bench.gpu.triton_codes import best_form, matmul

        best = best_form(sets[0][1], lambda form: self.timer(functools.partial(matmul, form=form), sets))
        return functools.partial(matmul, form=best)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _tiled(product: Call, group: int, x: Any, codes: Any, scales: Any) -> Any:
    return product(x, codes, group, scales)
