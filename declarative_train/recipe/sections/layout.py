"""Section `layout`: the devices and nodes of a run."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

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
    nodes: Count | Annotated[str, Field(pattern=r"^[1-9]\d*\.\.[1-9]\d*$")] | None = None
    """The number of nodes; set it together with gpus_per_node, instead of gpus. With a range such as 1..4, the run uses
    as many of these nodes as there are, with the same global batch; estimates are for the largest number.
    """
    gpus_per_node: Count | None = None
    """The number of GPUs on each node."""
    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """How often the ranks may be started again after a rank or a node was lost. A restart after which a newer
    checkpoint was written is not counted. Left out: 0 (never) for a fixed number of nodes, 3 for a range.
    """
    device: Literal["auto", "cuda", "cpu", "mps"] = "auto"
    """auto: CUDA, or the CPU with the same number of ranks if there is no GPU at all (with too few GPUs the run fails).
    mps: Apple's GPU, only for `single` in fp32.
    """

    hardware: Annotated[str, Field(json_schema_extra=_add_hardware)] | None = None
    """Hardware for the estimates of `plan` and `auto`, such as h100-sxm; this machine need not have it. `dtrain list
    hardware` prints all names.
    """

    @field_validator("nodes")
    @classmethod
    def _ascends(cls, nodes: int | str | None) -> int | str | None:
        if isinstance(nodes, str) and int(nodes.partition("..")[0]) > int(nodes.partition("..")[2]):
            raise ValueError("the first number of a range must not be above the second")
        return nodes

    calibration: str | None = None
    """File that `dtrain calibrate` wrote, with measured speeds of a machine for the estimates; relative to the recipe.
    With it, times are estimated for CPUs too.
    """

    @property
    def num_nodes(self) -> int:
        """Number of nodes; for a range such as `1..4`, its upper end."""
        return int(self.nodes.partition("..")[2]) if isinstance(self.nodes, str) else self.nodes or 1

    @property
    def min_nodes(self) -> int:
        return int(self.nodes.partition("..")[0]) if isinstance(self.nodes, str) else self.num_nodes

    @property
    def num_restarts(self) -> int:
        return (3 if isinstance(self.nodes, str) else 0) if self.max_restarts is None else self.max_restarts

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
        """Indices, within each node, of the devices that the run uses."""
        return self.gpus if isinstance(self.gpus, tuple) else tuple(range(self.num_gpus_per_node))
