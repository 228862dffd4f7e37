"""A llama whose steps are watched, and every way to run it: wide enough that bookkeeping is a hundredth of what
travels, small enough for a second a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import compiled, merged, on_pipeline

LENGTH, VOCABULARY, WIDTH, LAYERS = 64, 512, 128, 8

LLAMA: dict[str, Any] = {
    "name": "watched",
    "data": {
        "source": {"type": "synthetic", "kind": "tokens", "rows": 20000, "vocabulary": VOCABULARY},
        "window": {"length": LENGTH + 1, "stride": LENGTH},
        "fields": {"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}},
    },
    "model": {
        "graph": {
            "llama": {
                "type": "llama",
                "vocabulary": VOCABULARY,
                "layers": LAYERS,
                "width": WIDTH,
                "heads": 4,
                "input": "tokens",
            }
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "llama", "target": "next"}},
    "training": {"steps": 3, "global_batch_size": 16, "optimizer": {"type": "adamw", "lr": 1e-3}},
    "layout": {"gpus": 1, "device": "cpu", "hardware": "h100-sxm"},
}

CELLS: dict[str, dict[str, Any]] = {
    "single": {},
    "dp 2": {"parallelism": "dp", "layout": {"gpus": 2}},
    "ddp 2": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "ddp 4": {"parallelism": "ddp", "layout": {"gpus": 4}},
    "fsdp 2": {"parallelism": "fsdp", "layout": {"gpus": 2}},
    "fsdp 4, accumulation 2": {
        "parallelism": "fsdp",
        "layout": {"gpus": 4},
        "training": {"gradient_accumulation_steps": 2},
    },
    "fsdp 4, kept": {"parallelism": {"data": {"shard": "all", "reshard": False}}, "layout": {"gpus": 4}},
    "fsdp 4, over 2": {"parallelism": {"data": {"shard": "all", "reshard": 2}}, "layout": {"gpus": 4}},
    "hybrid 2 x 2": {"parallelism": {"data": {"replicate": 2, "shard": "all"}}, "layout": {"gpus": 4}},
    "gpipe 2": on_pipeline(2, "gpipe", 2),
    "1f1b 2": on_pipeline(2, "1f1b", 2),
    "1f1b 4": on_pipeline(4, "1f1b", 4),
    "interleaved 2": on_pipeline(4, "interleaved_1f1b", 2),
    "looped 2": on_pipeline(4, "looped_bfs", 2),
    "zero bubble 2": on_pipeline(4, "interleaved_zero_bubble", 2),
    "zbv 2": on_pipeline(4, "zbv", 2),
    "dualpipev 2": on_pipeline(4, "dualpipev", 2),
    "1f1b 2 x ddp 2": on_pipeline(2, "1f1b", 4, data={"replicate": 2}),
    "1f1b 2 x fsdp 2": on_pipeline(2, "1f1b", 4, data={"shard": 2}),
    "zbv 2 x fsdp 2": on_pipeline(4, "zbv", 4, data={"shard": 2}),
}


def planned(directory: Path, cell: str, precision: str, **training: Any) -> Plan:
    return compiled(directory, merged(merged(LLAMA, CELLS[cell]), {"training": {"precision": precision, **training}}))
