"""What of a forward is computed once more in its backward: `engine/step/model.py` sees to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.core.amounts import counted

if TYPE_CHECKING:
    from declarative_train.graph.graph import Node
    from declarative_train.recipe.sections.training import ActivationCheckpointing

Policy = Literal["none", "selective", "blocks", "all"]
_IN_WORDS = {"attention": "attention", "products": "products", "every_second_product": "every second product"}


@dataclass(frozen=True, slots=True)
class Recomputation:
    """`every`: of so many units the first; `keep`: what `selective` does not compute again."""

    policy: Policy
    every: int = 1
    keep: tuple[str, ...] = ()

    @staticmethod
    def of(section: ActivationCheckpointing) -> Recomputation:
        policy = section.policy
        every = section.every if policy in ("blocks", "selective") else 1
        return Recomputation(policy, every, section.keep if policy == "selective" else ())

    def units(self, units: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a whole model's that are computed again. Counted in the model, not in a pipeline's stage, so that a
        layout changes nothing."""
        return () if self.policy == "none" else units[:: self.every]

    def part_of(self, node: Node, units: Collection[str]) -> float:
        """How much of the node's forward runs once more: of `selective` about so much of its products. `units`: as
        `units` gives them."""
        if self.policy == "all":
            return float(node.kind in ("layer", "block"))
        if node.name not in units:
            return 0.0
        if self.policy == "selective" and "products" in self.keep:
            return 0.0
        return 0.5 if self.policy == "selective" and "every_second_product" in self.keep else 1.0

    @property
    def in_words(self) -> str:
        of = "blocks" if self.every == 1 else f"one of each {counted(self.every, 'block')}"
        if self.policy != "selective":
            return f"activations of {'all' if self.policy == 'all' else of}"
        return f"activations of {of}, but for {' and '.join(_IN_WORDS[word] for word in self.keep)}"
