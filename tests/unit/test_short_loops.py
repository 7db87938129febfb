"""Which launches of a short loop are its caller's alone, told how long each took."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from tilewright.compiler.builder.codegen import compile_object
from tilewright.runtime.device import LoadedCode
from tilewright.runtime.host.cpu import load_native
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.short_loops import short_loops_ir
from tilewright.runtime.target import Target

THREADS, UNITS = 2, 16
SOON = 1000  # launches within which first trials that went wrong are made good for

# launch: is this launch for the caller alone? Then tell alone or crew how long it took; helped: did others run a part?
DRIVER = """
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
define i64 @launch(ptr %entry) {
  %own = call i1 @alone(ptr %entry, i64 77, i64 16, i64 2)
  %found = zext i1 %own to i64
  ret i64 %found
}
define void @tell_alone(ptr %entry, i64 %ticks) {
  call void @remember_alone(ptr %entry, i64 %ticks, i64 16)
  ret void
}
define void @tell_crew(ptr %entry, i64 %ticks, i64 %helped) {
  call void @remember(ptr %entry, i64 77, i64 %ticks, i64 2, i64 16, i64 %helped)
  ret void
}
define ptr @entry(ptr %kernel, i64 %units) {
  %key = call i64 @key_of(ptr %kernel, i64 %units)
  %found = call ptr @entry_of(i64 %key)
  ret ptr %found
}
"""
Launches = Callable[[int, int, int, bool], list[bool]]


@pytest.fixture
def code() -> LoadedCode:
    if machine() != "x86_64":
        pytest.skip("no clock that a thread reads at once: no loop is short")
    return load_native([compile_object(short_loops_ir(machine()) + DRIVER, Target.parse("host"))])


@pytest.fixture
def launches(code: LoadedCode) -> Iterator[Launches]:
    """launches(count, ticks alone, ticks of all, do others come) gives whose each of so many launches was."""
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    launch = ctypes.CFUNCTYPE(word, pointer)(code.address("launch"))
    alone = ctypes.CFUNCTYPE(None, pointer, word)(code.address("tell_alone"))
    crew = ctypes.CFUNCTYPE(None, pointer, word, word)(code.address("tell_crew"))
    entry = (word * 8)()

    def run(count: int, own: int, together: int, helped: bool) -> list[bool]:
        found = []
        for _ in range(count):
            found.append(bool(launch(entry)))
            if found[-1]:
                alone(entry, own)
            else:
                crew(entry, together, helped)
        return found

    yield run


def test_the_faster_way_is_taken(launches: Launches) -> None:
    assert not any(launches(250, 10_000, 6_000, True)[90:])
    assert sum(launches(30_000, 10_000, 16_000, True)[2_000:]) > 27_000


def test_trials_become_seldom(launches: Launches) -> None:
    """Others take longer: a launch is theirs in trials alone."""
    found = launches(60_000, 5_000, 6_000, True)
    assert 0.8 < sum(found[:2_000]) / 2_000 < 0.95 and sum(found[20_000:]) / 40_000 > 0.99


def test_trials_that_were_disturbed_are_repeated_soon(launches: Launches) -> None:
    launches(100, 10_000, 16_000, True)
    assert all(launches(100, 10_000, 6_000, True))
    assert sum(launches(SOON, 10_000, 6_000, True)[SOON // 2:]) < SOON // 20


def test_launches_without_help_are_no_trials(launches: Launches) -> None:
    """Threads that are being woken: nothing is decided before they are there."""
    launches(300, 10_000, 10_000, False)
    assert not any(launches(60, 10_000, 6_000, True)) and not any(launches(200, 10_000, 6_000, True)[20:])


def test_a_loop_that_is_no_longer_short_is_for_all(launches: Launches) -> None:
    assert all(launches(150, 5_000, 6_000, True)[80:])
    assert not any(launches(50, 90_000, 50_000, True)[1:])


def test_kernels_at_the_same_place_of_their_pages_have_entries_of_their_own(code: LoadedCode) -> None:
    """A loader puts code at few places within pages (elf.py); as many kernels as a large model has."""
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.address("entry"))
    for begin, apart in ((0x7F12_3450_0200, 0x1000), (0x5555_5555_0840, 0x3000), (0x7FFF_0000_0200, 0x20_1000)):
        found = {entry(begin + n * apart, units) for n in range(100) for units in (7, 100)}
        assert len(found) > 150
