"""`--to peft`: the adapters alone, as PEFT writes them: `adapter_config.json` and `adapter_model.safetensors`.

https://huggingface.co/docs/peft/developer_guides/checkpoint. The names are the recipe's, below `base_model.model.`; so
PEFT loads them on a module that has these names, such as the one that `load.py` makes.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.adapters.modules.lora import LoraLinear
from declarative_train.inference.export.trouble import ExportFailure
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import torch

    from declarative_train.components.adapters.lora import Lora
    from declarative_train.inference.export.program import Program

FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."


def write(program: Program, path: Path) -> None:
    """Raises ExportFailure for a model that PEFT's files cannot say, and UsageError for one without adapters."""
    from safetensors.torch import save_file

    save_file({name: item.clone() for name, item in tensors(program).items()}, path, metadata={"format": "pt"})
    config = json.dumps(config_of(program), indent=2, sort_keys=True) + "\n"
    (path.parent / CONFIG).write_text(config, encoding="utf-8")


def tensors(program: Program) -> dict[str, torch.Tensor]:
    """The adapters, and whole every other module of which something was trained."""
    held = program.network.state_dict()
    whole = tuple(f"{name}." for name in _trained_beside(program))
    return {
        f"{PREFIX}{name}": item.contiguous() for name, item in held.items() if is_added(name) or name.startswith(whole)
    }


def config_of(program: Program) -> dict[str, Any]:
    """What PEFT reads; ranks and alphas that are not the most frequent stand in patterns."""
    adapters = _adapters(program)
    if not adapters:
        raise UsageError("the model has no adapters; help: --to safetensors writes its weights")
    flags = {(each.rslora, each.dropout) for each in adapters.values()}
    if len(flags) > 1:
        raise ExportFailure("PEFT has one `dropout` and one `rslora` for all adapters, and this model has several")
    ((rslora, dropout),) = flags
    rank = Counter(each.rank for each in adapters.values()).most_common(1)[0][0]
    alpha = Counter(each.alpha for each in adapters.values()).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _short(alpha),
        "lora_dropout": dropout,
        "use_rslora": rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(adapters),
        "modules_to_save": _trained_beside(program) or None,
        "rank_pattern": {name: each.rank for name, each in adapters.items() if each.rank != rank},
        "alpha_pattern": {name: _short(each.alpha) for name, each in adapters.items() if each.alpha != alpha},
    }


def _adapters(program: Program) -> dict[str, Lora]:
    return {name: part.adapter for name, part in program.network.named_modules() if isinstance(part, LoraLinear)}


def _trained_beside(program: Program) -> list[str]:
    """The modules that hold something trained that is no adapter."""
    found = sorted({name.rpartition(".")[0] for name in program.learned if not is_added(name)})
    both = next((name for name in found if name in _adapters(program)), None)
    if both is not None:
        raise ExportFailure(
            f"the bias of {both} was trained beside its adapter, which PEFT's files cannot say; help: --to safetensors"
        )
    return found


def _short(number: float) -> float:
    return int(number) if float(number).is_integer() else number
