"""LlvmText: writes the body of one LLVM function as text, for code that no MLIR dialect describes better."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.runtime.shape import Atom, Expr

Value = str  # an SSA name or a literal


class LlvmText:
    """Collects instructions. A condition that does not hold leaves for the block `way_out`."""

    def __init__(self, way_out: str) -> None:
        self.lines: list[str] = []
        self._way_out = way_out
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def value(self, text: str) -> Value:
        """The result of an instruction."""
        name = self.name()
        self.lines.append(f"  %{name} = {text}")
        return f"%{name}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def at(self, base: Value, offset: Value | int) -> Value:
        """base + offset bytes."""
        return base if offset in (0, "0") else self.value(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, base: Value, offset: Value | int, type_: str) -> Value:
        return self.value(f"load {type_}, ptr {self.at(base, offset)}")

    def store(self, value: Value, type_: str, base: Value, offset: Value | int) -> None:
        self.do(f"store {type_} {value}, ptr {self.at(base, offset)}")

    def require(self, holds: Value) -> None:
        """Go on where an i1 is true."""
        on = self.name()
        self.do(f"br i1 {holds}, label %{on}, label %{self._way_out}")
        self.label(on)

    def require_equal(self, a: Value | int, b: Value | int, type_: str = "i64") -> None:
        if a != b:
            self.require(self.value(f"icmp eq {type_} {a}, {b}"))

    def require_between(self, low: int, value: Value, high: int) -> None:
        """Go on where low <= value <= high."""
        self.require(self.value(f"icmp sge i64 {value}, {low}"))
        self.require(self.value(f"icmp sle i64 {value}, {high}"))

    def expr(self, expr: Expr, dims: Mapping[str, Value]) -> Value:
        """A size as i64. A division by zero leaves; overflow is the caller's to exclude (`fits`)."""
        total: Value = "0"
        for factors, coefficient in expr.terms:
            product: Value = str(coefficient)
            for atom in factors:
                found = self._atom(atom, dims)
                product = found if product == "1" else self.value(f"mul i64 {product}, {found}")
            total = product if total == "0" else self.value(f"add i64 {total}, {product}")
        return total

    def _atom(self, atom: Atom, dims: Mapping[str, Value]) -> Value:
        if atom.op == "dim":
            return dims[atom.name]
        a, b = (self.expr(x, dims) for x in atom.args)
        if atom.op in ("min", "max"):
            return self.value(f"call i64 @llvm.s{atom.op}.i64(i64 {a}, i64 {b})")
        self.require(self.value(f"icmp ne i64 {b}, 0"))
        quotient = self.value(f"sdiv i64 {a}, {b}")
        rest = self.value(f"srem i64 {a}, {b}")
        uneven = self.value(f"icmp ne i64 {rest}, 0")
        signs = self.value(f"xor i64 {rest}, {b}")
        apart = self.value(f"icmp slt i64 {signs}, 0")
        down = self.value(f"and i1 {uneven}, {apart}")
        if atom.op == "mod":
            return self.value(f"add i64 {rest}, {self.value(f'select i1 {down}, i64 {b}, i64 0')}")
        return self.value(f"sub i64 {quotient}, {self.value(f'zext i1 {down} to i64')}")

    def estimate(self, expr: Expr, dims: Mapping[str, Value]) -> Value:
        """About the value, as double: divisions do not round, a remainder is half its divisor."""
        total: Value = "0.0"
        for factors, coefficient in expr.terms:
            product: Value = f"{float(coefficient):e}"
            for atom in factors:
                product = self.value(f"fmul double {product}, {self._rough(atom, dims)}")
            total = self.value(f"fadd double {total}, {product}")
        return total

    def _rough(self, atom: Atom, dims: Mapping[str, Value]) -> Value:
        if atom.op == "dim":
            return self.value(f"sitofp i64 {dims[atom.name]} to double")
        a, b = (self.estimate(x, dims) for x in atom.args)
        if atom.op == "floordiv":
            return self.value(f"fdiv double {a}, {b}")
        if atom.op == "mod":
            return self.value(f"fmul double {b}, 0.5")
        less = self.value(f"fcmp {'olt' if atom.op == 'min' else 'ogt'} double {a}, {b}")
        return self.value(f"select i1 {less}, double {a}, double {b}")


def fits(expr: Expr, highest: Mapping[str, int]) -> bool:
    """Does no step of `LlvmText.expr` leave 63 bits while every dim is between 0 and its highest value?"""
    return _magnitude(expr, highest) < 1 << 62


def _magnitude(expr: Expr, highest: Mapping[str, int]) -> int:
    """No absolute value of the expression, nor of any step to it, is larger."""
    total = 0
    for factors, coefficient in expr.terms:
        product = abs(coefficient)
        for atom in factors:
            parts = [highest[atom.name]] if atom.op == "dim" else [_magnitude(x, highest) for x in atom.args]
            product *= max(1, *parts)
        total += product
    return total
