"""What a compile does grows with the model and no faster; passes that repeat themselves end."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
from unit.graph_models import ADD, EXP, T, X, assert_same, generic, matmul, model, run

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.host import host_program, strided_inputs
from tilewright.compiler.ops.transformer import EncoderWeights, transformer_encoder_layer
from tilewright.passes.base import until_stable
from tilewright.passes.dispatch_creation.fuse import Fuse
from tilewright.passes.dispatch_creation.fuse_attention import fuse_attentions
from tilewright.passes.linalg.clone import producers_first
from tilewright.passes.mlir import arith, functions, ir, operations
from tilewright.passes.partition.partition import LARGEST
from tilewright.passes.partition.region_order import RegionOrder
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.transforms.decompose import Decompose
from tilewright.runtime.errors import OptionError, PassError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Expr

GROWTH = 2.2  # calls of twice the model, over those of the model: a part that is quadratic comes on top


def calls_of(work: Callable[[], object]) -> int:
    """Python and builtin calls."""
    count = 0

    def tally(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def outlined(graph: ops.Graph, constants: dict[str, np.ndarray], **dims: tuple[int, int]) -> None:
    outline(Compilation(graph, dims, full_target("host"), constants=constants))


def encoder(layers: int) -> None:
    graph = ops.Graph()
    x = graph.input("x", ["B", "S", 16])
    constants = {}
    for layer in range(layers):
        weights = EncoderWeights.inputs(graph, 16, 32, prefix=f"l{layer}.")
        x = transformer_encoder_layer(x, weights, 2)
        for name in EncoderWeights.__dataclass_fields__:
            t = getattr(weights, name)
            constants[f"l{layer}.{name}"] = np.ones([d.constant for d in t.dims], np.float32)
    graph.output(x)
    outlined(graph, constants, B=(1, 8), S=(1, 64))


def wide(count: int) -> None:
    """Many arguments, each with a dynamic extent of its own name, and many results."""
    graph = ops.Graph()
    x = graph.input("x", ["B", 4])
    for i in range(count):
        graph.output(x + graph.input(f"w{i}", ["B", 4]))
    outlined(graph, {}, B=(1, 8))


def unnamed(count: int) -> None:
    """Dims that only the equations of the model make equal."""
    arguments = ", ".join(f"%a{i}: tensor<?xf32>" for i in range(count))
    lines, last = [], "%a0"
    for i in range(1, count):
        lines.append(f"  %y{i} = linalg.add ins({last}, %a{i} : tensor<?xf32>, tensor<?xf32>) outs(%a0 : tensor<?xf32>) "
                     "-> tensor<?xf32>")
        last = f"%y{i}"
    text = f"func.func @main({arguments}) -> tensor<?xf32> {{\n" + "\n".join(lines) + f"\n  return {last} : tensor<?xf32>\n}}"
    ingest(text, {"T": (1, 8)})


def chain(count: int) -> None:
    """One region of many operations."""
    graph = ops.Graph()
    x = graph.input("x", ["B", 4])
    for i in range(count):
        x = x + graph.input(f"w{i}", [4])
    graph.output(x)
    outlined(graph, {}, B=(1, 8))


@pytest.mark.parametrize(("build", "size"), [(encoder, 4), (wide, 60), (unnamed, 100), (chain, 60)])
def test_twice_the_model_is_twice_the_work(build: Callable[[int], None], size: int) -> None:
    build(2)  # what is done once per process
    assert calls_of(lambda: build(2 * size)) < GROWTH * calls_of(lambda: build(size))


def test_a_chain_longer_than_a_kernel_is_cut() -> None:
    """What walks a region does so by recursion; its kernel has a slot for each tensor that it reads."""
    graph = ops.Graph()
    x = graph.input("x", ["B", 4])
    y = x
    for i in range(5 * LARGEST // 2):
        y = y + graph.input(f"w{i}", ["B", 4])
    graph.output(y)
    fn = tw.compile(graph, {"B": (1, 8)}, options={"builder": LocalBuilder(full_target("host"))})
    assert [len(c.dims) for c in fn.program.calls] == [1, 1, 1]
    given = [np.full((3, 4), i, np.float32) for i in range(len(fn.inputs))]
    np.testing.assert_array_equal(fn(*given), sum(given))


def test_code_around_the_kernels_grows_with_arguments_and_results() -> None:
    """`out=` is looked at for each pair of arrays, natively only where these are few."""
    sizes = []
    for count in (100, 200):
        graph = ops.Graph()
        x = graph.input("x", ["B", 4])
        for i in range(count):
            graph.output(x + graph.input(f"w{i}", ["B", 4]))
        fn = tw.compile(graph, {"B": (1, 8)}, options={"builder": LocalBuilder(full_target("host"))})
        sizes.append(sum(len(fn._bundle.llvm_ir[digest]) for digest in (fn.program.host_object, fn.program.binder_object)))
        given = [np.full((3, 4), i, np.float32) for i in range(count + 1)]
        out = tuple(np.empty((3, 4), np.float32) for _ in range(count))
        assert fn(*given, out=out)[-1] is out[-1] and (out[-1] == count).all()
        assert (fn(*given)[-1] == count).all()
    assert sizes[1] < GROWTH * sizes[0]


@pytest.mark.parametrize(("factors", "taken"), [(3, True), (24, False)])
def test_sizes_written_out_are_bounded(factors: int, taken: bool) -> None:
    """A product of sums has two to the power of its factors terms."""
    names = [f"d{i}" for i in range(factors)]
    arguments = ", ".join(f'%a{i}: tensor<?xf32> {{tw.dims = ["{n}"]}}' for i, n in enumerate(names))
    size = " * ".join(f"({n} + 1)" for n in names)
    text = (f'func.func @main({arguments}, %x: tensor<?xf32> {{tw.dims = ["{size}"]}}) -> tensor<?xf32> {{\n'
            "  return %x : tensor<?xf32>\n}")
    if taken:
        assert len(ingest(text, dict.fromkeys(names, (1, 2))).dims) == factors
    else:
        with pytest.raises(OptionError, match="wanted at most 256 written out: name a factor"):
            ingest(text, dict.fromkeys(names, (1, 2)))


def test_sizes_that_nest_too_deeply_are_refused() -> None:
    for text in ("(" * 500 + "T" + ")" * 500, "-" * 20_000 + "T", " + ".join(["T"] * 20_000), "T" * 70_000, "T\0"):
        with pytest.raises(OptionError, match="size expression"):
            Expr.parse(text)


def test_a_chain_of_operations_that_double_their_operand_is_looked_at_once() -> None:
    body = generic("y0", "%x", T, "%e", T, EXP, "#id, #id")
    for i in range(60):
        body += generic(f"y{i + 1}", f"%y{i}, %y{i}", f"{T}, {T}", "%e", T, ADD, "#id, #id, #id")
    text = model([X, "%w: tensor<8x8xf32> {tw.dims = [8, 8]}"], body + matmul("m", "%y60"), "%m", T)
    assert run(text, [Fuse()]).count("tw.region") == 62


def test_producers_of_a_long_chain_come_in_order() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @main(%x: f32) -> f32 {\n  return %x : f32\n}")
        block = next(functions(module)).regions[0].blocks[0]
        value = block.arguments[0]
        with ir.InsertionPoint(operations(block)[-1]):
            for _ in range(3000):
                value = arith.AddFOp(value, value).result
        made = operations(block)[:-1]
        assert producers_first([made[-1]]) == made
        assert producers_first([made[-1]], set(made[1000:])) == made[1000:]


# -- the order of regions


def leads_around(readers: dict[int, set[int]], region: dict[int, int], source: int, reader: int) -> bool:
    """By looking at every path."""

    def next_to(r: int) -> set[int]:
        return {region[o] for op, by in readers.items() if region[op] == r for o in by} - {r}

    todo, seen = list(next_to(region[source]) - {region[reader]}), set()
    while todo:
        at = todo.pop()
        if at == region[reader]:
            return True
        if at not in seen:
            seen.add(at)
            todo += next_to(at)
    return False


@pytest.mark.parametrize("seed", range(40))
def test_regions_grow_without_cycles(seed: int) -> None:
    rng, order = random.Random(seed), RegionOrder[int]()
    readers: dict[int, set[int]] = {}
    region: dict[int, int] = {}
    for op in range(40):
        sources = rng.sample(range(op), min(op, rng.randint(0, 3)))
        order.add(op, sources)
        region[op], readers[op] = op, set()
        for source in sources:
            readers[source].add(op)
        for source in sources:
            if region[source] == region[op]:
                continue
            around = leads_around(readers, region, source, op)
            assert order.leads_around(source, op) == around
            if not around and rng.random() < 0.6:
                order.merge(source, op)
                region = {o: region[op] if r == region[source] else r for o, r in region.items()}


def test_a_question_costs_what_lies_between() -> None:
    """Layers that all read one early value, each with a residual."""

    def visits(layers: int) -> int:
        order = RegionOrder[int]()
        order.add(0, [])
        order.add(1, [])
        last = 1
        for layer in range(layers):
            first = 2 + 4 * layer
            order.add(first, [last])
            order.add(first + 1, [first])
            order.add(first + 2, [first + 1, last])
            assert order.leads_around(last, first + 2)
            order.merge(first + 1, first + 2)
            order.add(first + 3, [first + 2])
            assert not order.leads_around(first + 2, first + 3)
            last = first + 3
        return order.visits

    assert visits(400) < 2.1 * visits(200)


# -- trials of fused attention


def attention_model(results: str, types: str) -> str:
    """Scores, a softmax over a reshape of them, and the mixing; results: which values the function gives."""
    lines = [
        '#q = affine_map<(b, m, n, k) -> (b, m, k)>', '#k = affine_map<(b, m, n, k) -> (b, n, k)>',
        '#s = affine_map<(b, m, n, k) -> (b, m, n)>',
        'func.func @main(%q: tensor<6x8x4xf32>, %k: tensor<6x9x4xf32>, %v: tensor<6x9x5xf32>) -> (' + types + ') {',
        '  %zero = arith.constant 0.0 : f32',
        '  %se = tensor.empty() : tensor<6x8x9xf32>',
        '  %sf = linalg.fill ins(%zero : f32) outs(%se : tensor<6x8x9xf32>) -> tensor<6x8x9xf32>',
        '  %s = linalg.generic {indexing_maps = [#q, #k, #s],',
        '      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}',
        '      ins(%q, %k : tensor<6x8x4xf32>, tensor<6x9x4xf32>) outs(%sf : tensor<6x8x9xf32>) {',
        '  ^bb0(%a: f32, %b: f32, %o: f32):', '    %m = arith.mulf %a, %b : f32', '    %t = arith.addf %o, %m : f32',
        '    linalg.yield %t : f32', '  } -> tensor<6x8x9xf32>',
        '  %x = tensor.expand_shape %s [[0, 1], [2], [3]] output_shape [2, 3, 8, 9] : tensor<6x8x9xf32> into tensor<2x3x8x9xf32>',
        '  %xe = tensor.empty() : tensor<2x3x8x9xf32>',
        '  %w = linalg.softmax dimension(3) ins(%x : tensor<2x3x8x9xf32>) outs(%xe : tensor<2x3x8x9xf32>) -> tensor<2x3x8x9xf32>',
        '  %flat = tensor.collapse_shape %w [[0, 1], [2], [3]] : tensor<2x3x8x9xf32> into tensor<6x8x9xf32>',
        '  %oe = tensor.empty() : tensor<6x8x5xf32>',
        '  %of = linalg.fill ins(%zero : f32) outs(%oe : tensor<6x8x5xf32>) -> tensor<6x8x5xf32>',
        '  %out = linalg.batch_matmul ins(%flat, %v : tensor<6x8x9xf32>, tensor<6x9x5xf32>) outs(%of : tensor<6x8x5xf32>) '
        '-> tensor<6x8x5xf32>',
        f'  return {results} : {types}', '}',
    ]
    return "\n".join(lines)


def tried(text: str) -> tuple[list[str], str, str]:
    """The rules that refused, and the function before and after the trial."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(run(text, [Decompose(), Fuse()]))
        before = str(module)
        refused = [r.rule for r in fuse_attentions(next(functions(module)))]
        module.operation.verify()
        return refused, before, str(module)


