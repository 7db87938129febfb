"""Environment variables: typed, read when asked for, named in errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime import knobs
from tilewright.runtime.errors import OptionError
from tilewright.runtime.host.host_cpu import affinity, thread_count


def test_unset_and_empty_give_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    assert knobs.THREADS.get() is None
    monkeypatch.setenv("TILEWRIGHT_THREADS", " ")
    assert knobs.THREADS.get() is None


def test_read_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (3, 5):
        monkeypatch.setenv("TILEWRIGHT_THREADS", str(value))
        assert knobs.THREADS.get() == value


@pytest.mark.parametrize(
    ("text", "value"), [("512", 512), ("64K", 65536), ("1.5M", 3 << 19), ("2g", 2 << 30), ("1T", 1 << 40), ("0", 0)]
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", text)
    assert knobs.CACHE_BYTES.get() == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("THREADS", "0"),
        ("THREADS", "two"),
        ("WORKERS", "-1"),
        ("CACHE_BYTES", "-1"),
        ("CACHE_BYTES", "5Q"),
        ("BUILD_SECONDS", "0"),
        ("BUILD_SECONDS", "inf"),
        ("BUILD_SECONDS", "nan"),
        ("DEBUG", "yes"),
    ],
)
def test_a_bad_value_names_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"TILEWRIGHT_{name}", text)
    with pytest.raises(OptionError, match=f"TILEWRIGHT_{name}={text!r}: wanted"):
        getattr(knobs, name).get()


def test_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~/x")
    assert knobs.CACHE_DIR.get() == Path("~/x").expanduser()


def test_the_table_has_every_knob() -> None:
    knob_objects = [k for k in vars(knobs).values() if isinstance(k, knobs.Knob)]
    rows = knobs.table()
    assert sorted(row[0] for row in rows) == sorted(k.name for k in knob_objects)
    assert all(all(row) for row in rows)


def test_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    assert thread_count() == affinity()
    assert thread_count(1) == 1
    assert thread_count(10_000) == affinity()
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    assert thread_count(8) == 1
