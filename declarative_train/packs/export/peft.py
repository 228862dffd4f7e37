"""Export format `peft`: only the adapters, as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`.

https://huggingface.co/docs/peft/developer_guides/checkpoint. If the run began with a published model, the tensors have
the names of that model, and PEFT adds them to the model of transformers. Otherwise they have the recipe's names, and
PEFT adds them to the module that `load.py` builds, or to any other with these names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.inference.trained import UsageError
from declarative_train.packs.export.export_errors import ExportFailure
from declarative_train.packs.export.model_card import auto_of
from declarative_train.packs.pretrained.adapters import MAGNITUDE, A, B
from declarative_train.packs.pretrained.adapters.modules.lora import LoraLinear
from declarative_train.packs.pretrained.adapters.peft_folder import CONFIG, FILE, PREFIX, Slice
from declarative_train.packs.pretrained.formats import tensor_map
from declarative_train.packs.pretrained.published import architecture_of, family_of
from declarative_train.plan.tensor_maps import parts_in

if TYPE_CHECKING:
    import torch

    from declarative_train.packs.export.program import Program
    from declarative_train.plan.plan import PartPlan

__all__ = ["FILE", "auto_class", "config_of", "tensors", "write"]


class PeftAdapter(NamedTuple):
    """Adapter as PEFT describes it.

    module         name of the adapted module
    a, b           matrices A (rank, in) and B (out, rank)
    alpha          PEFT scales the product B A by alpha / rank, or by alpha / sqrt(rank) with rslora
    is_transposed  whether the published model stores the weight of the module as (in, out)
    magnitude      lengths of the rows, only for DoRA"""

    module: str
    a: torch.Tensor
    b: torch.Tensor
    alpha: float
    is_transposed: bool
    magnitude: torch.Tensor | None = None


def write(program: Program, path: Path) -> None:
    """Write the adapters and their config. Raises ExportFailure if PEFT's format cannot represent the model, and
    UsageError if the model has no adapters."""
    from safetensors.torch import save_file

    save_file({name: item.clone() for name, item in tensors(program).items()}, path, metadata={"format": "pt"})
    config = json.dumps(config_of(program), indent=2, sort_keys=True) + "\n"
    (path.parent / CONFIG).write_text(config, encoding="utf-8")


def tensors(program: Program) -> dict[str, torch.Tensor]:
    """Return {name in PEFT's file: tensor} for the adapters, and for other modules that have a trained parameter."""
    found: dict[str, torch.Tensor] = {}
    for each in _adapters(program):
        found |= {f"{PREFIX}{each.module}.{A}": each.a, f"{PREFIX}{each.module}.{B}": each.b}
        if each.magnitude is not None:
            found[f"{PREFIX}{each.module}.{MAGNITUDE}"] = each.magnitude
    state = program.network.state_dict()
    trained = [f"{module}." for module in _other_trained(program)]
    for name, item in state.items():
        if name.startswith(tuple(trained)) and not is_added(name):
            for part, first, last in _rows(program, name, item.shape[0]):
                rows = item[first:last]
                found[f"{PREFIX}{part.name}"] = rows.T if part.transpose else rows
    return {name: item.contiguous() for name, item in found.items()}


def config_of(program: Program) -> dict[str, Any]:
    """Return PEFT's config. `r` and `lora_alpha` are the most frequent rank and alpha of the adapters. Modules with
    another rank or alpha are in `rank_pattern` or `alpha_pattern`. Raises UsageError if the model has no adapters, and
    ExportFailure if PEFT's format cannot represent them."""
    adapters = list(_adapters(program))
    if not adapters:
        raise UsageError("the model has no adapters; help: --to safetensors writes its weights")
    if program.base is not None and tensor_map(program.base.plan).grown:
        message = "the model has more tokens than its base, to which PEFT would add the adapters"
        raise ExportFailure(f"{message}; help: --to huggingface writes the whole model")
    ours = _modules(program).values()
    flags = {(each.adapter.rslora, each.adapter.dropout, each.has_magnitude) for each in ours}
    if len(flags) > 1:
        words = "PEFT has one `type`, one `dropout` and one `rslora` for all adapters, and this model has several"
        raise ExportFailure(words)
    ((rslora, dropout, is_dora),) = flags
    ranks = {each.module: each.a.shape[0] for each in adapters}
    alphas = {each.module: _short(each.alpha) for each in adapters}
    rank = Counter(ranks.values()).most_common(1)[0][0]
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    others = [module for each in _other_trained(program) for module in _base_names(program, each)]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if auto_class(program) == _CAUSAL else None,
        "base_model_name_or_path": None if program.base is None else program.base.path,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "use_rslora": rslora,
        "use_dora": is_dora,
        "bias": "none",
        "fan_in_fan_out": all(each.is_transposed for each in adapters),
        "target_modules": sorted(ranks),
        "modules_to_save": others or None,
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
    }


