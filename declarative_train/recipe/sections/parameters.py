"""Settings of the parameters that a selector of `model.parameters` matches."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.components.component import Init, Optimizer
from declarative_train.components.storages import StorageName
from declarative_train.recipe.sections.section import Section


class ParameterSettings(Section):
    """Settings of the parameters that a selector matches. If several selectors match a parameter and set the same key,
    the last one counts; a key that is left out changes nothing.
    """

    frozen: bool | None = None
    """Whether these parameters get no gradient, and their layers behave as in evaluation (dropout off, running
    statistics fixed).
    """
    lr_scale: Annotated[float, Field(ge=0)] | None = None
    """A factor on the learning rate of these parameters."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of these parameters, instead of the optimizer's."""
    init: Init | None = None
    """Start values of these parameters, instead of the layer's own rule."""
    tie: str | None = None
    """The name of the parameter whose values these share: `logits.weight: {tie: embed.weight}`."""
    optimizer: Optimizer | None = None
    """Optimizer of these parameters, instead of training.optimizer."""
    storage: StorageName | None = None
    """Storage of frozen weights of linear maps and embeddings: `bf16`, `int8` or `nf4` (QLoRA); left out: float32.
    Stored weights are unpacked when they are used.
    """
    cut: Literal["whole"] | None = None
    """`whole`: the ranks of the `tensor` axis do not divide these parameters."""
    adapter: Adapter | None = None
    """Adapter that is trained in addition to the weights of these linear maps, by its `type`. A model with adapters is
    frozen except for them, and for parameters with `frozen: false`.
    """

    def only(self, keys: Iterable[str]) -> "ParameterSettings":
        """Return a copy with only the settings named in `keys`."""
        return ParameterSettings().model_copy(
            update={key: getattr(self, key) for key in keys if key in self.model_fields_set}
        )

    def update_with(self, later: "ParameterSettings") -> "ParameterSettings":
        """Return a copy of these settings, in which the keys that are set in `later` have the values from there."""
        return self.model_copy(update={key: getattr(later, key) for key in later.model_fields_set})
