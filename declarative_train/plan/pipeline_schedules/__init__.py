"""The pipeline schedules: the recipe's word, torch's class, and how stages lie on the ranks.

All seven give exact gradients, alone and times ddp or fsdp, when they are driven as torch-facts section 2 says; what
each asks of stages and microbatches is checked by the recipe's rules (P006, P007, P010).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """`is_v`: the second half of the stages goes back over the ranks, so that the last stage is on rank 0.
    `splits_backward`: inputs and weights in two actions (I, W); a module called twice in one stage breaks it."""

    torch_class: str
    is_v: bool = False
    splits_backward: bool = False

    def stages_of(self, rank: int, num_ranks: int, num_stages: int) -> tuple[int, ...]:
        """The stages that a rank of the pipeline holds."""
        if self.is_v:
            return (rank, num_stages - 1 - rank)
        return tuple(range(rank, num_stages, num_ranks))

    def rank_of(self, stage: int, num_ranks: int, num_stages: int) -> int:
        return next(rank for rank in range(num_ranks) if stage in self.stages_of(rank, num_ranks, num_stages))


PIPELINE_SCHEDULES: dict[str, PipelineSchedule] = {
    "1f1b": PipelineSchedule("Schedule1F1B"),
    "dualpipev": PipelineSchedule("ScheduleDualPipeV", is_v=True, splits_backward=True),
    "gpipe": PipelineSchedule("ScheduleGPipe"),
    "interleaved_1f1b": PipelineSchedule("ScheduleInterleaved1F1B"),
    "interleaved_zero_bubble": PipelineSchedule("ScheduleInterleavedZeroBubble", splits_backward=True),
    "looped_bfs": PipelineSchedule("ScheduleLoopedBFS"),
    "zbv": PipelineSchedule("ScheduleZBVZeroBubble", is_v=True, splits_backward=True),
}
