"""Models of the suite, over made data: every kind of kernel that the layers use, small enough for a second each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.made_recipes import DEEP, merged

VOCABULARY = 64
NUM_TOKENS = 32
NUM_SAMPLES = 96


def write_all(folder: Path) -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(0, VOCABULARY, (NUM_SAMPLES, NUM_TOKENS + 1))
    following = tokens[:, 1:].copy()
    following[random.random(following.shape) < 0.2] = -100
    y = random.integers(0, 10, NUM_SAMPLES)
    centres = random.normal(size=(10, 3, 16, 16))
    images = (centres[y] + random.normal(size=(NUM_SAMPLES, 3, 16, 16))).astype(np.float32)
    np.savez(folder / "tokens.npz", tokens=tokens[:, :-1], following=following)
    np.savez(folder / "images.npz", image=images, y=y)
    np.savez(folder / "data.npz", x=images.reshape(NUM_SAMPLES, -1)[:, :20], y=y)


def of_tokens(graph: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "made",
        "data": {
            "source": {"type": "npy", "path": "tokens.npz"},
            "fields": {
                "tokens": {"column": "tokens", "dtype": "int64"},
                "following": {"column": "following", "dtype": "int64"},
            },
            "split": {"validation": 0.25},
        },
        "model": {"graph": graph},
        "objective": {
            "loss": {"type": "cross_entropy", "input": "logits", "target": "following", "ignore_index": -100},
        },
        "training": {"epochs": 2, "global_batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.1}},
        "evaluation": {"every": "1 epoch"},
        "logging": {"dir": "runs", "every": "1 step"},
    }


def block(name: str, **more: Any) -> dict[str, Any]:
    sizes = {"layers": 4, "width": 64, "heads": 4, "hidden": 128, "vocabulary": VOCABULARY}
    return {"logits": {"type": name, **sizes, "input": "tokens", **more}}


IMAGES: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "images.npz"},
        "fields": {"image": {"column": "image"}, "y": {"type": "category", "column": "y", "num_classes": 10}},
        "split": {"validation": 0.25},
    },
    "model": {
        "graph": {
            "conv": {"type": "conv2d", "out_channels": 16, "kernel_size": 3, "padding": 1, "input": "image"},
            "norm": {"type": "batch_norm"},
            "act": {"type": "relu"},
            "pool": {"type": "max_pool2d", "kernel_size": 2},
            "again": {"type": "conv2d", "out_channels": 16, "kernel_size": 3, "padding": 1},
            "mean": "mean(again, dim=(2, 3))",
            "logits": {"type": "linear", "out_features": 10},
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y"}, "metrics": ["accuracy"]},
    "training": {"epochs": 2, "global_batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.1}},
    "evaluation": {"every": "1 epoch"},
    "logging": {"dir": "runs", "every": "1 step"},
}

RECURRENT = of_tokens(
    {
        "embed": {"type": "embedding", "num_embeddings": VOCABULARY, "embedding_dim": 32, "input": "tokens"},
        "a": {"type": "lstm", "hidden_size": 32},
        "b": {"type": "gru", "hidden_size": 32},
        "logits": {"type": "linear", "out_features": VOCABULARY},
    }
)

MODELS: dict[str, dict[str, Any]] = {
    "mlp": merged(DEEP, {"checkpoint": None}),
    "gpt": of_tokens(block("gpt")),
    "llama": of_tokens(block("llama", kv_heads=2)),
    "images": IMAGES,
    "recurrent": RECURRENT,
}
