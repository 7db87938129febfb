"""What `compile` and `tune` are told: one declaration of their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.compiler.cli.arguments import DIM_HELP, load_constants, parse_dims
from tilewright.compiler.cli.model_files import MODEL_HELP, model_file, place_to_write
from tilewright.compiler.cli.output import JSON_HELP
from tilewright.compiler.cli.values import complete_policy, complete_target, one_of

if TYPE_CHECKING:
    from tilewright.compiler.compilation.farm import Farm
    from tilewright.compiler.compilation.options import CompileOptions
    from tilewright.runtime.load.function import CompiledFunction

ModelFile = Annotated[Path, typer.Argument(help=MODEL_HELP, exists=True, dir_okay=False)]
Dims = Annotated[list[str] | None, typer.Option(help=DIM_HELP)]
Constants = Annotated[Path | None, typer.Option(help="Arguments to bind now, by name: a .npz or .safetensors file.", exists=True)]
Function = Annotated[str | None, typer.Option(help="The function to compile, where there are several.")]
Target = Annotated[
    str, typer.Option(help="host, host:x86-64-v3, ...; `tilewright targets` lists them.", autocompletion=complete_target)
]
Precision = Annotated[
    str,
    typer.Option(help="f32; tf32, bf16 or f16 for the contractions of f32 models.",
                 autocompletion=one_of("f32", "tf32", "bf16", "f16")),
]
MaxRegret = Annotated[float, typer.Option(help="Allowed slowness against the best kernel of a shape, a fraction.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Json = Annotated[bool, typer.Option("--json", help=JSON_HELP)]


def pairs(texts: Sequence[str] | None, name: str, example: str) -> list[tuple[str, str]]:
    """Of texts such as "a=b"; OptionError for another."""
    from tilewright.runtime.errors import OptionError

    found = [text.partition("=") for text in texts or ()]
    if not all(key and sign and value for key, sign, value in found):
        raise OptionError(f"{name} {' '.join(texts or ())}: wanted a name and a value, as in {name} {example}")
    return [(key, value) for key, _, value in found]


def _amount(name: str, text: str) -> float:
    from tilewright.runtime.errors import OptionError

    try:
        return float(text)
    except ValueError as error:
        raise OptionError(f"--runner-resource {name}={text}: wanted a number, as in zen3=1") from error


@dataclass(frozen=True)
class CompileArguments:
    """Of `tilewright compile`, in the order of its help."""

    file: ModelFile
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path("model.tw")
    dim: Dims = None
    constants: Constants = None
    target: Target = "host"
    function: Function = None
    donate: Annotated[list[str] | None, typer.Option(help="An argument whose buffer a result may reuse. Repeatable.")] = None
    threads: Annotated[int | None, typer.Option(help="Most threads that a call uses.")] = None
    precision: Precision = "f32"
    activations: Annotated[
        str,
        typer.Option(help="f32, or int8 for the rows that products with weights in few bits read.",
                     autocompletion=one_of("f32", "int8")),
    ] = "f32"
    deterministic: Annotated[
        str,
        typer.Option(help="shape, or batch: same bits for a row in any batch.", autocompletion=one_of("shape", "batch")),
    ] = "shape"
    winograd: Annotated[bool, typer.Option(help="Convolutions on the host may go through Winograd's transforms.")] = True
    out_of_range: Annotated[
        str,
        typer.Option(help="error, or fallback: run shapes outside the range.", autocompletion=one_of("error", "fallback")),
    ] = "error"
    seed: Seed = 0
    log: Annotated[str | None, typer.Option(help="Tuning log: a file of JSON Lines, a folder or a URL; what it knows of this "
                                            "machine is used.")] = None
    seconds: Annotated[float | None, typer.Option(help="Search for so long; the measurements go to --log.")] = None
    trials: Annotated[int | None, typer.Option(help="Search with so many measurements.")] = None
    max_regret: MaxRegret = 0.05
    max_kernels: Annotated[int | None, typer.Option(help="Most kernels per operator.")] = None
    policy: Annotated[
        str | None,
        typer.Option(help="Who gets the next slot of a search's time: ucb, epsilon, softmax, thompson, ansor, round_robin, ...; "
                     "with none, and on a GPU, operators take turns.", autocompletion=complete_policy),
    ] = None
    until_regret: Annotated[
        float | None, typer.Option(help="Stop when this share of the latency is left to gain, by a --policy that expects gains.")
    ] = None
    prior: Annotated[bool, typer.Option(help="Start from the cost model that ships with the package.")] = True
    graphs: Annotated[
        str,
        typer.Option(help="Launch calls as CUDA graphs: auto where it is faster, on, off.",
                     autocompletion=one_of("auto", "on", "off")),
    ] = "auto"
    graph_memory: Annotated[str, typer.Option(help="Most GPU memory that the graphs may take, as in 64M.")] = "64M"
    prior_from: Annotated[
        Path | None, typer.Option(help="Start from the cost models in a folder of `tilewright logs train`.", exists=True,
                                  file_okay=False)
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(help="Search on a Ray cluster: auto for the one that this machine is part of, an address, or local."),
    ] = None
    builders: Annotated[int | None, typer.Option(help="Of --ray: processes that build; one for each core that is left.")] = None
    runners: Annotated[int | None, typer.Option(help="Of --ray: places that measure; one a node, or a GPU.")] = None
    runner_cores: Annotated[int, typer.Option(help="Of --ray: cores that a runner is pinned to.")] = 1
    runner_resource: Annotated[
        list[str] | None,
        typer.Option(help="Of --ray: a custom resource that a runner takes, as in zen3=1. Repeatable.", metavar="NAME=AMOUNT"),
    ] = None
    runner_label: Annotated[
        list[str] | None,
        typer.Option(help="Of --ray: a label of the nodes of runners, as in cpu=zen3. Repeatable.", metavar="NAME=VALUE"),
    ] = None
    isolate: Annotated[
        bool, typer.Option(help="Compile in a process of its own, so that a crash of MLIR or LLVM over a model is an error.")
    ] = True
    print_ir_after_all: Annotated[
        bool, typer.Option("--print-ir-after-all", help="Print the module after each pass, on standard error.")
    ] = False
    json: Json = False

    def __post_init__(self) -> None:
        """Refuse what cannot be read or written, before anything is worked out."""
        model_file(self.file)
        place_to_write(self.output)

    @property
    def searches(self) -> bool:
        return bool(self.seconds or self.trials)

    def options(self, progress: Any = None) -> CompileOptions:
        """As `tilewright.compile` takes them. progress: told how a search goes."""
        from tilewright.compiler.compilation.options import CompileOptions

        callback = None
        if self.print_ir_after_all:
            from tilewright.passes.pipeline.instruments import PrintAfterAll

            callback = PrintAfterAll()
        return CompileOptions(
            threads=self.threads, seconds=self.seconds, trials=self.trials, max_regret=self.max_regret,
            max_kernels=self.max_kernels, precision=self.precision, activations=self.activations,
            deterministic=self.deterministic, winograd=self.winograd, seed=self.seed, log=self.log,
            prior=self.prior_from or self.prior, policy=self.policy or self._policy(), until_regret=self.until_regret,
            out_of_range=self.out_of_range, graphs=self.graphs, graph_memory=self.graph_memory, isolate=self.isolate,
            callback=callback, progress=progress,
            farm=None if self.ray is None else self._farm(self.ray),
        )  # fmt: skip

    def _policy(self) -> str | None:
        """Where none is given."""
        return None

    def _farm(self, address: str) -> Farm:
        from tilewright.compiler.compilation.farm import Farm

        resources = {name: _amount(name, text) for name, text in pairs(self.runner_resource, "--runner-resource", "zen3=1")}
        labels = dict(pairs(self.runner_label, "--runner-label", "cpu=zen3"))
        return Farm(address, self.builders, self.runners, self.runner_cores, resources, labels=labels)

    def compile(self, options: CompileOptions) -> CompiledFunction:
        """The model compiled with these options."""
        from tilewright.compiler.api import compile as compile_model

        return compile_model(self.file, parse_dims(self.dim).as_ranges(), target=self.target, options=options,
                             constants=load_constants(self.constants) or None, donate=tuple(self.donate or ()),
                             function=self.function)


@dataclass(frozen=True)
class TuneArguments(CompileArguments):
    """Of `tilewright tune`: those of `compile`, with a search for a default."""

    target: Annotated[
        str,
        typer.Option(help="host, host:x86-64-v3, cuda:sm_90a, ...; several, with commas between, go into one file, and are tuned "
                     "at once with --ray.", autocompletion=complete_target),
    ] = "host"
    log: Annotated[
        str, typer.Option(help="Tuning log: a file of JSON Lines, a folder or a URL; read to resume, appended to.")
    ] = "tuning.jsonl"
    seconds: Annotated[float | None, typer.Option(help="Time of the search; 60 unless --trials is given.")] = None
    trials: Annotated[int | None, typer.Option(help="Measurements of the search.")] = None
    policy: Annotated[
        str | None,
        typer.Option(help="Who gets the next slot of the search's time: ucb, epsilon, softmax, thompson, ansor, round_robin, "
                     "...; ucb where none is given, thompson with --ray; on a GPU of this machine operators take turns.",
                     autocompletion=complete_policy),
    ] = None

    def _policy(self) -> str:
        from tilewright.compiler.compilation.options import default_policy

        return default_policy(self.ray is not None)
