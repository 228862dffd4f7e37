"""What `model.parameters` can set for the parameters that a selector finds."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from declarative_train.components.component import Adapter, Init, Optimizer
from declarative_train.components.storages import StorageName
from declarative_train.recipe.sections.section import Section


class ParameterSettings(Section):
    """Settings for some parameters. Later selectors win key by key; a key left out changes nothing."""

    frozen: bool | None = None
    """No gradient, and evaluation behaviour of the layers (dropout off, running statistics fixed)."""
    lr_scale: Annotated[float, Field(ge=0)] | None = None
    """A factor on the learning rate of these parameters."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Instead of the optimizer's own weight decay."""
    init: Init | None = None
    """How these parameters start, instead of the layer's own rule."""
    tie: str | None = None
    """The name of the parameter whose values these share: `logits.weight: {tie: embed.weight}`."""
    optimizer: Optimizer | None = None
    """Another optimizer than training.optimizer."""
    storage: StorageName | None = None
    """What frozen weights of linear maps and embeddings are held in: `bf16`, `int8` or `nf4` (QLoRA); by default in
    float32. They are unpacked where they are used."""
    adapter: Adapter | None = None
    """What is trained beside the weights of these linear maps, by its `type`. A model with adapters is frozen but for
    them, and for what says `frozen: false`."""

    def only(self, keys: Iterable[str]) -> "ParameterSettings":
        """What is set for these keys."""
        return ParameterSettings().model_copy(
            update={key: getattr(self, key) for key in keys if key in self.model_fields_set}
        )

    def updated(self, later: "ParameterSettings") -> "ParameterSettings":
        """Key by key: what `later` sets wins."""
        return self.model_copy(update={key: getattr(later, key) for key in later.model_fields_set})
