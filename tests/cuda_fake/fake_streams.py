"""Streams, events, captures and graphs of the fake driver."""

from __future__ import annotations

import ctypes

from cuda_fake.fake_state import (
    CAPTURE_UNSUPPORTED,
    CONTEXT_BASE,
    INVALID_HANDLE,
    Event,
    FakeError,
    FakeState,
    Graph,
    Stream,
    entry,
    put,
)

_INVALIDATED, _NOT_READY = 901, 600


class StreamCalls(FakeState):
    """What orders work."""

    @entry("cuStreamCreateWithPriority", "pui")
    def stream_create(self, out: int, flags: int, priority: int) -> None:
        handle = self.new("stream")
        self._streams[handle] = Stream(self.device(), next(self._numbers))
        put(out, handle)

    @entry("cuStreamDestroy", "p")
    def stream_destroy(self, stream: int) -> None:
        self.drain(self.stream(stream))
        del self._streams[stream]

    @entry("cuStreamSynchronize", "p")
    def stream_synchronize(self, stream: int | None) -> None:
        found = self.stream(stream)
        if found.capture is not None:
            found.capture.broken = True
            raise FakeError(CAPTURE_UNSUPPORTED)
        self.drain(found)

    @entry("cuStreamQuery", "p")
    def stream_query(self, stream: int | None) -> int:
        return _NOT_READY if self.stream(stream).queue else 0

    @entry("cuCtxSynchronize", "")
    def context_synchronize(self) -> None:
        """A capture on any of its streams is lost."""
        captures = [s.capture for s in self._streams.values() if s.capture is not None]
        for capture in captures:
            capture.broken = True
        if captures:
            raise FakeError(CAPTURE_UNSUPPORTED)
        for stream in list(self._streams.values()):
            self.drain(stream)

    @entry("cuStreamGetCtx", "pp")
    def stream_context(self, stream: int | None, out: int) -> None:
        put(out, CONTEXT_BASE + self.stream(stream).device)

    @entry("cuStreamGetDevice", "pp")
    def stream_device(self, stream: int | None, out: int) -> None:
        put(out, self.stream(stream).device, ctypes.c_int)

    @entry("cuStreamGetId", "pp")
    def stream_id(self, stream: int | None, out: int) -> None:
        """As driver 580 has it: a stream that is being captured does not tell, and the capture is lost."""
        found = self.stream(stream)
        if found.capture is not None:
            found.capture.broken = True
            raise FakeError(CAPTURE_UNSUPPORTED)
        put(out, found.number)

    @entry("cuStreamGetFlags", "pp")
    def stream_flags(self, stream: int | None, out: int) -> None:
        put(out, 1, ctypes.c_uint32)

    @entry("cuStreamGetPriority", "pp")
    def stream_priority(self, stream: int | None, out: int) -> None:
        put(out, 0, ctypes.c_int)

    @entry("cuStreamWaitEvent", "ppu")
    def stream_wait(self, stream: int | None, event: int, flags: int) -> None:
        waiting, awaited = self.stream(stream), self.object(event, Event)
        if awaited.graph is not None:
            waiting.capture = awaited.graph
        self.do(waiting, awaited.after)

    # events

    @entry("cuEventCreate", "pu")
    def event_create(self, out: int, flags: int) -> None:
        put(out, self.new(Event()))

    @entry("cuEventDestroy", "p")
    def event_destroy(self, event: int) -> None:
        self.drop(event)

    @entry("cuEventRecord", "pp")
    def event_record(self, event: int, stream: int | None) -> None:
        made, on = self.object(event, Event), self.stream(stream)
        done: list[bool] = []

        def mark() -> None:
            made.time = self.clock
            done.append(True)

        def after() -> None:
            while not done and on.queue:
                on.queue.popleft()()

        made.after, made.graph = after, on.capture
        self.do(on, mark)

    @entry("cuEventSynchronize", "p")
    def event_synchronize(self, event: int) -> None:
        self.object(event, Event).after()
        if self.lost:
            raise FakeError(self.lost)

    @entry("cuEventQuery", "p")
    def event_query(self, event: int) -> int:
        return 0 if self.object(event, Event).time is not None else _NOT_READY

    @entry("cuEventElapsedTime", "ppp")
    def event_elapsed(self, out: int, first: int, last: int) -> int:
        begin, end = self.object(first, Event).time, self.object(last, Event).time
        if begin is None or end is None:
            return _NOT_READY
        put(out, (end - begin) * 1e3, ctypes.c_float)  # type: ignore[arg-type]
        return 0

    # captures

    @entry("cuStreamBeginCapture", "pi")
    def capture_begin(self, stream: int | None, mode: int) -> None:
        found = self.stream(stream)
        if not stream or found.capture is not None:
            raise FakeError(CAPTURE_UNSUPPORTED)
        found.capture = Graph(0, mode)
        found.capture.number = self.new(found.capture)

    @entry("cuStreamEndCapture", "pp")
    def capture_end(self, stream: int | None, out: int) -> None:
        graph = self.stream(stream).capture
        if graph is None:
            raise FakeError(INVALID_HANDLE)
        for other in self._streams.values():
            if other.capture is graph:
                other.capture = None
        if graph.broken:
            put(out, 0)
            raise FakeError(_INVALIDATED)
        put(out, graph.number)

    @entry("cuStreamIsCapturing", "pp")
    def capture_status(self, stream: int | None, out: int) -> None:
        put(out, int(self.stream(stream).capture is not None), ctypes.c_int)

    @entry("cuStreamGetCaptureInfo", "ppppppp")
    def capture_info(self, stream: int | None, status: int, number: int | None, graph: int | None, *_: int | None) -> None:
        capture = self.stream(stream).capture
        put(status, 0 if capture is None else 2 if capture.broken else 1, ctypes.c_int)
        if capture is not None:
            put(number, capture.number)
            put(graph, capture.number)

    @entry("cuThreadExchangeStreamCaptureMode", "p")
    def capture_mode(self, mode: int) -> None:
        wanted = ctypes.c_int.from_address(mode).value
        put(mode, getattr(self._local, "mode", 0), ctypes.c_int)
        self._local.mode = wanted
