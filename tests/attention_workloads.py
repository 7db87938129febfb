"""Texts of attention workloads, with their references: what fused families compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpu_workloads import Case, generic
from kernel_harness import NUMPY, Dim, T, empty, filled, workload
from tensor_core_workloads import widened

_LOW = {"f32": "0xFF800000", "f16": "0xFC00", "bf16": "0xFF80"}
PLAIN = "b m d,b n d,b n e,b m e"
LAYOUTS = {
    "plain": PLAIN,
    "heads inside": "m b d,n b d,n b e,m b e",
    "turned": "b m d,b d n,b e n,b e m",
    "grouped": "b g m d,b n d,b n e,b g m e",
    "one head": "m d,n d,n e,m e",
}


def attention(maps: str = PLAIN, element: str = "f16", depth: int = 64, columns: int = 64, mask: str = "", scale: float = 0.125,
              out: str = "", computed: bool = False, page: int = 0) -> Case:
    """maps: axes of queries, keys, values and results over the loops of their letters: b and g shared, m queries, n keys.

    mask: "causal" (keys up to m + N - M are seen), "added causal" (the same by adding 0 or -inf), "row" (an operand [m, n] is
    added), "lengths" (of b, keys before N - 8 and an operand [b] are seen) or empty. out: the result is rounded to it. computed:
    queries are doubled in the region. page: keys and values lie in P pages of so many, which an operand [b, c] names; N is as
    many as these have.
    """
    letters = [x.split() for x in maps.split(",")]
    extents: dict[str, Dim] = {"b": "B", "g": "G", "m": "M", "n": "N", "d": depth, "e": columns}
    q, k, v, o = (T(element if i < 3 else "f32", tuple(extents[x] for x in m)) for i, m in enumerate(letters))
    frame = [x for x in letters[0] if x != "d"] + ["n"]
    s = T("f32", tuple(extents[x] for x in frame))
    r, w = T("f32", s.dims[:-1]), T(element, s.dims)
    dims = [e for e in ("B", "G", "M", "N") if e in {*s.dims}] + (["P", "C"] if page else [])

    def over(loops: list[str], axes: list[str]) -> str:
        names = {x: f"d{i}" for i, x in enumerate(loops)}
        return f"({', '.join(names.values())}) -> ({', '.join(names[x] for x in axes)})"

    rank = len(frame)
    full, row = over(frame, frame), over(frame, frame[:-1])
    inputs: dict[str, T] = {"q": q, "k": k, "v": v}
    if page:
        pages = {x: T(element, ("P", page, t.dims[-1])) for x, t in (("k", k), ("v", v))}
        inputs = {"q": q, "kp": pages["k"], "vp": pages["v"], "table": T("i32", ("B", "C"))}
    body = [filled("zs", s, "0.0"), filled("zr", r, "0.0"), filled("zo", o, "0.0"), filled("low", r, _LOW["f32"]), empty("es", s),
            empty("ew", w)]
    for x, t in (("k", k), ("v", v)) if page else ():
        body += [empty(f"e{x}", t), generic(x, [over(["b", "n", "d"], ["b", "n", "d"])], "ppp", {}, (f"e{x}", t),
                                            _looked_up(f"{x}p", inputs[f"{x}p"], inputs["table"], page))]
    left = {"q": q}
    if computed:
        same = over(letters[0], letters[0])
        body += [empty("eq", q), generic("qq", [same, same], "p" * len(q.dims), {"q": q}, ("eq", q),
                                         f"%a = arith.addf %x0, %x0 : {element}\n linalg.yield %a : {element}")]
        left = {"qq": q}
    loops = [*frame, "d"]
    body.append(generic("scores", [over(loops, letters[0]), over(loops, letters[1]), over(loops, frame)], "p" * rank + "r",
                        {**left, "k": k}, ("zs", s), widened(element)))
    body.append(generic("logits", [full, full], "p" * rank, {"scores": s}, ("es", s), _logits(mask, scale, rank, frame)))
    logits = "logits"
    if mask == "lengths":
        inputs["lengths"] = T("i32", ("B",))
        body.append(generic("masked", [full, over(frame, ["b"]), full], "p" * rank, {"logits": s, "lengths": inputs["lengths"]},
                            ("es", s), _LENGTHS.replace("KEY", str(rank - 1))))
        logits = "masked"
    if mask == "row":
        added = T("f32", ("M", "N"))
        inputs["mask"] = added
        body.append(generic("masked", [full, over(frame, ["m", "n"]), full], "p" * rank, {"logits": s, "mask": added}, ("es", s),
                            "%a = arith.addf %x0, %x1 : f32\n linalg.yield %a : f32"))
        logits = "masked"
    kinds = "p" * (rank - 1) + "r"
    body += [
        generic("top", [full, row], kinds, {logits: s}, ("low", r),
                "%a = arith.maximumf %x0, %acc : f32\n linalg.yield %a : f32"),
        generic("powers", [full, row, full], "p" * rank, {logits: s, "top": r}, ("es", s),
                "%a = arith.subf %x0, %x1 : f32\n %b = math.exp %a : f32\n linalg.yield %b : f32"),
        generic("total", [full, row], kinds, {"powers": s}, ("zr", r), "%a = arith.addf %x0, %acc : f32\n linalg.yield %a : f32"),
    ]
    narrow = "" if element == "f32" else f"%c = arith.truncf %a : f32 to {element}\n"
    body.append(generic("weights", [full, row, full], "p" * rank, {"powers": s, "total": r}, ("ew", w),
                        f"%a = arith.divf %x0, %x1 : f32\n {narrow} linalg.yield %{'c' if narrow else 'a'} : {element}"))
    loops = [*[x for x in frame if x != "n"], "e", "n"]
    body.append(generic("mixed", [over(loops, frame), over(loops, letters[2]), over(loops, letters[3])], "p" * rank + "r",
                        {"weights": w, "v": v}, ("zo", o), widened(element)))
    result, final = "mixed", T(out or "f32", o.dims)
    if out:
        same = over(letters[3], letters[3])
        body += [empty("er", final), generic("result", [same, same], "p" * len(o.dims), {"mixed": o}, ("er", final),
                                             f"%a = arith.truncf %x0 : f32 to {out}\n linalg.yield %a : {out}")]
        result = "result"
    if mask in ("causal", "added causal"):
        body.insert(0, "%shift = arith.subi %N, %M : index")
    text = workload(inputs, dims, "\n".join(body), {result: final})
    reference = _reference(letters, mask, scale, 2.0 if computed else 1.0)
    return Case(text, tuple(inputs.values()), (final,), _of_pages(reference) if page else reference)


_LENGTHS = """%key = linalg.index KEY : index
  %length = arith.index_cast %x1 : i32 to index
  %less = arith.constant 8 : index
  %most = arith.subi %N, %less : index
  %end = arith.addi %length, %most : index
  %see = arith.cmpi slt, %key, %end : index
  %lowest = arith.constant 0xFF800000 : f32
  %o = arith.select %see, %x0, %lowest : f32
  linalg.yield %o : f32"""


def _looked_up(pages: str, kind: T, table: T, page: int) -> str:
    """The element of a page that the table names, of which the last one stands for those that there are not."""
    return f"""%b = linalg.index 0 : index
      %n = linalg.index 1 : index
      %d = linalg.index 2 : index
      %one = arith.constant 1 : index
      %each = arith.constant {page} : index
      %block = arith.divui %n, %each : index
      %row = arith.remui %n, %each : index
      %lastb = arith.subi %B, %one : index
      %lastc = arith.subi %C, %one : index
      %bb = arith.minui %b, %lastb : index
      %cc = arith.minui %block, %lastc : index
      %entry = tensor.extract %table[%bb, %cc] : {table.type()}
      %named = arith.index_cast %entry : i32 to index
      %lastp = arith.subi %P, %one : index
      %there = arith.minui %named, %lastp : index
      %x = tensor.extract %{pages}[%there, %row, %d] : {kind.type()}
      linalg.yield %x : {kind.element}"""


def _of_pages(reference: Callable[..., object]) -> Callable[..., object]:
    """A reference of keys and values in order, given those in pages."""

    def compute(q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, *more: np.ndarray) -> object:
        entries = np.where((table < 0) | (table >= len(k)), len(k) - 1, table).astype(int)
        k, v = (x[entries].reshape(*table.shape[:1], -1, x.shape[-1]) for x in (k, v))
        return reference(q, k, v, *more)

    return compute


def _logits(mask: str, scale: float, rank: int, frame: list[str]) -> str:
    text = f"%c = arith.constant {scale} : f32\n %a = arith.mulf %x0, %c : f32\n"
    if mask not in ("causal", "added causal"):
        return text + "linalg.yield %a : f32"
    text += f"""%i = linalg.index {frame.index('m')} : index
      %j = linalg.index {rank - 1} : index
      %last = arith.addi %i, %shift : index
      %lowest = arith.constant 0xFF800000 : f32\n"""
    if mask == "causal":
        return text + """%see = arith.cmpi sle, %j, %last : index
          %o = arith.select %see, %a, %lowest : f32
          linalg.yield %o : f32"""
    return text + """%see = arith.cmpi sge, %last, %j : index
      %zero = arith.constant 0.0 : f32
      %hide = arith.select %see, %zero, %lowest : f32
      %o = arith.addf %a, %hide : f32
      linalg.yield %o : f32"""


def _reference(letters: list[list[str]], mask: str, scale: float, times: float) -> Callable[..., object]:
    q, k, v, o = ("".join(m) for m in letters)
    frame = "".join(x for x in q if x != "d") + "n"

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray, added: np.ndarray | None = None) -> np.ndarray:
        scores = np.einsum(f"{q},{k}->{frame}", a * times, b) * scale
        queries, keys = scores.shape[frame.index("m")], scores.shape[-1]
        if mask in ("causal", "added causal"):
            place = np.arange(queries).reshape([-1 if x == "m" else 1 for x in frame])
            scores = np.where(np.arange(keys) <= place + keys - queries, scores, -np.inf)
        if added is not None and mask == "lengths":
            scores = np.where(np.arange(keys) < added[:, None, None] + keys - 8, scores, -np.inf)
        elif added is not None:
            scores = scores + added
        if not keys:
            return np.zeros([dict(zip(v, c.shape, strict=True)).get(x) or dict(zip(q, a.shape, strict=True))[x] for x in o])
        with np.errstate(invalid="ignore"):
            p = np.exp(scores - scores.max(-1, keepdims=True))
            return np.einsum(f"{frame},{v}->{o}", p / p.sum(-1, keepdims=True), c)

    return compute


def dims_of(case: Case) -> str:
    """The local dims of a case, in the order of its text."""
    return "".join(d for d in "BGMN" if any(d in t.dims for t in case.inputs))


def narrowed(element: str) -> type:
    return NUMPY[element]
