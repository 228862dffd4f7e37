"""Section `layout`: the devices."""

from typing import Annotated, Any, Literal

from pydantic import Field

from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count


def _add_hardware(schema: dict[str, Any]) -> None:
    from declarative_train.components.hardware import HARDWARE  # which few recipes name

    schema["enum"] = list(HARDWARE)


DeviceIndex = Annotated[int, Field(ge=0)]


class Layout(Section):
    """The devices of a run: `gpus` on one node, or `nodes` x `gpus_per_node`."""

    gpus: Count | Annotated[tuple[DeviceIndex, ...], Field(min_length=1)] | None = None
    """Number of GPUs of one node, or their indices: 2, or [0, 3]."""
    nodes: Count | None = None
    """The number of nodes; with gpus_per_node, instead of gpus."""
    gpus_per_node: Count | None = None
    """The number of GPUs on each node."""
    device: Literal["auto", "cuda", "cpu", "mps"] = "auto"
    """auto: CUDA, or the same ranks on the CPU if there is no GPU at all; with too few GPUs the run fails. mps: Apple's
    GPU, for `single` in fp32.
    """

    hardware: Annotated[str, Field(json_schema_extra=_add_hardware)] | None = None
    """Hardware for the estimates of `plan` and `auto`, such as h100-sxm; it need not be present. All: `dtrain
    list hardware`.
    """

    @property
    def num_nodes(self) -> int:
        return self.nodes or 1

    @property
    def num_gpus_per_node(self) -> int:
        if self.gpus is None:
            return self.gpus_per_node or 1
        return self.gpus if isinstance(self.gpus, int) else len(self.gpus)

    @property
    def num_gpus(self) -> int:
        """Number of GPUs on all nodes; on the CPU, the number of ranks."""
        return self.num_nodes * self.num_gpus_per_node

    @property
    def devices(self) -> tuple[int, ...]:
        """Index of each device on its node."""
        return self.gpus if isinstance(self.gpus, tuple) else tuple(range(self.num_gpus_per_node))
