"""Random structured programs on a fake driver, through graphs and without, against the emulator. By hand, a thousand of them:
`PYTHONPATH=.:tests python -m cuda_fake.structured 0 1000`.
"""

from __future__ import annotations

import random
import sys

import msgspec
import numpy as np
from cuda_fake.fake_state import CONTEXT_BASE, FakeState
from cuda_fake.fake_torch import FakeTorch
from e2e.random_control import Structured

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.load.devices import Cuda
from tilewright.runtime.load.function import CompiledFunction

POINTS = ((3, 2), (2, 5), (0, 0), (3, 2), (1, 7), (6, 1), (4, 0), (5, 3), (1, 1), (2, 6),
          (6, 7), (0, 3), (4, 4), (1, 0), (5, 6), (2, 1), (6, 5), (3, 7), (0, 7), (4, 2))
FEW = 10


def compiled(text: str) -> dict[str, tw.CompiledFunction]:
    """One compile as three functions: "graphs", "launches" (without), "emulator", which reads each condition."""
    made = tw.compile(text, {"N": (0, 6), "T": (0, 7)}, "cuda:sm_90a",
                      options={"builder": LocalBuilder(full_target("cuda:sm_90a")), "graphs": "auto"})
    bundle = made._bundle
    plain = msgspec.structs.replace(bundle.program, target="emulator:sm_90a", runtime_object="")
    launches = msgspec.structs.replace(bundle.program, graphs="off")
    emulator = CompiledFunction(plain, bundle.code, bundle.constants, EmulatorDevice("sm_90a"))
    emulator._caller._control.reads = True  # branches rather than kernels that go by a byte
    return {"graphs": made, "launches": CompiledFunction(launches, bundle.code, bundle.constants, Cuda()), "emulator": emulator}


def compare(fake: FakeState, torch: FakeTorch, seed: int, depth: int = 3, count: int = FEW) -> str:
    """Run a program at so many of POINTS in random order, all enqueued before the first is waited for; what is wrong, or ""."""
    from tilewright.runtime.cuda.arena import gpu

    program, rng = Structured(seed, depth), np.random.default_rng(seed)
    text = program.text
    made = compiled(text)
    plain, functions = made["emulator"], [made["graphs"], made["launches"]]
    points, stream = list(POINTS[:count]), gpu(0).device.core.create_stream()
    random.Random(seed).shuffle(points)
    torch.current = int(stream.handle)
    done = []
    for n, t in points:
        x, s, _ = program.arguments(n, t, rng)
        results = []
        for fn in functions:
            results.append(fn(torch.tensor(x), torch.tensor(s), t))
            use_graphs(fn)
        done.append((x, s, t, results))
    stream.sync()
    for x, s, t, results in done:
        wanted = plain(x, s, t)
        for i, value in enumerate(evaluate(text, [x, s, t])):
            where = f"seed {seed}, result {i} at N={len(x)}, T={t}"
            if not np.allclose(wanted[i], value, rtol=1e-4, atol=1e-4, equal_nan=True):
                return f"{where}: the emulator differs from the reference"
            for way, found in zip(("through a graph", "without"), results, strict=True):
                if not np.array_equal(found[i].get(), wanted[i], equal_nan=True):
                    return f"{where}: other bits {way}"
    return f"seed {seed}: {fake.errors}" if fake.errors else ""


def use_graphs(fn: tw.CompiledFunction) -> None:
    """Let `auto` use graphs at once, where a graph can hold the program."""
    from tilewright.runtime.cuda.graph_plan import ways_of

    (loaded,) = fn._caller._loaded.values()
    graphs = loaded.graphs
    if graphs is None:
        return
    graphs.ways, graphs.reason = ways_of(loaded.program, loaded.driver_version)
    for context in loaded.contexts.values():
        if context.graph is None and not graphs.reason:
            context.graph = graphs.of_stream(context)
        if context.graph is not None:
            context.graph._measures = False


def main() -> None:
    from cuda_fake.fake_driver import FakeDriver

    first, last = int(sys.argv[1]), int(sys.argv[2])
    fake = FakeDriver(version=int(sys.argv[3]) if len(sys.argv) > 3 else 13000).install()
    fake.contexts()[:] = [CONTEXT_BASE]
    sys.modules["torch"] = torch = FakeTorch(fake)
    wrong = pairs = through = 0
    for seed in range(first, last):
        before = fake.calls("cuGraphLaunch")
        said = compare(fake, torch, seed, 1 + seed % 3, len(POINTS))
        wrong, pairs, through = wrong + bool(said), pairs + len(POINTS), through + fake.calls("cuGraphLaunch") - before
        counts = f"{fake.instantiated} graphs, {len(fake.updates)} updates, {fake.flights} while a launch was in flight"
        print(f"{seed} {said or 'right'}; so far {pairs} pairs, {through} launches of a graph, {counts}", flush=True)
        if fake.lost:
            break
    print(f"{wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