def test_a_refused_trial_leaves_the_function_as_it_was() -> None:
    refused, before, after = tried(attention_model("%out, %w", "tensor<6x8x5xf32>, tensor<2x3x8x9xf32>"))
    assert refused == ["only-inside"]
    assert after == before


def test_an_accepted_trial_leaves_nothing_behind() -> None:
    refused, _, after = tried(attention_model("%out", "tensor<6x8x5xf32>"))
    assert not refused
    assert after.count("tw.region = 0") == after.count("tw.region") == 7


# -- passes that repeat themselves


def test_a_pass_that_works_against_itself_ends_with_its_name() -> None:
    rounds = 0

    def turn() -> bool:
        nonlocal rounds
        rounds += 1
        return True

    with pytest.raises(PassError, match=r"pass fold-reshapes did not come to an end.*after 7 rounds"):
        until_stable("fold-reshapes", turn, 7)
    assert rounds == 7
    until_stable("fold-reshapes", lambda: False, 1)


GROUP_NORM = """
#id = affine_map<(a, b, m) -> (a, b, m)>
#row = affine_map<(a, b, m) -> (a, b)>
#image = affine_map<(a, b, c, d) -> (a, b, c, d)>
#channel = affine_map<(a, b, c, d) -> (b)>
func.func @main(%x: tensor<1x32x?x?xf32> {tw.dims = [1, 32, "H", "W"]}, %g: tensor<32xf32>) -> tensor<1x32x?x?xf32> {
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %H = tensor.dim %x, %c2 : tensor<1x32x?x?xf32>
  %W = tensor.dim %x, %c3 : tensor<1x32x?x?xf32>
  %hw = arith.muli %H, %W : index
  %M = arith.muli %hw, %c8 : index
  %f = tensor.collapse_shape %x [[0], [1, 2, 3]] : tensor<1x32x?x?xf32> into tensor<1x?xf32>
  %y = tensor.expand_shape %f [[0], [1, 2]] output_shape [1, 4, %M] : tensor<1x?xf32> into tensor<1x4x?xf32>
  %re = tensor.empty() : tensor<1x4xf32>
  %rf = linalg.fill ins(%zero : f32) outs(%re : tensor<1x4xf32>) -> tensor<1x4xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%y : tensor<1x4x?xf32>) outs(%rf : tensor<1x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.mulf %a, %a : f32
    %r = arith.addf %q, %o : f32
    linalg.yield %r : f32
  } -> tensor<1x4xf32>
  %ye = tensor.empty(%M) : tensor<1x4x?xf32>
  %z = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y, %s : tensor<1x4x?xf32>, tensor<1x4xf32>) outs(%ye : tensor<1x4x?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.mulf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<1x4x?xf32>
  %b = tensor.collapse_shape %z [[0], [1, 2]] : tensor<1x4x?xf32> into tensor<1x?xf32>
  %v = tensor.expand_shape %b [[0], [1, 2, 3]] output_shape [1, 32, %H, %W] : tensor<1x?xf32> into tensor<1x32x?x?xf32>
  %xe = tensor.empty(%H, %W) : tensor<1x32x?x?xf32>
  %out = linalg.generic {indexing_maps = [#image, #channel, #image],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%v, %g : tensor<1x32x?x?xf32>, tensor<32xf32>) outs(%xe : tensor<1x32x?x?xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %r = arith.mulf %a, %c : f32
    linalg.yield %r : f32
  } -> tensor<1x32x?x?xf32>
  return %out : tensor<1x32x?x?xf32>
}
"""


