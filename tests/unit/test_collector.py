"""The pause of Python's cyclic collector."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tilewright.runtime.collector import collector_paused


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


@contextmanager
def paused_by_another_thread() -> Iterator[None]:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with collector_paused():
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    assert entered.wait(10)
    yield
    leave.set()
    other.join()


def test_it_is_off_within_and_on_after_an_error():
    with pytest.raises(KeyError), collector_paused(), collector_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_it_comes_back_when_the_last_of_two_threads_is_done():
    with ExitStack() as other:
        with collector_paused():
            other.enter_context(paused_by_another_thread())
        assert not gc.isenabled()
    assert gc.isenabled()


def test_one_that_is_off_stays_off():
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_within_a_pause_of_another_thread_collects():
    with paused_by_another_thread():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_within_a_pause_leaves_it_and_pauses_again():
    seen = []
    with collector_paused():
        child = os.fork()
        seen.append(gc.isenabled())
    if not child:
        seen.append(gc.isenabled())
        with collector_paused():
            seen.append(gc.isenabled())
        seen.append(gc.isenabled())
        os._exit(0 if seen == [True, True, False, True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen == [False] and gc.isenabled()


def test_a_compile_leaves_it_on():
    import tilewright as tw
    from tilewright.compiler import ops

    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["T", 8])))
    seen = []
    tw.compile(g, {"T": tw.Dim(1, 9)}, options=tw.CompileOptions(callback=lambda *a: seen.append(gc.isenabled())))
    assert seen and not any(seen)
    assert gc.isenabled()
