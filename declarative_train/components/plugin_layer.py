"""Base class of plugin layers. The keys of a layer are found by parsing the user's file; its module is made by running
the file.

Before the user's class is constructed for a node, the random generators are seeded for this node. So the initial values
are the same on every rank, whatever pipeline stage or shard it holds."""

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
"""Arguments that are sizes of the first edge, each with its index in the shape of a sample."""


class PluginLayer(Layer):
    """Layer of a plugin; `components/plugins.py` makes the subclasses. `may_import`: whether the user's code may run;
    if not, the shapes of the layer's outputs are unknown."""

    plugin_path: ClassVar[str] = ""
    plugin_class: ClassVar[str] = ""
    may_import: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    """The class declares `mixes_samples = True`: the result of a sample depends on other samples. (Built-in layers of
    this sort have a key `over`.)"""
    list_fields: ClassVar[frozenset[str]] = frozenset()
    computed_defaults: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_random(self) -> bool:
        """True, because it is unknown whether the code draws random numbers. Setting a seed costs only microseconds a
        step, and without it a run that draws could not be reproduced."""
        return True

    def build(self, inputs: Mapping[str, TensorSpec]) -> nn.Module:
        """Import the user's file and return the module. torch's batch normalisations in it are replaced by
        `BatchNormModule`, because their running statistics would depend on the parallelism. Raises any exception of the
        user's code."""
        from declarative_train.components.layers.modules.batch_norm import adopt_batch_norms

        made: nn.Module = getattr(import_plugin(self.plugin_path), self.plugin_class)(**self._arguments(inputs))
        adopt_batch_norms(made)
        return made

    def start(self, inputs: Mapping[str, TensorSpec], seed: int) -> nn.Module:
        """Return the module with the start values of the run. It is made on the CPU, because code that loads a
        pretrained model could not read its weights on the meta device. `seed`: seed of the random generators while the
        user's code runs. Raises any exception of the user's code."""
        import torch

        with seed_generators(seed), torch.device("cpu"):
            return self.build(inputs)

    def init_of(self, parameter: str, inputs: Mapping[str, TensorSpec]) -> Init:
        """Return an init that sets the parameter to the value that the user's constructor computes."""
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
                        f"`{name}` of `{self.type}` cannot be taken from its input, whose samples have no dimensions"
                    )
                value = first.shape[FROM_EDGE[name]]
            arguments[name] = list(value) if name in self.list_fields and isinstance(value, tuple) else value
        return arguments


class AsTheCodeDoes(Init):
    """Init for the layer of a plugin: the start values are those that the user's constructor sets.
    `graph/initialise.py` constructs the layer, and reads the values from it."""

    of_layer: ClassVar[bool] = True

    type: Literal["as_the_code_does"] = "as_the_code_does"
    parameter: str
    """Name of the parameter in the layer or, if the parameter is tied to one outside the layer, in the model."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        raise NotImplementedError("one parameter cannot be drawn without the others")


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed the global random generators of torch (on the CPU), Python and numpy for the `with` block, and restore their
    states afterwards."""
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


def read_random_states() -> tuple[object, ...]:
    """Return the states of the generators that `seed_generators` seeds, in a form that can be compared."""
    import random

    import numpy as np
    import torch

    numpys: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), random.getstate(), str(numpys["state"]["key"].tolist()), str(numpys)
