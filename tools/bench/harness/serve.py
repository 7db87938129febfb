"""The loop of a process that answers requests about calls of one system: JSON on standard input, one reply a line on standard
output. `tools.bench.harness.interleave.Worker` asks."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tools.bench.harness.worker import pin, private_stdout, time_calls

Call = Callable[[], object]


def serve(threads: int, prepare: Callable[[dict[str, Any]], tuple[Call, dict[str, Any]]]) -> int:
    """On the last cores of the process, as many as threads. A request to `do` "prepare" is handed to `prepare`, which makes a
    call and the reply; any other request tells the seconds of this call, measured for about as many."""
    replies = private_stdout()
    pin(os.sched_getaffinity(0), threads)
    call: Call | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "prepare":
            call, reply = prepare(request)
        else:
            assert call is not None
            gc.disable()
            reply = {"seconds": time_calls(call, request["seconds"]), "near": []}
            gc.enable()
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    return 0
