"""A step of an optimizer over the 199 parameters of BERT-base: ours as one function of all of them, torch's fused and foreach.

    python -m tools.bench optimizers [--share 64] [--threads 1,2] [--names adamw,lamb] [--apart] [--json out.jsonl]

Gradients are clipped by their global norm in front of AdamW. share: of the rows of each parameter, one in so many is there. All
change parameters and moments where they lie, ours by `donate=`; with --apart ours writes them into other memory, `out=`.
Compiling is of an exported program, with an empty cache.
Times are ratios of turns taken one after the other; they need a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.runtime import knobs
from tilewright.runtime.host.benchmark import Timing, time_beside
from tools.bench import command
from tools.bench.partition.shown import peak_bytes, shown

HIDDEN, WIDE, WORDS, LAYERS = 768, 3072, 30522, 12
RATE, DECAY, FIRST, SECOND, EPSILON = 1e-3, 0.01, 0.9, 0.999, 1e-8
Tensors = Sequence[Any]
Step = Callable[..., Any]


def sizes(share: int = 1, layers: int = LAYERS) -> list[tuple[int, ...]]:
    """Extents of the parameters of BERT-base with its pooler, or of the same with other layers."""
    norm = [(HIDDEN,), (HIDDEN,)]
    square = [(HIDDEN, HIDDEN), (HIDDEN,)]
    layer = [*square * 4, *norm, (WIDE, HIDDEN), (WIDE,), (HIDDEN, WIDE), (HIDDEN,), *norm]
    found = [(WORDS, HIDDEN), (512, HIDDEN), (2, HIDDEN), *norm, *layer * layers, *square]
    return [(max(1, first // share), *rest) for first, *rest in found]


def adamw(torch: Any) -> Step:
    """Of parameters, gradients, both moments, and the corrections of these for the number of steps."""
    def step(values: Tensors, gradients: Tensors, firsts: Tensors, seconds: Tensors, first_by: Any, second_by: Any) -> Any:
        norm = torch.sqrt(sum((g * g).sum() for g in gradients))
        factor = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        made = []
        for value, gradient, first, second in zip(values, gradients, firsts, seconds, strict=True):
            clipped = gradient * factor
            first = FIRST * first + (1 - FIRST) * clipped
            second = SECOND * second + (1 - SECOND) * clipped * clipped
            value = value * (1 - RATE * DECAY) - RATE * (first * first_by) / (torch.sqrt(second * second_by) + EPSILON)
            made.append((value, first, second))
        return tuple(t for group in zip(*made, strict=True) for t in group)

    return step


def lamb(torch: Any) -> Step:
    """As `adamw`, each update scaled by the norm of the parameter over its own."""
    def step(values: Tensors, gradients: Tensors, firsts: Tensors, seconds: Tensors, first_by: Any, second_by: Any) -> Any:
        made = []
        for value, gradient, first, second in zip(values, gradients, firsts, seconds, strict=True):
            first = FIRST * first + (1 - FIRST) * gradient
            second = SECOND * second + (1 - SECOND) * gradient * gradient
            update = (first * first_by) / (torch.sqrt(second * second_by) + 1e-6) + DECAY * value
            trust = torch.sqrt((value * value).sum()) / (torch.sqrt((update * update).sum()) + 1e-12)
            made.append((value - RATE * trust * update, first, second))
        return tuple(t for group in zip(*made, strict=True) for t in group)

    return step


def torch_adamw(torch: Any, values: Tensors, gradients: Tensors, fused: bool) -> Callable[[], Any]:
    """clip_grad_norm_ and torch's own optimizer, on copies of the parameters; on a GPU its count of steps lies there too."""
    own = [torch.nn.Parameter(v.clone()) for v in values]
    for value, gradient in zip(own, gradients, strict=True):
        value.grad = gradient.clone()
    optimizer = torch.optim.AdamW(own, lr=RATE, betas=(FIRST, SECOND), eps=EPSILON, weight_decay=DECAY,
                                  fused=fused, foreach=not fused, capturable=values[0].is_cuda)

    def call() -> None:
        torch.nn.utils.clip_grad_norm_(own, 1.0, foreach=True)
        optimizer.step()

    return call


