"""Table of the pipeline schedules: the class of each in torch, the assignment of stages to ranks, requirements and
cost.

`engine/axes/pipeline.py` runs the schedules. The gradients are exact with all of them, also if the pipeline is combined
with replicas or shards.

Huang et al., GPipe, 2019; Narayanan et al., Efficient large-scale training on GPU clusters, 2021 (1f1b, interleaved);
Qi et al., Zero bubble pipeline parallelism, 2024 (zbv); DeepSeek-AI, DualPipe, 2025. The formulas for idle time and
memory are derived from the schedules of torch's own implementations, and a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InFlight = Literal["all", "one_forward_one_backward", "interleaved", "interleaved_split", "v", "v_overlapping"]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Pipeline schedule, a row of the table.

    torch_class       name of the class in `torch.distributed.pipelining.schedules`
    stages_per_rank   the smallest and the largest number of stages of a rank; None: no limit
    is_v              the second half of the stages goes back over the ranks, so that the last stage is on rank 0
    splits_backward   the backward is two actions, I for the gradients of inputs and W for those of weights. Then torch
                      supports neither `compile` nor a module that is called twice in one stage
    fills_first       every stage has a forward before the first backward, so a step needs a microbatch for each stage
    in_rounds         microbatches go in rounds of equal size over the ranks
    in_flight         formula for the number of microbatches that wait for their backward on a rank (`most_in_flight`)
    """

    torch_class: str
    stages_per_rank: tuple[int, int | None]
    is_v: bool = False
    splits_backward: bool = False
    fills_first: bool = False
    in_rounds: bool = False
    in_flight: InFlight = "all"

    def stages_of(self, rank: int, num_ranks: int, num_stages: int) -> tuple[int, ...]:
        """Return the indices of the stages that rank `rank` of the pipeline holds."""
        if self.is_v:
            return (rank, num_stages - 1 - rank)
        return tuple(range(rank, num_stages, num_ranks))

    def rank_of(self, stage: int, num_ranks: int, num_stages: int) -> int:
        return next(rank for rank in range(num_ranks) if stage in self.stages_of(rank, num_ranks, num_stages))

    def holds(self, num_stages: int) -> bool:
        """Return whether a rank may hold `num_stages` stages."""
        least, most = self.stages_per_rank
        return least <= num_stages and (most is None or num_stages <= most)

    def takes(self, num_microbatches: int, num_ranks: int, num_stages: int) -> bool:
        """Return whether torch's schedule accepts this combination: how many microbatches a step has, how many ranks
        and how many stages the pipeline has."""
        if self.fills_first:
            return num_microbatches >= num_stages
        if self.in_rounds:
            return num_microbatches % max(1, num_microbatches // num_ranks) == 0
        return True

    def ramp_s(
        self,
        num_ranks: int,
        num_chunks: int,
        num_microbatches: int,
        forward_s: float,
        backward_s: float,
        weights_s: float,
    ) -> float:
        """Return the seconds per step in which the slowest rank is idle, because the pipeline fills and drains. The
        result is an upper bound if there are fewer microbatches than ranks (for zbv: fewer than twice as many).

        Each rank holds `num_chunks` stages. The times of all stages of a rank for one microbatch are `forward_s` for a
        forward, `backward_s` for a backward, and `weights_s` for the part of the backward that computes the gradients
        of weights."""
        both = forward_s + backward_s
        if num_microbatches < num_ranks:  # each round of stages waits until the round before has passed all ranks
            rounds = (num_ranks * num_chunks + num_microbatches - 1) / num_chunks
            return (rounds - num_microbatches) * (both - weights_s if self.splits_backward else both)
        if self.splits_backward:  # computing gradients of weights fills a part of the idle time
            both = max(0.0, both - 2 * weights_s)
        if self.is_v and (self.fills_first or num_microbatches < 2 * num_ranks):
            return (num_ranks - 1) * both
        return (num_ranks - 1) * both / num_chunks

    def most_in_flight(self, rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> int:
        """Return the largest number of forward results that a rank stores at the same time for their backwards: one for
        each microbatch and each of its `num_chunks` stages. If the backward is split, results are stored until the
        gradients of weights are computed."""
        in_a_round = num_microbatches // max(1, num_microbatches // num_ranks)
        most = {
            "all": num_chunks * num_microbatches,
            "one_forward_one_backward": num_ranks - rank,
            "interleaved": (num_chunks - 1) * in_a_round + 2 * (num_ranks - 1 - rank) + 1,
            "interleaved_split": (num_chunks - 1) * in_a_round + num_ranks,
            "v": min(2 * num_ranks, num_microbatches + 1 + rank),
            "v_overlapping": 2 * num_ranks + 1,
        }[self.in_flight]
        return min(most, num_chunks * num_microbatches)


PIPELINE_SCHEDULES: dict[str, PipelineSchedule] = {
    "1f1b": PipelineSchedule("Schedule1F1B", (1, 1), fills_first=True, in_flight="one_forward_one_backward"),
    "dualpipev": PipelineSchedule(
        "ScheduleDualPipeV", (2, 2), is_v=True, splits_backward=True, fills_first=True, in_flight="v_overlapping"
    ),
    "gpipe": PipelineSchedule("ScheduleGPipe", (1, 1)),
    "interleaved_1f1b": PipelineSchedule("ScheduleInterleaved1F1B", (2, None), in_rounds=True, in_flight="interleaved"),
    "interleaved_zero_bubble": PipelineSchedule(
        "ScheduleInterleavedZeroBubble", (2, None), splits_backward=True, in_rounds=True, in_flight="interleaved_split"
    ),
    "looped_bfs": PipelineSchedule("ScheduleLoopedBFS", (2, None)),
    "zbv": PipelineSchedule("ScheduleZBVZeroBubble", (2, 2), is_v=True, splits_backward=True, in_flight="v"),
}
