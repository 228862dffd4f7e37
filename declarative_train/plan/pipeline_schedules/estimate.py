"""What a schedule costs, without its grid: closed forms, which a test holds against the grids themselves.

R ranks, C stages on each, M microbatches; F, B and W are the seconds that a rank takes for a forward, a backward and
the weights' half of it, all its stages together.

Huang et al., GPipe, 2019; Narayanan et al., Efficient large-scale training on GPU clusters, 2021 (1f1b, interleaved);
Qi et al., Zero bubble pipeline parallelism, 2024 (zbv); DeepSeek-AI, DualPipe, 2025. What torch's own versions of them
do, read off their grids, is what stands here.
"""

from __future__ import annotations

SPLITTING = frozenset({"dualpipev", "interleaved_zero_bubble", "zbv"})


def ramp_s(
    schedule: str,
    num_ranks: int,
    num_chunks: int,
    num_microbatches: int,
    forward_s: float,
    backward_s: float,
    weights_s: float,
) -> float:
    """Seconds that the slowest rank stands idle in a step, while the pipeline fills and runs dry; a bound where there
    are fewer microbatches than ranks (zbv: than twice as many)."""
    both = forward_s + backward_s
    if num_microbatches < num_ranks:  # each round of chunks waits until the one before has passed all ranks
        rounds = (num_ranks * num_chunks + num_microbatches - 1) / num_chunks
        return (rounds - num_microbatches) * (both - weights_s if schedule in SPLITTING else both)
    if schedule in SPLITTING:  # the weights' halves fill a part of it
        both = max(0.0, both - 2 * weights_s)
    if schedule == "dualpipev" or (schedule == "zbv" and num_microbatches < 2 * num_ranks):
        return (num_ranks - 1) * both
    return (num_ranks - 1) * both / num_chunks


def most_in_flight(schedule: str, rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> float:
    """Microbatches that wait for their backward on a rank, those of each of its stages counted; at most."""
    everything = num_chunks * num_microbatches
    if schedule == "1f1b":
        return min(num_ranks - rank, everything)
    if schedule in ("zbv", "dualpipev"):
        return min(2 * num_ranks + 1, everything)
    if schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        return min(1.5 * num_ranks * num_chunks, everything)
    return everything
