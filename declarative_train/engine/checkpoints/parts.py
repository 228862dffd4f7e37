"""Parts of tensors in a checkpoint. If the axis `tensor` or `expert` divides a parameter, each rank saves and loads its
part of the whole tensor.

Such a part may consist of several blocks, for example in a fused `qkv`. The sharded tensors of torch's distributed
checkpoints (DCP) do not support this, but the planners of DCP do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from declarative_train.core.cuts import RankCut
from declarative_train.graph.initialise import blocks_of


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part of a tensor that an axis divides. The part consists of blocks. `size`: shape of the whole
    tensor. `blocks`: a dict with the values of each block. Its keys are the positions of the blocks' first elements in
    the whole tensor."""

    size: torch.Size
    blocks: Mapping[torch.Size, torch.Tensor]

    @property
    def chunks(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(place, block.size()) for place, block in self.blocks.items()]

    def at(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None
        return self.blocks[index.offset]


def make_tensor_part(tensor: torch.Tensor, cut: RankCut) -> Part:
    """Return a Part with this rank's blocks of a tensor that the axis `tensor` or `expert` divides. `tensor`: the
    values on this rank, which may also be sharded. `cut`: which elements of the whole tensor they are."""
    blocks = {torch.Size(place): values for values, place in blocks_of(tensor, cut)}
    return Part(torch.Size(cut.whole_shape(tensor.shape)), blocks)


def split_off(
    tensors: Mapping[str, torch.Tensor], cuts: Mapping[str, RankCut]
) -> tuple[dict[str, torch.Tensor], dict[str, Part]]:
    """Return {name: tensor} for the tensors that are not in `cuts`, and {name: Part} for the others. A Part has this
    rank's blocks of a tensor, which torch's distributed checkpoint (DCP) could not save itself. `cuts`: how an axis
    divides tensors."""
    plain = {name: tensor for name, tensor in tensors.items() if name not in cuts}
    return plain, {name: make_tensor_part(tensors[name], cut) for name, cut in cuts.items() if name in tensors}


class PartSavePlanner(DefaultSavePlanner):
    """Save planner of DCP (`torch.distributed.checkpoint`) that also writes `parts`: this rank's blocks of each tensor
    that an axis divides."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        self.plan = replace(plan, items=[*plan.items, *self._items()])
        return self.plan

    def _items(self) -> Iterable[WriteItem]:
        for name, part in self.parts.items():
            for chunk in part.chunks:
                index = MetadataIndex(name, chunk.offsets)
                properties = TensorProperties.create_from_tensor(part.at(index))
                data = TensorWriteData(chunk, properties, part.size)
                yield WriteItem(index, WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> object:
        part = self.parts.get(index.fqn)
        return super().lookup_object(index) if part is None else part.at(index)


class PartLoadPlanner(DefaultLoadPlanner):
    """Load planner of DCP that also loads into `parts`: this rank's blocks of each tensor that the parallel axis
    `tensor` or `expert` divides over ranks. DCP itself cannot load a tensor that is divided into several blocks."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        plan = super().create_local_plan()
        items = []
        for name, part in self.parts.items():
            entry = self.metadata.state_dict_metadata[name]
            assert isinstance(entry, TensorStorageMetadata)
            if entry.size != part.size:
                raise ValueError(f"{name} has shape {list(entry.size)} in the checkpoint, {list(part.size)} here")
            items += create_read_items_for_chunk_list(name, entry, part.chunks)
        return replace(plan, items=[*plan.items, *items])

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        part = self.parts.get(index.fqn)
        return super().lookup_tensor(index) if part is None else part.at(index)