_CAUSAL = "AutoModelForCausalLM"


def auto_class(program: Program) -> str | None:
    """Return the name of the class of transformers that loads the published base model; None for another base."""
    if program.base is None:
        return None
    family, config = family_of(program.base.plan.block), program.base.plan.config
    assert family is not None
    assert config is not None
    return auto_of(architecture_of(family.kinds[str(config["model_type"])], program.base.plan.params))


def _modules(program: Program) -> dict[str, LoraLinear]:
    return {name: part for name, part in program.network.named_modules() if isinstance(part, LoraLinear)}


def _rows(program: Program, name: str, rows: int) -> Iterator[tuple[PartPlan, int, int]]:
    """Yield (tensor, first, end) for each tensor of the published base model from which the parameter `name` is made.
    The tensor fills the rows `first` to `end` - 1 of the parameter, which has `rows` rows. Without a published base
    model, yield only the parameter itself. Raises ExportFailure if the base model lacks the parameter."""
    base = program.base
    if base is None:
        from declarative_train.plan.plan import PartPlan

        yield PartPlan(name), 0, rows
        return
    node = f"{base.plan.node}."
    parts = parts_in(tensor_map(base.plan), name.removeprefix(node)) if name.startswith(node) else ()
    if not parts:
        raise ExportFailure(f"`{name}` was trained, but the published model lacks it; help: --to safetensors")
    first, shares = 0, sum(part.share for part in parts)
    for part in parts:
        last = first + rows * part.share // shares
        yield part, first, last
        first = last


def _adapters(program: Program) -> Iterator[PeftAdapter]:
    for path, module in _modules(program).items():
        adapter = module.adapter
        a, b = module.lora_A.weight.detach(), module.lora_B.weight.detach()
        m = module.lora_magnitude_vector.detach() if module.has_magnitude else None
        parts = list(_rows(program, f"{path}.weight", module.out_features))
        slices = [Slice(part.name.removesuffix(".weight"), first, last) for part, first, last in parts]
        flipped = parts[0][0].transpose
        if adapter.split is None:
            for each in slices:
                rows = slice(each.first, each.last)
                yield PeftAdapter(each.module, a, b[rows], adapter.alpha, flipped, None if m is None else m[rows])
            continue
        named = {(each.first, each.last): each.module for each in slices}
        if set(named) >= set(adapter.split):
            first = 0
            for at, (begin, end) in enumerate(adapter.split):
                rows = slice(first, first + end - begin)
                own = a[at * adapter.rank : (at + 1) * adapter.rank], b[rows]
                yield PeftAdapter(named[begin, end], *own, adapter.alpha, flipped, None if m is None else m[rows])
                first += end - begin
            continue
        if len(slices) > 1 or m is not None:
            raise ExportFailure(f"the `split` of the adapter of `{path}` is not that of the published model")
        # one adapter with the ranks of all parts: B is block-diagonal
        count, first = len(adapter.split), 0
        whole = b.new_zeros(module.out_features, a.shape[0])
        for at, (begin, end) in enumerate(adapter.split):
            whole[begin:end, at * adapter.rank : (at + 1) * adapter.rank] = b[first : first + end - begin]
            first += end - begin
        alpha = adapter.alpha * (sqrt(count) if adapter.rslora else count)
        yield PeftAdapter(slices[0].module, a, whole, alpha, flipped)


def _other_trained(program: Program) -> list[str]:
    """Return the names of the modules, other than adapters, that have trained parameters. Raises ExportFailure if
    PEFT's format cannot store one of these parameters."""
    found = sorted({name.rpartition(".")[0] for name in program.learned if not is_added(name)})
    both = next((name for name in found if name in _modules(program)), None)
    if both is not None:
        raise ExportFailure(
            f"the bias of {both} was trained with its adapter, which PEFT's format cannot store; help: --to safetensors"
        )
    tied = next((name for name in program.learned if program.base is not None and name in program.base.ties), None)
    if tied is not None:
        raise ExportFailure(
            f"{tied} was trained and is shared by two modules, which PEFT's format cannot store; help: --to safetensors"
        )
    return found


def _base_names(program: Program, module: str) -> list[str]:
    """Return the names of the modules in the published base model that correspond to the recipe's module `module`."""
    names = [name for name in program.network.state_dict() if name.rpartition(".")[0] == module]
    found = {part.name.rpartition(".")[0]: None for name in names for part, _, _ in _rows(program, name, 1)}
    return list(found)


def _short(number: float) -> float:
    return int(number) if float(number).is_integer() else number