def foreach_lamb(torch: Any, values: Tensors, gradients: Tensors) -> Callable[[], Any]:
    """LAMB of torch's functions over lists, which change their first argument where their name ends with an underscore."""
    own, given = [v.clone() for v in values], [g.clone() for g in gradients]
    firsts, seconds = ([torch.zeros_like(v) for v in values] for _ in range(2))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def call() -> None:
        torch._foreach_mul_(firsts, FIRST)
        torch._foreach_add_(firsts, given, alpha=1 - FIRST)
        torch._foreach_mul_(seconds, SECOND)
        torch._foreach_addcmul_(seconds, given, given, 1 - SECOND)
        roots = torch._foreach_sqrt(torch._foreach_mul(seconds, 1.1))
        torch._foreach_add_(roots, 1e-6)
        updates = torch._foreach_div(torch._foreach_mul(firsts, 1.2), roots)
        torch._foreach_add_(updates, own, alpha=DECAY)
        below = torch._foreach_norm(updates)
        torch._foreach_add_(below, 1e-12)
        trust = torch._foreach_div(torch._foreach_norm(own), below)
        torch._foreach_mul_(trust, -RATE)
        torch._foreach_mul_(updates, trust)
        torch._foreach_add_(own, updates)

    made: Callable[[], Any] = call
    return made


STEPS: dict[str, Callable[[Any], Step]] = {"adamw": adamw, "lamb": lamb}


def peers(torch: Any, name: str, values: Tensors, gradients: Tensors) -> dict[str, Callable[[], Any]]:
    """What torch has; each with memory of its own, so made when it is measured."""
    if name == "adamw":
        return {"fused": partial(torch_adamw, torch, values, gradients, True),
                "foreach": partial(torch_adamw, torch, values, gradients, False)}
    return {"foreach": partial(foreach_lamb, torch, values, gradients)}


def given(torch: Any, share: int) -> list[list[Any]]:
    """Parameters, gradients and moments."""
    torch.manual_seed(share)
    made = [[torch.rand(size) for size in sizes(share)] for _ in range(4)]
    made[1] = [g - 0.5 for g in made[1]]
    return made


@dataclass(frozen=True)
class Setting:
    """share: of the rows, one in so many. threads: of the calls, one after the other. seconds: longest measuring time for a peer.
    apart: are new parameters and moments written into other memory?"""

    share: int
    threads: Sequence[int]
    seconds: float
    apart: bool = False


def measured(torch: Any, name: str, setting: Setting) -> Iterator[dict[str, Any]]:
    """A record of the compile, then one for each number of threads."""
    share, threads = setting.share, setting.threads
    groups, step = given(torch, share), STEPS[name](torch)
    count, by = len(groups[0]), [torch.tensor(1.2), torch.tensor(1.1)]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *flat: Any) -> Any:
            return step(*(flat[n * count : (n + 1) * count] for n in range(4)), *flat[4 * count :])

    flat = tuple(t for group in groups for t in group) + tuple(by)
    program = torch.export.export(Module(), flat)
    names = program.graph_signature.user_inputs
    donated = () if setting.apart else tuple(n for at in (0, 2, 3) for n in names[at * count : (at + 1) * count])
    with tempfile.TemporaryDirectory() as folder:
        os.environ[knobs.CACHE_DIR.name] = folder
        start, processor = time.perf_counter(), time.process_time()
        ours = tw.compile(program, options={"threads": max(threads)}, donate=donated)
        compiled, used = time.perf_counter() - start, time.process_time() - processor
    yield {"step": name, "share": share, "parameters": count, "launches": ours.explain().launches, "compile_seconds": compiled,
           "compile_cpu_seconds": used, "peak_gigabytes": peak_bytes() / 1e9}
    wanted = Module()(*flat)
    out = ours(*flat)
    for got, want in zip(out, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    del wanted
    kept = {"out": out} if setting.apart else {}
    for number in threads:
        torch.set_num_threads(number)
        own = partial(ours, *flat, threads=number, **kept)
        ratios = {}
        for peer, made in peers(torch, name, *groups[:2]).items():
            ratios[peer] = statistics.median(time_beside(made(), own, Timing(longest=setting.seconds)))
        yield {"step": name, "share": share, "threads": number, "apart": setting.apart, **ratios}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("optimizers", __doc__)
    parser.add_argument("--share", type=int, default=64)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--names", default=",".join(STEPS))
    parser.add_argument("--apart", action="store_true", help="ours writes into other memory")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest measuring time for each peer")
    parser.add_argument("--json", type=Path, help="JSON Lines file to append to")
    args: argparse.Namespace = parser.parse_args(argv)
    import torch

    setting = Setting(args.share, [int(n) for n in args.threads.split(",")], args.seconds, args.apart)
    for name in args.names.split(","):
        for record in measured(torch, name, setting):
            print(shown(record), flush=True)
            if args.json:
                with args.json.open("a") as out:
                    out.write(json.dumps(record) + "\n")
    return 0
