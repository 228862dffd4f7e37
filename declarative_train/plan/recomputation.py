"""Activation checkpointing in a plan: the part of the forward that is computed again in the backward
(`engine/step/model_preparation.py`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.core.amounts import format_count

if TYPE_CHECKING:
    from declarative_train.graph.graph import Node
    from declarative_train.recipe.sections.training import ActivationCheckpointing

Policy = Literal["none", "selective", "blocks", "all"]
_IN_WORDS = {"attention": "attention", "products": "products", "every_second_product": "every second product"}


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Policy of activation checkpointing. `every`: 1 means that every unit (block) is recomputed, 2 every second one.
    `keep`: for the policy `selective`, the operations whose results are kept."""

    policy: Policy
    every: int = 1
    keep: tuple[str, ...] = ()

    @staticmethod
    def of(section: ActivationCheckpointing) -> Recomputation:
        """Return the policy in the recipe's section `activation_checkpointing`. Keys that the policy does not use get
        their defaults."""
        policy = section.policy
        every = section.every if policy in ("blocks", "selective") else 1
        return Recomputation(policy, every, section.keep if policy == "selective" else ())

    def units(self, units: tuple[str, ...]) -> tuple[str, ...]:
        """Return the paths of the blocks that are recomputed. `units`: paths of all blocks of the model.

        With `every: n` in the recipe, these are the first of `units` and every n-th after it. Blocks are counted in the
        whole model and not in each pipeline stage, so that the result is the same on every layout.
        """
        return () if self.policy == "none" else units[:: self.every]

    def part_of(self, node: Node, units: Collection[str]) -> float:
        """Return the share (0 to 1) of a node's forward that is computed again. `units`: paths of the blocks that are
        recomputed. For the policy `selective`, the share is an estimate."""
        if self.policy == "all":
            return float(node.kind in ("layer", "block"))
        if node.name not in units:
            return 0.0
        if self.policy == "selective" and "products" in self.keep:
            return 0.0
        return 0.5 if self.policy == "selective" and "every_second_product" in self.keep else 1.0

    @property
    def in_words(self) -> str:
        of = "blocks" if self.every == 1 else f"one of every {format_count(self.every, 'block')}"
        if self.policy != "selective":
            return f"activations of {'all' if self.policy == 'all' else of}"
        return f"activations of {of}, except {' and '.join(_IN_WORDS[word] for word in self.keep)}"
