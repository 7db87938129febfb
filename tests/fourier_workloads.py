"""Transforms as the sums of their definition, as MLIR and in NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kernel_harness import T, filled, workload


@dataclass(frozen=True)
class Case:
    """A transform of `size` elements of which `given` are; the first `bins` results, of them `parts` parts.

    sign: of the exponents. both: has the input an imaginary part? columns: of an axis behind that of the transform, along which
    vectors run then; 0: there is none, and elements of a row lie side by side.
    """

    size: int
    given: int
    bins: int
    sign: int = -1
    both: bool = True
    parts: int = 2
    columns: int = 0
    element: str = "f32"

    def text(self) -> str:
        """`[rows, given(, columns)]` to `[rows, parts, bins(, columns)]`, without the parts where there is one."""
        behind = (self.columns,) if self.columns else ()
        x = T(self.element, ("M", self.given, *behind))
        y = T(self.element, ("M", *((2,) if self.parts == 2 else ()), self.bins, *behind))
        rows, columns = ("d0, d3", ", d4") if self.columns else ("d0, d3", "")
        loops = "d0, d1, d2, d3" + columns
        read, out = f"{rows}{columns}", f"d0{', d1' if self.parts == 2 else ''}, d2{columns}"
        if self.parts == 1:
            loops, read, out = "d0, d1, d2" + (", d3" if columns else ""), "d0, d2" + (", d3" if columns else ""), \
                "d0, d1" + (", d3" if columns else "")
        operands = ["x", "z"][: 1 + self.both]
        maps = ", ".join(f"affine_map<({loops}) -> ({m})>" for m in (*[read] * len(operands), out))
        over, along = (3, 2) if self.parts == 2 else (2, 1)
        kinds = ", ".join('"reduction"' if d == over else '"parallel"' for d in range(len(loops.split(","))))
        n, e = self.size, self.element
        part = "%p = linalg.index 1 : index" if self.parts == 2 else "%p = arith.constant 0 : index"
        terms = []
        for number in range(len(operands)):
            ahead = 0 if number == 0 else 3 if self.sign < 0 else 1
            terms.append(f"""
                %ahead{number} = arith.constant {ahead * n} : index
                %all{number} = arith.addi %turned, %ahead{number} : index
                %turn{number} = arith.remsi %all{number}, %whole : index
                %wide{number} = arith.index_cast %turn{number} : index to i64
                %number{number} = arith.sitofp %wide{number} : i64 to {e}
                %angle{number} = arith.mulf %number{number}, %quarter : {e}
                %cosine{number} = math.cos %angle{number} : {e}
                %term{number} = arith.mulf %in{number}, %cosine{number} : {e}
                %sum{number} = arith.addf %{'out' if number == 0 else 'sum0'}, %term{number} : {e}""")
        arguments = ", ".join(f"%in{i}: {e}" for i in range(len(operands)))
        body = f"""{filled("start", y, "0.0")}
            %y = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
                ins({", ".join("%" + o for o in operands)} : {", ".join([x.type()] * len(operands))})
                outs(%start : {y.type()}) {{
              ^bb0({arguments}, %out: {e}):
                %n = linalg.index {over} : index
                %k = linalg.index {along} : index
                {part}
                %four = arith.constant 4 : index
                %whole = arith.constant {4 * n} : index
                %ahead = arith.constant {n if self.sign < 0 else 3 * n} : index
                %quarter = arith.constant {np.pi / 2 / n!r} : {e}
                %nk = arith.muli %n, %k : index
                %fournk = arith.muli %nk, %four : index
                %shift = arith.muli %p, %ahead : index
                %turned = arith.addi %fournk, %shift : index
                {"".join(terms)}
                linalg.yield %sum{len(operands) - 1} : {e}
            }} -> {y.type()}"""
        return workload(dict.fromkeys(operands, x), ("M",), body, {"y": y})

    def wanted(self, x: np.ndarray, z: np.ndarray | None) -> np.ndarray:
        """By NumPy in f64."""
        whole = x.astype(np.complex128) + (0 if z is None else 1j * z.astype(np.float64))
        padded = np.zeros((x.shape[0], self.size, *x.shape[2:]), np.complex128)
        padded[:, : self.given] = whole
        found = np.fft.fft(padded, axis=1) if self.sign < 0 else np.fft.ifft(padded, axis=1) * self.size
        found = found[:, : self.bins]
        return np.stack([found.real, found.imag], 1) if self.parts == 2 else found.real