def test_reshapes_of_a_group_norm_with_dynamic_images_are_folded() -> None:
    """A batch of one, and groups that split the channels: two reshapes where there were three, and then the pass is done."""
    text = ingest(GROUP_NORM, {"H": (1, 9), "W": (1, 9)}).text
    after = run(text, recover_passes())
    assert (after.count("tensor.collapse_shape"), after.count("tensor.expand_shape")) == (2, 3)
    assert_same(text, after, {"H": 3, "W": 5}, {"H": 1, "W": 1})


def test_code_around_kernels_keeps_no_pointer_for_later() -> None:
    """Each is loaded for the call that takes it; and the code of a Python call copies the addresses of constants at once."""

    def bodies(layers: int) -> tuple[str, str]:
        graph, rng = ops.Graph(), np.random.default_rng(0)
        x = graph.input("x", ["B", 8])
        for _ in range(layers):
            x = ops.matmul(x, graph.constant(rng.random((8, 8), np.float32)))
        graph.output(x)
        fn = tw.compile(graph, {"B": (1, 9)}, options={"builder": LocalBuilder(full_target("host"))})
        texts = fn._bundle.llvm_ir
        host = texts[fn.program.host_object].partition("@tw_launches(ptr")[2].partition("\n}\n")[0]
        return host, texts[fn.program.binder_object]

    (_, few), (host, many) = bodies(20), bodies(80)
    assert abs(many.count("\n") - few.count("\n")) < 30  # when the lock is released differs
    calls = host.split("call void @tw_launch_0(")
    assert [call.count("load ptr") for call in calls[1:-1]] == [1] * 78 + [2]  # the last one's result is the caller's


