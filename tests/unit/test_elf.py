"""The object loader: code that LLVM makes runs, refers across objects and to libc, or is refused."""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.host.elf import UnsupportedObjectError, load_object

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="an x86-64 Linux loader"
)
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


@pytest.fixture(scope="module")
def assemble() -> Callable[[str], bytes]:
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), opt=3, reloc="pic", codemodel="small"
    )

    def build(text: str) -> bytes:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        return bytes(machine.emit_object(module))

    return build


def call(code: object, symbol: str, value: int) -> int:
    return int(SIGNATURE(code.address(symbol))(value))  # type: ignore[attr-defined]


def test_calls_across_objects_and_indirectly(assemble: Callable[[str], bytes]) -> None:
    first = assemble(
        "declare i64 @twice(i64)\n"
        "define i64 @f(i64 %x) {\n %y = call i64 @twice(i64 %x)\n %z = add i64 %y, 1\n ret i64 %z\n}"
    )
    second = assemble(
        "@table = internal constant [2 x ptr] [ptr @inner, ptr @other]\n"
        "define internal i64 @inner(i64 %x) noinline {\n %y = mul i64 %x, 2\n ret i64 %y\n}\n"
        "define internal i64 @other(i64 %x) noinline {\n %y = mul i64 %x, 5\n ret i64 %y\n}\n"
        "define i64 @twice(i64 %x) {\n %i = and i64 %x, 1\n"
        " %p = getelementptr ptr, ptr @table, i64 %i\n %g = load ptr, ptr %p\n"
        " %y = call i64 %g(i64 %x)\n ret i64 %y\n}"
    )
    code = load_object([first, second])
    assert call(code, "f", 20) == 41
    assert call(code, "f", 3) == 16


def test_variables_of_each_kind(assemble: Callable[[str], bytes]) -> None:
    code = load_object(
        [
            assemble(
                "@counter = global i64 7\n@zero = internal global [64 x i64] zeroinitializer, align 64\n"
                "@shared = external global i64\n"
                "define i64 @f(i64 %x) {\n %c = load i64, ptr @counter\n %n = add i64 %c, %x\n"
                " store i64 %n, ptr @counter\n"
                " %p = getelementptr i64, ptr @zero, i64 %x\n %z = load i64, ptr %p\n store i64 1, ptr %p\n"
                " %s = load i64, ptr @shared\n %r = add i64 %n, %z\n %r2 = add i64 %r, %s\n ret i64 %r2\n}"
            ),
            assemble("@shared = global i64 1000"),
        ]
    )
    assert call(code, "f", 1) == 1008
    assert call(code, "f", 1) == 1010


def test_libm_and_constant_pools(assemble: Callable[[str], bytes]) -> None:
    code = load_object(
        [
            assemble(
                "declare double @exp(double)\ndeclare i32 @pthread_self()\n"
                "define double @f(double %x) {\n %y = call double @exp(double %x)\n"
                " %z = fmul double %y, 3.25\n ret double %z\n}"
            )
        ]
    )
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.address("f"))(1.5) == math.exp(1.5) * 3.25


def test_a_switch_table(assemble: Callable[[str], bytes]) -> None:
    cases = " ".join(f"i64 {i}, label %c{i}" for i in range(8))
    blocks = "\n".join(f"c{i}:\n %r{i} = call i64 @g(i64 {i * i + 1})\n ret i64 %r{i}" for i in range(8))
    code = load_object(
        [
            assemble(
                "define internal i64 @g(i64 %x) noinline {\n %y = add i64 %x, 0\n ret i64 %y\n}\n"
                f"define i64 @f(i64 %x) {{\n switch i64 %x, label %d [{cases}]\n{blocks}\nd:\n ret i64 -1\n}}"
            )
        ]
    )
    assert [call(code, "f", i) for i in range(9)] == [1, 2, 5, 10, 17, 26, 37, 50, -1]


def test_weak_definitions_give_way(assemble: Callable[[str], bytes]) -> None:
    weak = assemble("define weak i64 @f(i64 %x) {\n ret i64 1\n}")
    strong = assemble("define i64 @f(i64 %x) {\n ret i64 2\n}")
    assert call(load_object([weak, strong]), "f", 0) == 2
    assert call(load_object([weak, weak]), "f", 0) == 1
    with pytest.raises(DeviceError, match="symbol f is defined by two objects"):
        load_object([strong, strong])


def test_undefined_symbols_are_named(assemble: Callable[[str], bytes]) -> None:
    with pytest.raises(DeviceError, match="no_such_function"):
        load_object(
            [
                assemble(
                    "declare i64 @no_such_function(i64)\n"
                    "define i64 @f(i64 %x) {\n %y = call i64 @no_such_function(i64 %x)\n ret i64 %y\n}"
                )
            ]
        )


def test_what_it_does_not_know_is_unsupported(assemble: Callable[[str], bytes]) -> None:
    with pytest.raises(UnsupportedObjectError):
        load_object(
            [
                assemble(
                    "@t = thread_local global i64 0\ndefine i64 @f(i64 %x) {\n %c = load i64, ptr @t\n ret i64 %c\n}"
                )
            ]
        )
    with pytest.raises(UnsupportedObjectError, match="not a 64-bit"):
        load_object([b"nonsense"])
    with pytest.raises(UnsupportedObjectError, match="truncated"):
        load_object([assemble("define i64 @f(i64 %x) {\n ret i64 %x\n}")[:-80]])
    with pytest.raises(UnsupportedObjectError, match="truncated"):
        load_object([assemble("define i64 @f(i64 %x) {\n ret i64 %x\n}")[:20]])


def test_unknown_function_is_a_key_error_and_code_dies_with_its_owner(assemble: Callable[[str], bytes]) -> None:
    code = load_object([assemble("define i64 @f(i64 %x) {\n ret i64 %x\n}")])
    address = code.address("f")
    with pytest.raises(KeyError):
        code.address("g")
    assert permissions(address) == "r-xp"
    del code
    gc.collect()
    assert permissions(address) is None


def permissions(address: int) -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, *_ = line.split()
        first, last = (int(x, 16) for x in span.split("-"))
        if first <= address < last:
            return flags
    return None


def test_a_kernel_lies_at_its_own_place_in_a_page(assemble: Callable[[str], bytes]) -> None:
    kernels = [assemble(f"define i64 @k{n}(i64 %x) {{\n %y = mul i64 %x, {n + 3}\n %z = add i64 %y, {n}\n ret i64 %z\n}}")
               for n in range(8)]  # fmt: skip
    other = assemble("define i64 @f(i64 %x) {\n %y = add i64 %x, 1\n ret i64 %y\n}")
    alone = [load_object([], [kernel]) for kernel in kernels]
    together = load_object([other, other.replace(b"\x00f\x00", b"\x00g\x00")], kernels[::-1])
    places = [code.address(f"k{n}") % mmap.PAGESIZE for n, code in enumerate(alone)]
    assert [together.address(f"k{n}") % mmap.PAGESIZE for n in range(8)] == places
    assert all(place % 64 == 0 and 512 <= place < 2560 for place in places)
    assert len(set(places)) > 4
    assert [call(together, f"k{n}", 5) for n in range(8)] == [5 * (n + 3) + n for n in range(8)]
    assert call(together, "f", 1) == call(together, "g", 1) == 2
