"""60 models of transformers and timm, made from random configs, as `dtrain fits` plans them: as a block of ours where
one computes the family, else as a node of the library."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import declarative_train as dt
from declarative_train.plan.plan import Plan
from tests.planner.measure import Result, measure_plan

TOTAL_BOUND, CLASS_BOUND = 0.03, 0.10
LENGTH, BATCH, SIDE, VOCABULARY = 32, 8, 64, 2000

DENSE = (
    "BloomForCausalLM", "CohereForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM", "GemmaForCausalLM", "LlamaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM",
    "MistralForCausalLM", "NemotronForCausalLM", "OPTForCausalLM", "Olmo2ForCausalLM", "Phi3ForCausalLM",
    "PhiForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM",
)  # fmt: skip
MIXTURES = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Dots1ForCausalLM", "Ernie4_5_MoeForCausalLM",
    "GptOssForCausalLM", "GraniteMoeForCausalLM", "JetMoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM",
    "PhimoeForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip
ENCODERS = (
    "AlbertForMaskedLM", "BertForMaskedLM", "BertModel", "DebertaV2ForMaskedLM", "DistilBertForMaskedLM",
    "ElectraForMaskedLM", "FNetForMaskedLM", "MPNetForMaskedLM", "ModernBertForMaskedLM", "RobertaForMaskedLM",
    "T5EncoderModel", "XLMRobertaModel",
)  # fmt: skip
VISION = (
    "BeitForImageClassification", "ConvNextForImageClassification", "DeiTForImageClassification",
    "Dinov2ForImageClassification", "ResNetForImageClassification", "SegformerForImageClassification",
    "SwinForImageClassification", "ViTForImageClassification",
)  # fmt: skip
TIMM = {  # with the arguments that make them smaller
    "convnext_atto": {"depths": [1, 1, 2, 1]},
    "densenet121": {"block_config": [2, 2, 2, 2]},
    "edgenext_xx_small": {},
    "efficientnet_b0": {},
    "mixer_s32_224": {"img_size": SIDE},
    "regnetx_002": {},
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": SIDE, "depth": 3},
}  # fmt: skip
LARGER = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
QUICK = {
    "BertForMaskedLM", "ConvNextForImageClassification", "DebertaV2ForMaskedLM", "FalconForCausalLM",
    "LlamaForCausalLM", "MambaForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "SwinForImageClassification",
    "T5EncoderModel", "efficientnet_b0", "vit_tiny_patch16_224",
}  # fmt: skip
KINDS = {"dense": DENSE, "mixtures": MIXTURES, "encoders": ENCODERS, "vision": VISION, "timm": tuple(TIMM)}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Model with a way to run it: precision and recomputation rotate over the list."""

    kind: str
    model: str
    precision: str
    checkpointing: str

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.model}, {self.precision}, {self.checkpointing}"

    @property
    def is_quick(self) -> bool:
        return self.model in QUICK


def architectures() -> list[Architecture]:
    found = []
    for kind, names in KINDS.items():
        for at, model in enumerate(names):
            found.append(Architecture(kind, model, ("fp32", "bf16")[at % 2], ("none", "none", "blocks")[at % 3]))
    return found


def plan_of(each: Architecture, folder: Path, **values: object) -> Plan:
    """Return the plan of a model; `values` replace those of its config."""
    from declarative_train.tools.fits.target import target_of_folder  # the core is tested without tools

    write_config(each, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    made = target_of_folder(
        str(folder), task="pretrain", batch=BATCH, length=length_of(each), precision=each.precision, layout={"gpus": 1}
    )
    settings = {
        "parallelism": {},
        "layout.device": "cpu",
        "training.activation_checkpointing": each.checkpointing,
        "logging.dir": str(folder / "runs"),
    }
    with contextlib.redirect_stderr(io.StringIO()):
        return dt.loads(made.text, set=settings).plan().plan


def length_of(each: Architecture) -> int | None:
    return None if each.kind in ("vision", "timm") else LENGTH


def write_config(each: Architecture, folder: Path) -> None:
    if each.kind == "timm":
        config: dict[str, Any] = {"architecture": each.model, "num_classes": 10, "model_args": TIMM[each.model]}
        config["pretrained_cfg"] = {"input_size": [3, SIDE, SIDE]}
    else:
        from tests.pretrained_models import config_of

        found = config_of(known_models()[each.model])
        if each.model in QUICK and each.kind in ("dense", "encoders"):
            for key, value in LARGER.items():
                if hasattr(found, key):
                    setattr(found, key, value)
        config = json.loads(found.to_json_string(use_diff=False)) | {"architectures": [each.model]}
        config["vocab_size"] = VOCABULARY  # with a tiny one, a single activation is several percent
        ends = {key: 1 for key, value in config.items() if key.endswith("token_id") and value and value >= VOCABULARY}
        config |= ends
    (folder / "config.json").write_text(json.dumps(config))


@cache
def known_models() -> dict[str, Any]:
    from tests.pretrained_models import models

    return {each.name: each for each in models()}


def measure(each: Architecture) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return measure_plan(each.name, plan_of(each, Path(folder)))


def are_close(result: Result) -> bool:
    return abs(result.ratio - 1) <= TOTAL_BOUND and result.worst_class[1] <= CLASS_BOUND


def chosen(words: list[str]) -> Iterator[Architecture]:
    yield from (each for each in architectures() if all(word in each.name for word in words))
