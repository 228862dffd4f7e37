"""Loading of adapters (LoRA) from a folder that PEFT wrote: which tensors of the folder fill which parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.amounts import list_names
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.graph.merge import adapters_of
from declarative_train.packs.pretrained.adapters import MAGNITUDE, A, B
from declarative_train.packs.pretrained.adapters.peft_folder import PREFIX, PeftFolder, peft_folder
from declarative_train.packs.pretrained.published_names import PublishedNames
from declarative_train.plan.checks.parameters import weights_do_not_fit
from declarative_train.plan.plan import PartPlan, TensorMapPlan, WeightsPlan
from declarative_train.plan.tensor_maps import check_entries
from declarative_train.recipe.model.selectors import settings_of

if TYPE_CHECKING:
    from declarative_train.graph.lower import Lowered
    from declarative_train.recipe.recipe import Recipe

_SHOWN = 3


def plan_folder(path: str, recipe: Recipe, lowered: Lowered, span: Span) -> tuple[WeightsPlan, list[Diagnostic]]:
    """Plan how a folder of adapters fills the parameters of the model. Return (plan, errors). It is an error if a
    tensor of the folder has no parameter, or does not fit its parameter. `span`: where the recipe names the folder, for
    errors."""
    folder, names = peft_folder(path), PublishedNames(recipe.model.scope)
    entries = dict(_adapter_entries(recipe, lowered, folder, names))
    used = {part.name for parts in entries.values() for part in parts}
    entries |= _other_entries(lowered, folder, names, used)
    used |= {part.name for parts in entries.values() for part in parts}
    tensors = TensorMapPlan(entries, "", [], alone=True)
    found = {f"{PREFIX}{name}": shape for name, shape in folder.shapes.items()}
    unplaced = [name for name in found if name not in used]
    problem = check_entries(lowered.parameters, tensors, found)
    if unplaced:
        listed = list_names(unplaced, _SHOWN)
        hint = (
            f"the selector must match all layers that the folder adapts, such as `{_first_node(lowered)}`; "
            f"{_linear_maps_hint(lowered)}"
        )
        problem = f"has tensors that match no parameter here: {listed}", hint
    diagnostics = [] if problem is None else [weights_do_not_fit(span, path, *problem)]
    return WeightsPlan("", folder.file, {}, tensors), diagnostics


def _adapter_entries(
    recipe: Recipe, lowered: Lowered, folder: PeftFolder, names: PublishedNames
) -> Iterator[tuple[str, list[PartPlan]]]:
    adapters = adapters_of(lowered.graph)
    for path in adapters:
        adapter = settings_of(recipe.model.rules, f"{path}.weight").adapter
        if adapter is None or adapter.made_from != folder.path:
            continue
        present = folder.find_adapted(names.slices(folder, path, lowered.maps[path][0]))
        yield f"{path}.{A}", [PartPlan(f"{PREFIX}{each.module}.{A}", 1, False) for each in present]
        for own in (B, MAGNITUDE) if getattr(adapters[path], "has_magnitude", False) else (B,):
            rows = [PartPlan(f"{PREFIX}{each.module}.{own}", each.last - each.first, False) for each in present]
            yield f"{path}.{own}", rows


def _other_entries(
    lowered: Lowered, folder: PeftFolder, names: PublishedNames, used: set[str]
) -> dict[str, list[PartPlan]]:
    """Return {parameter: tensors of the folder that form it} for the parameters that PEFT trained without an adapter
    (`modules_to_save`, biases). `used`: tensors of the folder that belong to adapters."""
    left = {name for name in folder.shapes if f"{PREFIX}{name}" not in used}
    found: dict[str, list[PartPlan]] = {}
    for name in lowered.parameters if left else ():
        if is_added(name):
            continue
        if name in left:
            found[name] = [PartPlan(f"{PREFIX}{name}", 1, False)]
            continue
        parts, _ = names.parts(name)
        if parts and all(part.name in left for part in parts):
            found[name] = [PartPlan(f"{PREFIX}{part.name}", part.share, part.transpose) for part in parts]
    return found


def _first_node(lowered: Lowered) -> str:
    return next(iter(lowered.maps), "*").partition(".")[0]


def _linear_maps_hint(lowered: Lowered) -> str:
    listed = ", ".join(f"`{path}`" for path in list(lowered.maps)[:_SHOWN])
    return f"linear maps here are {listed}" if listed else "this model has no linear map"