def test_calls_of_equal_layers_share_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells them apart is the memory of their operands; an extent of another name makes another function."""
    monkeypatch.setattr(host_program, "ALONE", 2)
    monkeypatch.setattr(strided_inputs, "ALONE", 2)

    def chain_of(layers: int) -> CompiledFunction:
        graph = ops.Graph()
        x = graph.input("x", ["B", 8])
        for i in range(layers):
            x = ops.matmul(x, graph.input(f"w{i}", [8, 8]))
        graph.output(x, ops.matmul(graph.input("y", ["C", 8]), graph.input("v", [8, 8])))
        return tw.compile(graph, {"B": (1, 400), "C": (1, 8)}, options={"builder": LocalBuilder(full_target("host"))})

    few, many = chain_of(3), chain_of(9)
    sizes = [len(fn._bundle.llvm_ir[fn.program.host_object]) for fn in (few, many)]
    assert many._bundle.llvm_ir[many.program.host_object].count("define internal void @tw_launch_") == 1
    assert sizes[1] - sizes[0] < sizes[0]
    table = many.program.tables[0]
    dispatch = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(many._caller.code.address("tw_dispatch"))
    rng = np.random.default_rng(0)
    for b, c in ((1, 8), (37, 1), (400, 3)):
        x, y, *w = (rng.standard_normal(s, np.float32) / 3 for s in ((b, 8), (c, 8), *[(8, 8)] * 10))
        given = dict(zip([a.name for a in many.inputs], [x, *w[:9], y, w[9]], strict=True))
        found = many(**given)
        np.testing.assert_allclose(found[0], np.linalg.multi_dot([x, *w[:9]]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[1], y @ w[9], rtol=1e-4, atol=1e-5)
        dims = np.array([{"B": b, "C": c}[d.name] for d in many.program.dims], np.int64)
        for number, call in enumerate(many.program.calls):
            local = dict(zip(table.dims, (Expr.parse(d).evaluate({"B": b, "C": c}) for d in call.dims), strict=True))
            leaf = table.select(local)
            assert dispatch(number, dims.ctypes.data) == leaf.kernel | leaf.threads << 32
