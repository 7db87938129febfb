"""The process of an actor: takes its steps one after the other and says what comes of them.

    python -m tools.soak.act MODULE:CLASS --seed 0 --name caller-0.0 --folder RUN

The driver starts it; what it says goes to standard output, conditions come from standard input, whose end means to finish.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import select
import signal
import time
import traceback
from pathlib import Path

import msgspec

from tilewright.runtime.errors import TilewrightError
from tools.soak.actor import Actor, Place, Step, Verdict, actor_class
from tools.soak.conditions import CALM, ModeChangedError, around_step
from tools.soak.messages import Began, Condition, Done, Outcome, Report
from tools.soak.reproduce import Finding, keep
from tools.soak.resources import resources

_WORDS = 2000  # most characters of a failure that go to the driver


class Stage:
    """Runs the steps of one actor and reports on them."""

    def __init__(self, actor: Actor, out: int) -> None:
        self.actor, self._out = actor, out
        self._left = 0
        self._open = True

    def run(self) -> None:
        """Steps until the driver closes the input."""
        self._do(Step("prepare", self._prepare))
        steps = 0
        while self._listen():
            self._do(self.actor.next())
            steps += 1
            if steps == self.actor.warm_after:
                self._look("warm")
        if steps >= self.actor.warm_after:
            self._look("end")

    def say(self, report: Report) -> None:
        data = memoryview(msgspec.json.encode(report) + b"\n")
        while data:
            data = data[os.write(self._out, data):]

    def _look(self, at: str) -> None:
        time.sleep(self.actor.rests)
        self.say(resources(at))

    def _prepare(self) -> Verdict:
        self.actor.prepare(lambda cases: self.say(Began("prepare", CALM, tuple(case.drawn for case in cases))))
        return Verdict()

    def _listen(self) -> bool:
        """Take in conditions; False once the input has ended."""
        while self._open and select.select([0], [], [], 0)[0]:
            data = os.read(0, 1 << 16)
            self._open = bool(data)
            for line in data.splitlines():
                condition = msgspec.json.decode(line, type=Condition)
                self.actor.condition, self._left = condition.name, condition.steps
        return self._open

    def _do(self, step: Step) -> None:
        under = self.actor.condition
        self.say(Began(step.what, under, tuple(case.drawn for case in step.cases)))
        try:
            with around_step(under):
                done = step.run()
        except TilewrightError:
            done = Verdict(Outcome.WRONG, f"refused: {traceback.format_exc()}")
        except ModeChangedError as error:
            done = Verdict(Outcome.WRONG, str(error))
        except Exception as error:  # whatever it is: what is raised here is what is looked for
            done = Verdict(Outcome.RAW, "".join(traceback.format_exception(error)))
        for verdict in [done] if isinstance(done, Verdict) else done:
            self._tell(step, under, verdict)
        self._left -= 1
        if self._left <= 0:
            self.actor.condition = CALM

    def _tell(self, step: Step, under: str, verdict: Verdict) -> None:
        kept = ""
        if not verdict.outcome.is_fine:
            finding = Finding(verdict.outcome.value, step.what, under, self.actor.name, self.actor.seed, verdict.detail)
            cases = step.cases if verdict.case is None else [verdict.case]
            kept = str(keep(self.actor.place.failures, finding, cases, verdict.args))
        self.say(Done(step.what, under, verdict.outcome, verdict.count, verdict.detail[-_WORDS:], kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the driver asks where a process hangs
    out = os.dup(1)
    os.dup2(2, 1)  # what anything prints is no report
    Stage(actor_class(given.spec)(Place(given.folder), given.seed, given.name), out).run()


if __name__ == "__main__":
    main()
