"""What torch has for batches of different lengths on a GPU: padded with a mask, packed rows with attention of variable lengths,
nested tensors of both kinds. Each call takes a Batch; its result is packed by `packed`, outside of what is timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tools.bench.gpu.ragged_cases import Batch, Form

Call = Callable[[Batch], Any]
PEERS = ("padded", "varlen", "flash", "nested", "jagged")
PADDED = ("padded", "nested")  # whose results are padded
UNCAPTURED = ("nested", "jagged")  # which read the device on the way


def peers(torch: Any, part: str, form: Form) -> dict[str, Call]:
    """System -> what it does with a batch."""
    varlen = {name: partial(_packed, torch, form, attend) for name, attend in (("varlen", _varlen), ("flash", _flash))}
    if part == "encoder":
        nested = _Stacks(torch, form)
        return {"padded": partial(_padded, torch, form), **varlen, "nested": nested, "jagged": partial(_jagged, torch, form)}
    return {"padded": partial(_padded_attention, torch, form),
            **{n: partial(_packed_attention, torch, form, c) for n, c in (("varlen", _varlen), ("flash", _flash))},
            "jagged": partial(_jagged_attention, torch, form)}


def packed(torch: Any, name: str, given: Batch, result: Any) -> Any:
    """Rows [total, width] of a system's result."""
    if name in PADDED:
        return given.packed(result)
    return result.values() if name == "jagged" else result


def reference(torch: Any, part: str, form: Form, given: Batch) -> Any:
    """The result in f64, sequence by sequence."""
    layer = given.layer
    rows = [x.double() for x in given.rows]
    if part == "encoder":
        q, k, v = _linear(torch, rows[0], layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)
    else:
        q, k, v = rows
    parts = []
    for a, b, c in zip(*(x.split(list(given.lengths)) for x in (q, k, v)), strict=True):
        a, b, c = (x.unflatten(-1, (form.heads, -1)).transpose(0, 1) for x in (a, b, c))
        parts.append((torch.softmax(a @ b.transpose(-1, -2) * form.head**-0.5, -1) @ c).transpose(0, 1).flatten(1))
    mixed = torch.cat(parts)
    if part == "attention":
        return mixed
    norm, own = torch.nn.functional.layer_norm, layer.self_attn.out_proj
    x = rows[0] + _linear(torch, mixed, own.weight, own.bias)
    x = norm(x, (form.width,), layer.norm1.weight.double(), layer.norm1.bias.double(), layer.norm1.eps)
    inner = _linear(torch, x, layer.linear1.weight, layer.linear1.bias).relu()
    x = x + _linear(torch, inner, layer.linear2.weight, layer.linear2.bias)
    return norm(x, (form.width,), layer.norm2.weight.double(), layer.norm2.bias.double(), layer.norm2.eps)


def _linear(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.linear(x, weight.double(), bias.double())


def _projected(torch: Any, layer: Any, x: Any) -> Any:
    return torch.nn.functional.linear(x, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)


def _rest(layer: Any, x: Any, mixed: Any) -> Any:
    x = layer.norm1(x + layer.self_attn.out_proj(mixed))
    return layer.norm2(x + layer.linear2(layer.linear1(x).relu()))


def _padded(torch: Any, form: Form, given: Batch) -> Any:
    (x,), layer = given.padded, given.layer
    q, k, v = _projected(torch, layer, x).unflatten(-1, (3, form.heads, form.head)).permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=given.seen)
    return _rest(layer, x, mixed.transpose(1, 2).flatten(2))


def _padded_attention(torch: Any, form: Form, given: Batch) -> Any:
    q, k, v = (x.unflatten(-1, (form.heads, form.head)).transpose(1, 2) for x in given.padded)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=given.seen)
    return mixed.transpose(1, 2).flatten(2)


def _varlen(torch: Any, q: Any, k: Any, v: Any, given: Batch) -> Any:
    """torch.nn.attention.varlen: rows [total, heads, head]."""
    from torch.nn.attention.varlen import varlen_attn

    longest = max(given.lengths)
    return varlen_attn(q, k, v, given.starts, given.starts, longest, longest)


def _flash(torch: Any, q: Any, k: Any, v: Any, given: Batch) -> Any:
    """FlashAttention's variable lengths as torch's operator has them."""
    longest = max(given.lengths)
    forward = torch.ops.aten._flash_attention_forward
    return forward(q, k, v, given.starts, given.starts, longest, longest, 0.0, False, False)[0]


def _packed(torch: Any, form: Form, attend: Callable[..., Any], given: Batch) -> Any:
    (x,), layer = given.rows, given.layer
    q, k, v = _projected(torch, layer, x).unflatten(-1, (3, form.heads, form.head)).unbind(1)
    return _rest(layer, x, attend(torch, q, k, v, given).flatten(1))


def _packed_attention(torch: Any, form: Form, attend: Callable[..., Any], given: Batch) -> Any:
    q, k, v = (x.unflatten(-1, (form.heads, form.head)) for x in given.rows)
    return attend(torch, q, k, v, given).flatten(1)


class _Stacks:
    """nn.TransformerEncoder, which packs padded input into a nested tensor itself; one for each layer, made outside of calls."""

    def __init__(self, torch: Any, form: Form) -> None:
        self._torch, self._form, self._made = torch, form, dict[int, tuple[Any, Any]]()

    def __call__(self, given: Batch) -> Any:
        found = self._made.get(id(given.layer))
        if found is None:
            stack = self._torch.nn.TransformerEncoder(given.layer, 1).eval()
            found = self._made[id(given.layer)] = (given.layer, stack)
        return found[1](given.padded[0], src_key_padding_mask=given.missing)


def _nested(torch: Any, values: Any, given: Batch) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, given.offsets, min_seqlen=min(given.lengths),
                                                  max_seqlen=max(given.lengths))


def _jagged(torch: Any, form: Form, given: Batch) -> Any:
    x = _nested(torch, given.rows[0], given)
    parts = (_nested(torch, p.contiguous(), given) for p in _projected(torch, given.layer, x).values().chunk(3, -1))
    return _rest(given.layer, x, _attended(torch, form, *parts))


def _jagged_attention(torch: Any, form: Form, given: Batch) -> Any:
    return _attended(torch, form, *(_nested(torch, x, given) for x in given.rows))


def _attended(torch: Any, form: Form, *rows: Any) -> Any:
    q, k, v = (x.unflatten(-1, (form.heads, form.head)).transpose(1, 2) for x in rows)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
