"""The models of the suite `zoo`: architectures of transformers and torch.nn with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.bench.operator_spec import Input

if TYPE_CHECKING:
    import torch

VOCABULARY = 1000
_SMALL = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {**_SMALL, "vocab_size": VOCABULARY}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Model:
    """One model: its inputs, the ranges of its dims, the shapes to measure, and how it is made."""

    inputs: Mapping[str, Input]
    ranges: Mapping[str, tuple[int, int]]
    points: tuple[Mapping[str, int], ...]
    make: Callable[[], torch.nn.Module]


def _text(make: Callable[[], torch.nn.Module], mask: bool = False) -> Model:
    inputs = {"ids": Input(("B", "S"), dtype="i64", below=str(VOCABULARY))}
    if mask:
        inputs["mask"] = Input(("B", "S"), dtype="i64", below="2")
    points = ({"B": 1, "S": 7}, {"B": 2, "S": 33}, {"B": 4, "S": 64}, {"B": 1, "S": 128})
    return Model(inputs, {"B": (1, 8), "S": (1, 128)}, points, make)


def _images(make: Callable[[], torch.nn.Module], size: int = 64, most: int = 16) -> Model:
    points = tuple({"B": b} for b in (1, 2, 3, 8 if most > 8 else 4))
    return Model({"x": Input(("B", 3, size, size))}, {"B": (1, most)}, points, make)


def _sequence(make: Callable[[], torch.nn.Module], width: int = 256) -> Model:
    points = ({"B": 1, "S": 7}, {"B": 2, "S": 33}, {"B": 4, "S": 64}, {"B": 1, "S": 128})
    return Model({"x": Input(("B", "S", width))}, {"B": (1, 8), "S": (1, 128)}, points, make)


def _transformers(
    name: str, config: str, values: Mapping[str, Any], pick: str, mask: bool = False, **given: Any
) -> Callable[[], torch.nn.Module]:
    """A model of transformers whose forward takes its inputs by position and gives one tensor."""

    def make() -> torch.nn.Module:
        import transformers

        from tools.bench.zoo.zoo_wrappers import picked

        return picked(getattr(transformers, name)(getattr(transformers, config)(**values)), pick, given, mask)

    return make


def _settled(make: Callable[[], torch.nn.Module], size: int) -> Callable[[], torch.nn.Module]:
    """A model of images whose batch norms have the statistics of some images of this size; without these, what passes through
    random filters becomes smaller from layer to layer, until all of it is 0."""

    def settled() -> torch.nn.Module:
        from tools.bench.zoo.zoo_wrappers import settled

        return settled(make(), size)

    return settled


def _own(name: str) -> Callable[[], torch.nn.Module]:
    """A module of zoo_wrappers."""

    def make() -> torch.nn.Module:
        from tools.bench.zoo import zoo_wrappers

        made: torch.nn.Module = getattr(zoo_wrappers, name)()
        return made

    return make


_VISION = {**_SMALL, "image_size": 64, "patch_size": 16}
_T5 = {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
_RESNET = {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1], "num_labels": 10}
_MOBILE = {"depth_multiplier": 0.5, "image_size": 64, "num_labels": 10}
_EFFICIENT = {"width_coefficient": 0.5, "depth_coefficient": 0.4, "image_size": 64, "num_labels": 10, "hidden_dim": 640}
_CONVNEXT = {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1], "num_labels": 10, "image_size": 64}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_SEGFORMER = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 80, 128], "decoder_hidden_size": 64, "num_labels": 10}
_GPT2 = {"n_embd": 256, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1}
_DISTIL = {"dim": 256, "n_layers": 2, "n_heads": 4, "hidden_dim": 512, "vocab_size": VOCABULARY}

MODELS: Mapping[str, Model] = {
    "bert": _text(_transformers("BertModel", "BertConfig", _TEXT, "last_hidden_state")),
    "bert_masked": _text(_transformers("BertModel", "BertConfig", _TEXT, "last_hidden_state", mask=True), mask=True),
    "bert_base": _text(_transformers("BertModel", "BertConfig", {"num_hidden_layers": 4}, "last_hidden_state")),
    "distilbert": _text(_transformers("DistilBertModel", "DistilBertConfig", _DISTIL, "last_hidden_state")),
    "electra": _text(_transformers("ElectraModel", "ElectraConfig", {**_TEXT, "embedding_size": 64}, "last_hidden_state")),
    "gpt2": _text(_transformers("GPT2LMHeadModel", "GPT2Config", _GPT2, "logits", use_cache=False)),
    "llama": _text(_transformers("LlamaForCausalLM", "LlamaConfig", _GROUPED, "logits", use_cache=False)),
    "qwen2": _text(_transformers("Qwen2ForCausalLM", "Qwen2Config", _GROUPED, "logits", use_cache=False)),
    "t5_encoder": _text(_transformers("T5EncoderModel", "T5Config", _T5, "last_hidden_state")),
    "vit": _images(_transformers("ViTModel", "ViTConfig", _VISION, "last_hidden_state")),
    "swin": _images(_transformers("SwinModel", "SwinConfig", _SWIN, "last_hidden_state")),
    "segformer": _images(_transformers("SegformerForSemanticSegmentation", "SegformerConfig", _SEGFORMER, "logits")),
    "resnet": _images(_transformers("ResNetForImageClassification", "ResNetConfig", _RESNET, "logits")),
    "resnet50": _images(_transformers("ResNetForImageClassification", "ResNetConfig", {}, "logits"), 224, 4),
    "mobilenet_v2": _images(_transformers("MobileNetV2ForImageClassification", "MobileNetV2Config", _MOBILE, "logits")),
    "efficientnet": _images(_settled(
        _transformers("EfficientNetForImageClassification", "EfficientNetConfig", _EFFICIENT, "logits"), 64)),
    "convnext": _images(_transformers("ConvNextForImageClassification", "ConvNextConfig", _CONVNEXT, "logits")),
    "mlp_mixer": _images(_own("MlpMixer")),
    "unet": _images(_own("UNet")),
    "encoder_layer": _sequence(_own("EncoderLayer")),
}  # fmt: skip
