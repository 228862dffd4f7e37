"""Table of the pipeline schedules: the class of each in torch, the assignment of stages to ranks, requirements and
cost.

The formulas for idle time and memory are derived from torch's own implementations, and a test compares the two.

Huang et al., GPipe, 2019; Narayanan et al., Efficient large-scale training on GPU clusters, 2021 (1f1b, interleaved);
Qi et al., Zero bubble pipeline parallelism, 2024 (zbv); DeepSeek-AI, DualPipe, 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InFlight = Literal["all", "one_forward_one_backward", "interleaved", "interleaved_split", "v", "v_overlapping"]


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Row of the table of pipeline schedules: what torch's schedule requires and how it behaves.

    torch_class       name of the class in `torch.distributed.pipelining.schedules`
    stages_per_rank   smallest and largest number of stages of a rank; None: no limit
    is_v              stages go down the ranks and back again, so rank 0 has the first and the last
    splits_backward   the gradients of inputs and those of weights are computed in two separate actions. Then torch
                      supports neither `compile` nor a module that is called twice in one stage
    fills_first       a step needs at least as many microbatches as there are stages
    in_rounds         microbatches run in rounds of about one per rank, and all rounds must have the same number
    in_flight         name of the formula by which `most_in_flight` counts what waits for its backward on a rank
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
        """Return whether the schedule works with `num_stages` stages on each rank."""
        least, most = self.stages_per_rank
        return least <= num_stages and (most is None or num_stages <= most)

    def takes(self, num_microbatches: int, num_ranks: int, num_stages: int) -> bool:
        """Return whether torch's schedule accepts a step of `num_microbatches` microbatches. The pipeline has
        `num_ranks` ranks and, over all ranks, `num_stages` stages."""
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
        """Return for how many seconds of a step the slowest rank is idle while the pipeline fills and drains. With
        fewer microbatches than ranks (for zbv: fewer than twice as many), the result is an upper bound.

        `num_chunks`               stages of each rank
        `forward_s`, `backward_s`  seconds of one microbatch in all stages of a rank
        `weights_s`                part of `backward_s` that computes gradients of weights"""
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
        """Return the largest number of results of the forward that a rank stores at one time. A microbatch has one
        result in each of the rank's `num_chunks` stages. The result is stored until its backward has run or, if the
        backward is split, until the gradients of weights are computed."""
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
