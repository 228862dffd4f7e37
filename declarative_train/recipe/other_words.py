"""What people write who come from other frameworks -> the word here. Data alone, read where a mistake is explained."""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Fix
from declarative_train.terms.span import Span

KEYS = {
    "amp": "precision",
    "batch_size": "global_batch_size",
    "bs": "global_batch_size",
    "clip_grad": "clip_grad_norm",
    "dataset": "data",
    "devices": "gpus",
    "filters": "out_channels",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_clip_val": "clip_grad_norm",
    "keep_prob": "p",
    "learning_rate": "lr",
    "lr_scheduler": "lr_schedule",
    "max_epochs": "epochs",
    "max_grad_norm": "clip_grad_norm",
    "max_steps": "steps",
    "mixed_precision": "precision",
    "monitor": "metric",
    "num_epochs": "epochs",
    "num_nodes": "nodes",
    "num_workers": "workers",
    "patience": "early_stop",
    "per_device_batch_size": "microbatch_size",
    "per_device_train_batch_size": "microbatch_size",
    "prob": "p",
    "random_seed": "seed",
    "rate": "p",
    "save_top_k": "keep",
    "scheduler": "lr_schedule",
    "strategy": "parallelism",
    "train_batch_size": "global_batch_size",
    "units": "out_features",
    "val_split": "split",
    "variables": "vars",
    "vocab_size": "vocabulary",
    "wd": "weight_decay",
}
OTHERWISE = {  # the word here, whose value is another
    "min_lr": ("min_factor", "a part of the lr: `min_factor: 0.1`"),
    "warmup_epochs": ("warmup", "with its unit: `warmup: 1 epoch`"),
    "warmup_ratio": ("warmup", "with its unit: `warmup: 5%`"),
    "warmup_steps": ("warmup", "with its unit: `warmup: 100 steps`"),
}
FROM_THE_INPUT = frozenset({"in_channels", "in_dim", "in_features", "input_dim", "input_size", "normalized_shape"})
VALUES = {  # the first word that is allowed where the value stands
    "16": ("fp16",),
    "32": ("fp32",),
    "bfloat16": ("bf16",),
    "double": ("float64", "fp64"),
    "float": ("float32", "fp32"),
    "float16": ("fp16",),
    "float32": ("fp32",),
    "float64": ("fp64",),
    "gpu": ("cuda",),
    "half": ("float16", "fp16"),
    "int": ("int64",),
    "long": ("int64",),
}
TYPES = {
    "batchnorm1d": "batch_norm",
    "batchnorm2d": "batch_norm",
    "bce": "bce_with_logits",
    "categorical": "category",
    "dense": "linear",
    "distributeddataparallel": "ddp",
    "fullyshardeddataparallel": "fsdp",
    "dataparallel": "dp",
    "kaiming": "kaiming_normal",
    "tsv": "csv",
    "shuffled": "random",
    "xavier": "xavier_normal",
    "zero": "fsdp",
}


EQUAL = frozenset(  # words that mean the same there and take the same value, so that the edit is safe
    {
        *("bfloat16", "double", "float16", "float32", "float64", "long"),
        *("filters", "learning_rate", "max_epochs", "max_grad_norm", "max_steps", "num_epochs", "num_nodes"),
        *("num_workers", "random_seed", "units", "variables", "wd"),
        *("batchnorm1d", "batchnorm2d", "dataparallel", "dense", "distributeddataparallel"),
        *("fullyshardeddataparallel", "kaiming", "xavier"),
    }
)


def renamed(span: Span, name: str, word: str) -> tuple[Fix, ...]:
    """The edit that writes our word in the place of another framework's."""
    return (Fix(span, word, safe=name.lower().replace("_", "") in _EQUAL_LETTERS, replaces=name),)


_EQUAL_LETTERS = frozenset(word.replace("_", "") for word in EQUAL)


def value_here(word: str, allowed: list[str]) -> str | None:
    return next((each for each in VALUES.get(word.lower(), ()) if each in allowed), None)
