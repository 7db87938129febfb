"""The workspace of a Fourier transform on the host, and its steps there.

A step of radix r takes blocks of L elements to r of L / r each (decimation in frequency, in place; Cooley and Tukey, 1965):

    y_c[q] = e^(s 2 pi i q c / L) sum over j of x[q + j L / r] e^(s 2 pi i j c / r)

so that what follows of y_c are the results k with k mod r = c, and result k ends at the place whose digits are those of k the
other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.passes.codegen.emit import Memory, byte_width, constant, loop
from tilewright.passes.codegen.host_kernel import HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.families.host.fourier_butterflies import Value, transform
from tilewright.passes.mlir import ir, llvm
from tilewright.passes.spaces.host.fourier_steps import radices
from tilewright.runtime.limits import LINE

_NEAR = 24 << 10  # bytes of two planes that stay in the nearest cache beside the tables
_SPREAD = 64  # vectors behind which one is left out, so that elements a power of two apart lie in several sets of the cache


def room(size: int) -> int:
    """Vectors of a plane; one more than it has elements."""
    return size + size // _SPREAD + 1


@dataclass(frozen=True)
class Planes:
    """Real and imaginary parts of `size` elements: a vector each, of `lanes` rows. sign: of the transform's exponents."""

    kernel: HostKernel
    workspace: ir.Value
    element: ir.Type
    lanes: int
    size: int
    sign: int
    name: str

    def load(self, part: int, element: Index) -> ir.Value:
        return self._plane(part).load([self._at(element)])

    def store(self, part: int, element: Index, value: ir.Value) -> None:
        self._plane(part).store(value, [self._at(element)])

    def table(self, name: str, values: np.ndarray, element: ir.Type) -> Memory:
        """Numbers that stand in the code."""
        symbol, count = f"{self.kernel.symbol}_{self.name}_{name}", values.size
        listed = ", ".join(map(repr, values.tolist()))
        text = f"""llvm.mlir.global internal constant @{symbol}(dense<[{listed}]> : tensor<{count}x{element}>)
            {{addr_space = 0 : i32, alignment = {LINE} : i64}} : !llvm.array<{count} x {element}>"""
        parsed = ir.Module.parse(text)
        self.kernel.module.body.append(next(iter(parsed.body.operations)).operation.clone())
        at = llvm.AddressOfOp(ir.Type.parse("!llvm.ptr"), ir.FlatSymbolRefAttr.get(symbol)).result
        return Memory(at, element, (Index(count),), (Index(1),), self.kernel.index)

    def turns(self, name: str, angles: np.ndarray, by: float = 1.0) -> Callable[[Index], tuple[ir.Value, ir.Value]]:
        """Cosine and sine, `by` times, of the angle of a number, in all lanes."""
        table = self.table(name, by * np.stack([np.cos(angles), np.sin(angles)], -1).ravel(), self.element)

        def pair(number: Index) -> tuple[ir.Value, ir.Value]:
            cosine, sine = (splat_to(table.load([number * 2 + n]), self.lanes) for n in range(2))
            return cosine, sine

        return pair

    def places(self) -> np.ndarray:
        """Where the steps leave each result."""
        found, rest, block = np.zeros(self.size, np.int64), np.arange(self.size), self.size
        for radix in self._radices():
            block //= radix
            found += rest % radix * block
            rest //= radix
        return found

    def transform(self, real: bool) -> None:
        """All steps. real: is the plane of the imaginary parts taken for zeros?"""
        self._rest(Index(0), self.size, self._radices(), real)

    def _radices(self) -> Sequence[int]:
        found = radices(self.size)
        assert found is not None
        return found

    def _plane(self, part: int) -> Memory:
        count = room(self.size) * self.lanes
        pointer = self.kernel.offset_pointer(self.workspace, Index(part * count), byte_width(self.element))
        return Memory(pointer, self.element, (Index(count),), (Index(1),), self.kernel.index)

    def _at(self, element: Index) -> Index:
        """Where the vector of an element lies."""
        spread = element if self.size <= _SPREAD else element + element // _SPREAD
        return Index.ramp(spread * self.lanes, self.lanes)

    def _spaced(self, first: Index, count: int, apart: int, together: bool) -> list[Index]:
        """Where elements lie that are so far apart. together: do they lie in a block that divides _SPREAD?"""
        if self.size > _SPREAD and not together and apart % _SPREAD:
            return [self._at(first + j * apart) for j in range(count)]
        gaps = apart if together or self.size <= _SPREAD else apart + apart // _SPREAD
        return [self._at(first) + j * gaps * self.lanes for j in range(count)]

    def _rest(self, first: Index, block: int, left: Sequence[int], real: bool) -> None:
        """All steps of the elements [first, first + block): one after the other where these fit the nearest cache, else one, and
        then those of each of its blocks."""
        if 2 * block * self.lanes * byte_width(self.element) <= _NEAR:
            each = block
            for number, radix in enumerate(left):
                self._blocks(first, block, each, self._stepped(each, radix, real and number == 0))
                each //= radix
            return
        self._stepped(block, left[0], real)(first)
        each = block // left[0]
        self._blocks(first, block, each, lambda at: self._rest(at, each, left[1:], False))

    def _blocks(self, first: Index, size: int, each: int, body: Callable[[Index], None]) -> None:
        if size == each:
            body(first)
        else:
            loop(0, size, each, lambda at: body(first + at), index=self.kernel.index)

    def _stepped(self, block: int, radix: int, real: bool) -> Callable[[Index], None]:
        """What takes a step with a block, from its first element on."""
        each, planes = block // radix, [self._plane(0), self._plane(1)]
        angles = np.outer(np.arange(each), np.arange(1, radix)) * (self.sign * 2 * np.pi / block)
        turns = self.turns(f"turns{block}", angles) if each > 1 else None

        def butterfly(first: Index, q: Index) -> None:
            places = self._spaced(first + q, radix, each, _SPREAD % block == 0)
            given = [Value(planes[0].load([at]), None if real else planes[1].load([at])) for at in places]
            for c, (at, value) in enumerate(zip(places, transform(given, self.sign), strict=True)):
                turned = value.turned(*turns(q * (radix - 1) + (c - 1))) if c and turns is not None else value
                planes[0].store(turned.real, [at])
                planes[1].store(constant(self.element, 0.0, self.lanes) if turned.imag is None else turned.imag, [at])

        def step(first: Index) -> None:
            if each == 1:
                butterfly(first, Index(0))
            else:
                loop(0, each, 1, lambda q: butterfly(first, q), index=self.kernel.index)

        return step
