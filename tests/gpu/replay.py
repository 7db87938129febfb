"""Runs a folder of prebuilt kernels and compares what they give: the GPU tests where there is no compiler.

    python -m tests.gpu.replay FOLDER                            # on the GPU that is here
    python -m tests.gpu.replay FOLDER --target emulator:sm_90a   # on the emulator

Needs numpy, ml_dtypes, msgspec and cuda-python. tests/gpu/record.py makes the folder. A kernel that crashes or hangs costs the
process it runs in and nothing else. Results are JSON Lines, written as they come; what a file holds already is not run again.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.replay_form import IMAGES, ReplayLaunch, read
from tests.gpu_operands import launch, place, results
from tilewright.runtime.gpu.gpu_image import GpuImage
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.runner.line_process import LineProcess, WorkerLostError
from tilewright.search.runner.serving import reply_channel

FORMS = ("stored", "ptx")
_STICKY = "sticky"


class Player:
    """Runs launches of a folder on one device.

    form: "stored" takes machine code where it fits, "ptx" leaves the assembling to the driver. plain: memory is not filled first.
    """

    def __init__(self, folder: Path, target: Target, form: str, plain: bool = False) -> None:
        self.folder, self.target, self.form = folder, target, form
        self.launches = read(folder)
        self._device: Any = None
        self._traffic: Any = None
        if target.kind is TargetKind.CUDA:
            from tests.gpu.cuda_device import FilledDevice, Traffic
            from tilewright.runtime.cuda.cuda_device import CudaDevice

            self._device = CudaDevice() if plain else FilledDevice()
            self._traffic = Traffic(self._device)

    def play(self, number: int, repeats: int) -> dict[str, Any]:
        """The record of a launch. repeats: further runs under load, whose results must have the same bits."""
        wanted = self.launches[number]
        start, made = time.perf_counter(), self._play(wanted, number, repeats)
        at = {"record": "launch", "number": number, "test": wanted.test, "config": wanted.kernel.config, "dims": wanted.dims,
              "form": self.form, "repeats": repeats}
        return {**at, **made, "seconds": round(time.perf_counter() - start, 4)}

    def close(self) -> None:
        """Nothing: the device goes with the process."""

    def _play(self, wanted: ReplayLaunch, number: int, repeats: int) -> dict[str, Any]:
        from tilewright.runtime.cuda.driver import CudaError
        from tilewright.runtime.errors import TilewrightError

        try:
            first = self._run(wanted)
            error = wanted.wrong(first)
            for turn in range(repeats if not error else 0):
                if self._traffic is not None:
                    self._traffic.begin(number * 1009 + turn)
                again = self._run(wanted, turn + 1)
                if any(a.tobytes() != b.tobytes() for a, b in zip(first, again, strict=True)):
                    error = f"repeat {turn + 1} gives other bits than the first run"
                    break
        except TilewrightError as failed:
            lost = isinstance(failed, CudaError) and failed.sticky
            return {"ok": False, "error": f"{type(failed).__name__}: {failed}", **({_STICKY: True} if lost else {})}
        return {"ok": not error, "error": error}

    def _run(self, wanted: ReplayLaunch, turn: int = 0) -> list[np.ndarray]:
        image = GpuImage.of((self.folder / IMAGES / wanted.kernel.object).read_bytes())
        code = image.ptx if self.form == "ptx" and image.ptx else image.stored()
        device = self._device or _emulator(wanted, turn * 31 if turn else wanted.seed)
        trial = wanted.trial()
        setup = place(device, wanted.kernel, wanted.dims, trial.inputs, trial.outputs)
        launch(device, wanted.kernel, code, wanted.dims, setup.args)
        found = results(device, setup, trial.outputs)
        if self._device is not None:
            self._device.close()
        return found


def _emulator(wanted: ReplayLaunch, seed: int | None) -> Any:
    from tilewright.runtime.emulator.emulator_device import EmulatorDevice

    return EmulatorDevice(wanted.arch, seed=seed, multiprocessors=wanted.multiprocessors)


def serve(folder: Path, target: Target, form: str) -> None:
    """Answer lines `[number, repeats]` until the input ends or the device is lost."""
    replies = reply_channel()
    player = Player(folder, target, form)
    for line in sys.stdin.buffer:
        number, repeats = json.loads(line)
        found = player.play(number, repeats)
        replies.write(json.dumps(found).encode() + b"\n")
        replies.flush()
        if found.get(_STICKY):
            os._exit(0)


class Replay:
    """Runs launches in a process that is replaced when it is lost. most: seconds of a launch."""

    def __init__(self, folder: Path, target: str, form: str, most: float) -> None:
        self._arguments = (str(folder), "--target", target, "--form", form, "--serve")
        self.form, self.most, self._launches = form, most, read(folder)
        self._process: LineProcess | None = None

    def play(self, number: int, repeats: int) -> dict[str, Any]:
        """The record of a launch; of one that crashes or hangs, too."""
        wanted = self._launches[number]
        try:
            if self._process is None:
                self._process = LineProcess("tests.gpu.replay", *self._arguments)
            found: dict[str, Any] = json.loads(self._process.exchange(json.dumps([number, repeats]).encode() + b"\n", self.most))
        except WorkerLostError as error:
            self.close()
            last = (error.log.strip().splitlines() or [""])[-1]
            return {"record": "launch", "number": number, "test": wanted.test, "config": wanted.kernel.config, "form": self.form,
                    "dims": wanted.dims, "repeats": repeats, "ok": False, "error": f"{error}: {last}"}
        if found.get(_STICKY):
            self.close()
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.gpu.replay", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cuda", help="cuda, or emulator:sm_90a")
    parser.add_argument("--form", choices=FORMS, default="stored", help="ptx: the driver assembles the kernels")
    parser.add_argument("--filter", default="*", help="pattern of tests or configurations")
    parser.add_argument("--first", action="store_true", help="one launch of each family")
    parser.add_argument("--repeats", type=int, default=0, help="further runs of each launch under load, with the same bits")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these no launch is begun")
    parser.add_argument("--most", type=float, default=60.0, help="seconds of a launch")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    parser.add_argument("--number", type=int, help="of the one launch to run")
    parser.add_argument("--here", action="store_true", help="in this process, as compute-sanitizer and ncu want it")
    parser.add_argument("--plain", action="store_true", help="with --here: memory is not filled first, as initcheck wants it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def chosen(launches: Sequence[ReplayLaunch], pattern: str, first: bool) -> list[int]:
    """Numbers of the launches that fit a pattern; first: only one of each family, and none of empty tensors."""
    numbers = [i for i, x in enumerate(launches)
               if fnmatch.fnmatch(x.test, pattern) or fnmatch.fnmatch(x.kernel.config, pattern)]
    if not first:
        return numbers
    found: dict[str, int] = {}
    for i in numbers:
        if 0 not in launches[i].dims.values():
            found.setdefault(launches[i].kernel.family, i)
    return list(found.values())


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every launch gave what it must."""
    args = arguments(argv)
    if args.serve:
        serve(args.folder, Target.parse(args.target), args.form)
        return 0
    end, launches, failed, ran = time.monotonic() + args.seconds, read(args.folder), 0, 0
    known = [json.loads(x) for x in args.json.read_text().splitlines()] if args.json and args.json.exists() else []
    done = {(r.get("number"), r.get("form"), r.get("repeats")) for r in known if r.get("record") == "launch"}
    replay = Player(args.folder, Target.parse(args.target), args.form, args.plain) if args.here else \
        Replay(args.folder, args.target, args.form, args.most)
    numbers = chosen(launches, args.filter, args.first) if args.number is None else [args.number]
    wanted = [n for n in numbers if (n, args.form, args.repeats) not in done]
    for number in wanted:
        if time.monotonic() >= end:
            break
        found, ran = replay.play(number, args.repeats), ran + 1
        failed += not found["ok"]
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps(found) + "\n")
        if not found["ok"]:
            print(f"{found['test']}: {found['config']} at {found['dims']}: {found['error']}", flush=True)
    replay.close()
    print(f"{ran} launches, {failed} failed, {len(wanted) - ran} left for want of time, {len(done)} known before", flush=True)
    return int(bool(failed or ran < len(wanted)))


if __name__ == "__main__":
    sys.exit(main())
