"""`dtrain find`: words of users of torch, Keras, transformers, Lightning and scikit-learn lead to the right place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from declarative_train.app.index import all_entries, find
from declarative_train.app.main import main

BEST = 4  # entries among which the right one must be

HINTS = {  # words that are not of the language: what the hint must contain
    "freeze": "frozen: true",
    "RoPE": "rotary",
    "resume": "--resume",
    "pretrained": "model.weights",
    "batch_size": "global_batch_size",
    "autocast": "precision: bf16",
    "nn.GRUCell": "`gru`",
    "mAP": "average_precision",
    "LARS": "adamw",
    "nn.Sequential": "model.graph",
    "label_smoothing": "cross_entropy",
    "warmup_ratio": "warmup: 5%",
    "pin_memory": "no such choice",
    "report_to": "logging",
    "gradient_checkpointing": "activation_checkpointing",
    "bf16": "training.precision",
    "trainer": "`training`",
    "callbacks": "early_stop",
    "learning_rate": "training.optimizer",
    "scheduler": "lr_schedule",
    "max_steps": "`steps`",
    "early_stopping": "early_stop",
    "save_steps": "every: 500 steps",
    "dropout": "type: dropout",
    "BatchNorm2d": "batch_norm",
    "nn.MultiheadAttention": "self_attention",
    "Transformer": "llama",
    "nn.CrossEntropyLoss": "cross_entropy",
    "BCEWithLogitsLoss": "bce_with_logits",
    "MSELoss": "mse",
    "NLLLoss": "nll",
    "KLDivLoss": "kl_div",
    "TripletMarginLoss": "info_nce",
    "CosineEmbeddingLoss": "info_nce",
    "CosineAnnealingLR": "cosine",
    "OneCycleLR": "one_cycle",
    "StepLR": "step",
    "ReduceLROnPlateau": "not built",
    "DataLoader": "workers",
    "Dataset": "`data`",
    "collate_fn": "fields",
    "num_workers": "workers",
    "train_test_split": "data.split",
    "random_split": "data.split",
    "StandardScaler": "normalize: standard",
    "OneHotEncoder": "category",
    "LabelEncoder": "category",
    "RandomHorizontalFlip": "random_flip",
    "Normalize": "normalize: standard",
    "f1_score": "f1",
    "roc_auc": "auroc",
    "confusion_matrix": "dtrain evaluate",
    "DDP": "`ddp`",
    "FSDP": "`fsdp`",
    "DeepSpeed": "fsdp",
    "ZeRO": "fsdp",
    "pipeline_parallel": "pipeline: {stages",
    "tensor_parallel": "tensor: 2",
    "context_parallel": "context: 2",
    "expert_parallel": "expert",
    "world_size": "layout",
    "torchrun": "docs/launching.md",
    "Slurm": "docs/launching.md",
    "wandb": "sinks: {wandb",
    "onnx": "dtrain export",
    "predict_proba": "run.predict(ROWS)",
    "read_csv": "`csv`",
    "efficientnet_b0": "{type: timm, name: efficientnet_b0}",
    "fit_one_cycle": "one_cycle",
    "torchscript": "torch-export",
    "quantization": "storage: nf4",
    "LoRA": "type: lora",
    "QLoRA": "nf4",
    "pad_token": "mask",
    "attention_mask": "mask",
    "gpu_memory": "dtrain fits",
    "profiler": "docs/run-folder.md",
    "flash_attention": "self_attention",
    "class_weight": "class_weights",
    "cpu_offload": "no offloading",
    "seed_everything": "seed: 0",
    "YOLO": "boxes",
    "tfrecord": "parquet",
    "sync_batchnorm": "over: 32 samples",
    "requires_grad": "frozen: true",
}
OF_PACKS = {"ColorJitter", "DPO", "Mixup", "RandomCrop", "RandomHorizontalFlip", "efficientnet_b0", "tokenizer"}
NAMES = {  # words of the language: an entry that must be among the best
    "EMA": "training.ema",
    "tensorboard": "dtrain tensorboard",
    "sampler": "sweep.sampler",
    "warmup": "training.lr_schedule.warmup",
    "frozen": "model.parameters.NAME.frozen",
    "clip_grad_norm": "training.clip_grad_norm",
    "graph": "model.graph",
    "epochs": "training.epochs",
    "checkpoint": "checkpoint",
    "seed": "seed",
    "nn.Linear": "linear",
    "Conv2d": "conv2d",
    "LayerNorm": "layer_norm",
    "torch.nn.RMSNorm": "rms_norm",
    "Embedding": "embedding",
    "GELU": "gelu",
    "F.softmax": "softmax",
    "AdamW": "adamw",
    "SGD": "sgd",
    "RMSprop": "rmsprop",
    "Lion": "lion",
    "Muon": "muon",
    "shuffle": "data.shuffle",
    "RandomCrop": "random_crop",
    "ColorJitter": "color_jitter",
    "Mixup": "mixup",
    "accuracy": "accuracy",
    "mlflow": "logging.sinks.mlflow",
    "compile": "training.compile",
    "DPO": "dpo",
    "tokenizer": "text.tokenizer",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps",
    "weight_decay": "model.parameters.NAME.weight_decay",
    "h100": "h100-sxm",
    "P001": "P001 ranks-do-not-divide",
    "sweeps": "docs/sweeps.md",
}


def mark_words(words: Iterable[str]) -> list[Any]:
    return [pytest.param(word, marks=pytest.mark.packs if word in OF_PACKS else ()) for word in words]


@pytest.mark.parametrize("word", mark_words(HINTS))
def test_a_word_of_another_tool_leads_to_ours(word: str) -> None:
    assert HINTS[word] in (find(word).hint or "")


@pytest.mark.parametrize("word", mark_words(NAMES))
def test_a_word_of_the_language_is_found(word: str) -> None:
    assert NAMES[word] in [each.name for each in find(word).entries[:BEST]]


def test_what_is_named_exactly_comes_first() -> None:
    assert [each.kind for each in find("linear").entries[:2]] == ["layer", "schedule"]


def test_a_key_of_many_types_has_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "betas", "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["entries"]]
    assert {"adam.betas", "adamw.betas", "lion.betas"} <= set(names)


def test_an_unknown_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "xyzzy"]) == 2
    assert capsys.readouterr().err == ("dtrain: nothing is known about `xyzzy`; help: `dtrain list` shows all types\n")


def test_every_entry_is_one_line() -> None:
    assert [each.name for each in all_entries() if "\n" in each.name + each.about] == []
