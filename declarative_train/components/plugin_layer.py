"""What every plugin's layer is: fields found in the file's text, a module from its code.

A layer's code is constructed once for each node, under a seed of its own: what it draws, and how its tensors depend on
each other (a teacher that starts as a copy of its student), is then the same in every mode, stage and shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from declarative_train.components.component import Init, Layer
from declarative_train.components.plugin_file import import_plugin
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from declarative_train.components.inits.draws import Draws

FROM_EDGE: dict[str, int] = {"in_features": -1, "in_channels": 0, "input_size": -1, "input_dim": -1}
"""Arguments that are sizes of the first edge, and which: an index into the shape of a sample."""


class PluginLayer(Layer):
    """The subclasses are made by `components/plugins.py`. `may_import` False: the code may not run, so that shapes
    behind the layer are unknown."""

    plugin_path: ClassVar[str] = ""
    plugin_class: ClassVar[str] = ""
    may_import: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    """It says `mixes_samples = True`; a layer of ours that mixes has a key `over`."""
    list_fields: ClassVar[frozenset[str]] = frozenset()
    computed_defaults: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_random(self) -> bool:
        """Nobody can tell; seeding a step for nothing costs microseconds, not seeding it costs reproducibility."""
        return True

    def build(self, inputs: Mapping[str, TensorSpec]) -> nn.Module:
        """Imports the file. Raises whatever its code raises. Its batch normalisation is made ours: the running
        statistics of torch's own would depend on the mode."""
        from declarative_train.components.layers.modules.batch_norm import adopt_batch_norms

        made: nn.Module = getattr(import_plugin(self.plugin_path), self.plugin_class)(**self._arguments(inputs))
        adopt_batch_norms(made)
        return made

    def start(self, inputs: Mapping[str, TensorSpec], seed: int) -> nn.Module:
        """`build` with the start values that count, on the CPU whatever the device around it: on meta the code of a
        pretrained model could not read its weights. Raises whatever the plugin's code raises."""
        import torch

        with seeded(seed), torch.device("cpu"):
            return self.build(inputs)

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> Init:
        """As the code starts it."""
        return AsTheCodeDoes(parameter=parameter)

    def _arguments(self, inputs: Mapping[str, TensorSpec]) -> dict[str, object]:
        first = next(iter(inputs.values()), None)
        arguments: dict[str, object] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "type" or (name in self.computed_defaults and value is None):
                continue
            if name in FROM_EDGE and value is None:
                if first is None or not first.shape:
                    raise ValueError(
                        f"`{name}` of `{self.type}` cannot be taken from its input, a sample of which has no dimensions"
                    )
                value = first.shape[FROM_EDGE[name]]
            arguments[name] = list(value) if name in self.list_fields and isinstance(value, tuple) else value
        return arguments


class AsTheCodeDoes(Init):
    """What the plugin's constructor gives: `graph/initialise.py` takes it from the constructed module."""

    type: Literal["as_the_code_does"] = "as_the_code_does"
    parameter: str
    """Its name in the layer, or, where it is tied to one that stands elsewhere in the model, in the model."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        raise NotImplementedError("one parameter cannot be drawn without the others")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The generators that a constructor may draw from (torch's, Python's, numpy's), each as it was afterwards."""
    import random

    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def random_states() -> tuple[object, ...]:
    """Of the generators that `seeded` seeds, to be compared."""
    import random

    import numpy as np
    import torch

    numpys: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), random.getstate(), str(numpys["state"]["key"].tolist()), str(numpys)
