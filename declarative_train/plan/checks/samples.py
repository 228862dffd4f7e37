"""Messages on sets, windows and batches: which rows become samples, and how many at a time.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.components.component import ShapeError
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified, warning
from declarative_train.core.duration import Duration
from declarative_train.core.span import Span
from declarative_train.data.spec import BatchSpec


def cannot_balance(span: Span, term: str, problem: str) -> Diagnostic:
    """cannot-balance (O105)

    Finds: weights `balanced` that cannot be computed. For `class_weights`: a training row has a class for which the
           input has no score, or all items are excluded (by `ignore_index` or the mask). For `pos_weight`: no training
           row is positive, or none is negative.
    Why:   the weights follow from the shares of the classes in the training rows, which are counted when the recipe is
           compiled. In the example, y is at most 9.
    Diff:
        # whole file
        name: balance
        data:
          source: {type: synthetic, kind: classification, rows: 200, features: 10}
          fields:
            x: {column: x}
            y: {type: category, column: y, num_classes: 10}
        model:
          graph:
    -       rare: float(y > 20)
    +       rare: float(y > 7)
            logits: {type: linear, out_features: 1, input: x}
            score: logits[:, 0]
        objective:
          loss: {type: bce_with_logits, input: score, target: rare, pos_weight: balanced}
        training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
    """
    return error("O105", span, f"the loss `{term}` cannot be balanced: {problem}", "set the weights as numbers")


def batch_larger_than_data(span: Span, size: int, num_samples: int, *, drops: bool) -> Diagnostic:
    """batch-larger-than-data (R101)

    Finds: a global batch of more samples than the training set has.
    Why:   every step would be one partial batch; with `last_batch: drop` there would be no step at all.
    Diff:
        training:
    -     global_batch_size: 1000000
    +     global_batch_size: 8
    """
    message = f"a batch of {size:,}, but the training set has {format_count(num_samples, 'sample')}"
    at_most = f"set training.global_batch_size to at most {num_samples}"
    if drops:
        return error("R101", span, f"{message}: with `last_batch: drop` there is no step", at_most)
    return warning("R101", span, f"{message}: every step is one partial batch", at_most)


def no_tokens(span: Span, duration: str) -> Diagnostic:
    """no-tokens (R102)

    Finds: a duration in tokens, although the samples are not texts.
    Why:   tokens are counted in the first sequence of token ids that the model reads, and this model reads none.
    Bad:
        evaluation: {every: 1000 tokens}
    Good:
        evaluation: {every: 1 epoch}
    """
    return error("R102", span, f"{duration}: the samples here are not made of tokens", "count steps, epochs or samples")


def past_the_end(span: Span, duration: Duration, steps: int, num_steps: int, *, is_warmup: bool = False) -> Diagnostic:
    """past-the-end (R103)

    Finds: an interval, a patience or a duration of the lr schedule that is longer than the run, or than the rest of the
           run after the warm-up. (Durations are compared in steps of this data and batch.)
    Why:   the event never happens; with a warm-up as long as the run, the learning rate of the recipe is never reached.
    Diff:
        training: {epochs: 1}
    -   checkpoint: {every: 1000000 steps}
    +   checkpoint: {every: 1 epoch}
    """
    length = f"{duration}" if duration.unit == "steps" else f"{duration} ({format_count(steps, 'step')})"
    if is_warmup:
        message = f"a warm-up of {length} takes the whole run of {format_count(num_steps, 'step')}"
        return error("R103", span, message, "shorten it, for example to `5%`")
    message = f"{length} is longer than the run of {format_count(num_steps, 'step')}"
    return warning("R103", span, message, "shorten it, or remove it")


def average_longer_than_run(span: Span, decay: float, num_steps: int) -> Diagnostic:
    """average-longer-than-run (R111)

    Finds: a moving average of the weights that covers more than a third of the run.
    Why:   for most of the run the average uses a smaller decay than the recipe's, and its weights are far behind the
           trained ones.
    Diff:
        training:
          steps: 300
    -     ema: {decay: 0.9999}
    +     ema: {decay: 0.99}
    """
    message = (
        f"a decay of {decay:g} averages about {_count_averaged_steps(decay):,} steps, but the run has {num_steps:,}"
    )
    fitting = [each for each in (0.9999, 0.999, 0.99, 0.9) if 3 * _count_averaged_steps(each) <= num_steps]
    hint = (
        f"set it to {fitting[0]:g} ({format_count(_count_averaged_steps(fitting[0]), 'step')})"
        if fitting
        else "remove `ema`"
    )
    return warning("R111", span, message, hint)


def lr_vanishes(span: Span, step: int, num_steps: int) -> Diagnostic:
    """lr-vanishes (R112)

    Finds: a learning rate schedule that falls below a ten-thousandth of the learning rate before the middle of the run.
    Why:   in the second half of the run, or longer, the weights hardly change.
    Diff:
        training:
          steps: 300
    -     lr_schedule: {type: step, every: 10 steps, gamma: 0.1}
    +     lr_schedule: {type: step, every: 100 steps, gamma: 0.1}
    """
    message = f"from step {step:,} of {num_steps:,} on, the lr is less than a ten-thousandth of its value"
    return warning("R112", span, message, "let it fall more slowly, or use `cosine`, which knows the length of the run")


def _count_averaged_steps(decay: float) -> int:
    return round(1 / (1 - decay))


def schedule_past_the_end(span: Span, shape_error: ShapeError) -> Diagnostic:
    """Report a learning-rate schedule that does not fit the length of the run (R103)."""
    say = warning if shape_error.is_warning else error
    return say("R103", span, shape_error.message, shape_error.help)


def group_does_not_divide(span: Span, name: str, size: int, near: Sequence[int], batch: BatchSpec) -> Diagnostic:
    """group-does-not-divide (R104)

    Finds: `over: N samples`, if groups of N samples do not fit the microbatches.
    Why:   no group may be split by the layout. Either N divides the rows of a rank's microbatch (several groups in one
           forward), or N is a multiple of these rows that divides ranks x microbatch (a group over several ranks).
    Diff:
        model:
          graph:
    -       norm: {type: batch_norm, over: 7 samples, input: pixels}
    +       norm: {type: batch_norm, over: 8 samples, input: pixels}
            hidden: {input: norm}
        parallelism: single
        layout: {gpus: 1}
        training: {global_batch_size: 16}
    """
    ranks = f" on each of {batch.data_parallel_size} ranks" if batch.data_parallel_size > 1 else ""
    message = f"`{name}` needs groups of {size} samples, but a microbatch has {batch.microbatch_size}{ranks}"
    return error("R104", span, message, f"set `over` to {' or '.join(f'{n} samples' for n in near)}")


def pairs_torn(span: Span, name: str, batch: BatchSpec) -> Diagnostic:
    """pairs-torn (R110)

    Finds: `mixup` or `cutmix` with an odd number of samples in a microbatch.
    Why:   samples 2k and 2k + 1 in the order of the epoch are mixed with each other. Both must be in one microbatch, so
           that every layout mixes the same samples without communication between ranks.
    Diff:
        data:
          fields: {digit: {type: category, column: label, one_hot: true}}
          transforms: [{type: mixup, fields: [pixels], labels: [digit]}]
        parallelism: single
        layout: {gpus: 1}
    -   training: {global_batch_size: 15}
    +   training: {global_batch_size: 16}
    """
    size = batch.microbatch_size
    sizes = sorted({max(2, size - 1), size + 1})
    more = batch.data_parallel_size * batch.accumulation * batch.num_microbatches
    message = f"`{name}` mixes pairs of samples, but a microbatch has {format_count(size, 'sample')}"
    hint = f"use an even number: `global_batch_size: {' or '.join(str(each * more) for each in sizes)}`"
    return error("R110", span, message, hint)


def group_of_microbatch(span: Span, names: Sequence[str], batch: BatchSpec) -> Diagnostic:
    """group-of-microbatch (R105)

    Finds: a node that computes with all samples of a rank's microbatch, in a layout with several microbatches for each
           batch.
    Why:   its result, and so every gradient, depends on the number of ranks, accumulation steps and microbatches. With
           `over: N samples`, it is the same in every layout.
    Diff:
        model:
          graph:
    -       norm: {type: batch_norm, input: pixels}
    +       norm: {type: batch_norm, over: 8 samples, input: pixels}
            hidden: {input: norm}
        parallelism: ddp
        layout: {gpus: 2}
        training: {global_batch_size: 16}
    """
    # One diagnostic for all, at the first of them.
    others = f" (and {len(names) - 1} more, such as `{names[1]}`)" if len(names) > 1 else ""
    return warning(
        "R105",
        span,
        f"`{names[0]}`{others} uses the {format_count(batch.microbatch_size, 'sample')} of one rank's microbatch: "
        "gradients differ on another layout",
        f"`over: {batch.microbatch_size} samples` gives the same result here, and on every layout",
    )


def padded_group(span: Span, name: str) -> Diagnostic:
    """padded-group (R106)

    Finds: a node that computes with several samples, in a pipeline whose last, partial batch is padded.
    Why:   all microbatches of a pipeline have the same size, so the statistics of the node would include the padding.
    Diff:
    -   data: {last_batch: keep}
    +   data: {last_batch: drop}
        model:
          graph:
            norm: {type: batch_norm, over: 3 samples, input: pixels}
            hidden: {input: norm}
        parallelism: {pipeline: {stages: 2, microbatches: 2}}
        layout: {gpus: 2}
        training: {global_batch_size: 12}
    """
    message = f"`{name}` computes with several samples, but a pipeline pads the last batch of an epoch"
    return error("R106", span, message, "set data.last_batch to drop")


def group_across_replicas(span: Span, name: str, size: int, batch: BatchSpec) -> Diagnostic:
    """group-across-replicas (R107)

    Finds: a node in mode `dp` whose groups of samples are larger than the microbatch of a model copy.
    Why:   the model copies of `dp` share one process and, unlike ranks, cannot communicate within a forward.
    Diff:
        model:
          graph:
    -       norm: {type: batch_norm, over: 16 samples, input: pixels}
    +       norm: {type: batch_norm, over: 8 samples, input: pixels}
            hidden: {input: norm}
        parallelism: dp
        layout: {gpus: 2}
        training: {global_batch_size: 16}
    """
    message = (
        f"`{name}` needs groups of {size} samples, but each of the {batch.data_parallel_size} replicas of dp has "
        f"{batch.microbatch_size}"
    )
    return error("R107", span, message, f"set `over` to {batch.microbatch_size} samples, or parallelism to ddp")


def draws_of_layout(span: Span, names: Sequence[str], *, is_certain: bool = True) -> Diagnostic:
    """draws-of-layout (R108)

    Finds: a node of the model that draws random numbers (dropout, `randn_like(hidden)`), in a layout that splits a
           batch. (Numbers that an expression draws from fields alone are the same in every layout.)
    Why:   each rank draws the numbers for its own samples. The same layout always draws the same numbers; another
           layout draws others from the same distribution. Only without such nodes do all modes give equal gradients. If
           that does not matter for this run, confirm it with `# dtrain: ignore[R108]` on its line.
    Diff:
        model:
          graph:
            act: {type: dropout, p: 0.1}
    -   parallelism: ddp
    -   layout: {gpus: 2}
    +   parallelism: single
    +   layout: {gpus: 1}
    """
    # One diagnostic for all, at the first of them. A plugin that is too large to be tried may or may not draw numbers.
    draws = "draws" if is_certain else "may draw"
    others = f" (and {len(names) - 1} more, such as `{names[1]}`)" if len(names) > 1 else ""
    message = f"`{names[0]}`{others} {draws} random numbers: they are reproducible on this layout, but differ on others"
    return unverified("R108", span, message, "to compare layouts, remove it or compare statistics of several runs")


def group_of_one(span: Span, name: str, num_rows: int, batch_size: int) -> Diagnostic:
    """group-of-one (R120)

    Finds: a `batch_norm` with one value per sample, whose last group in an epoch has one sample.
    Why:   one value has no variance (torch raises an error). Here it is normalised to 0 and left out of the running
           statistics, so the layers before it learn nothing from the sample.
    Diff:
    -   data: {split: {validation: 0.1}}
    +   data: {split: {validation: 0.1}, last_batch: drop}
        model:
          graph:
            norm: {type: batch_norm, over: 16 samples, input: pixels}
            hidden: {input: norm}
        training: {global_batch_size: 32}
    """
    # `num_rows` of the training set, in global batches of `batch_size`.
    message = (
        f"`{name}`: of {num_rows} training rows in batches of {batch_size}, the last group of an epoch is 1 sample, "
        "which has no variance"
    )
    return warning("R120", span, message, "set data.last_batch to drop, or change training.global_batch_size")


def weights_without_statistics(span: Span, path: str) -> Diagnostic:
    """weights-without-statistics (R126)

    Finds: weights from a run whose checkpoint has no plan, so that the run's statistics of fields are unknown.
    Why:   means, standard deviations and class numbers are computed again, from the training rows of this recipe. If
           these differ from the rows of that run, the weights read other numbers than in their training.
    Diff:
        data:
          fields:
            pixels: {columns: "p*", normalize: standard}
    -   model: {weights: bare}
    +   model: {weights: {path: bare, statistics: data}}
    """
    message = f"the checkpoint in {path} has no statistics of its run: they are recomputed from the training rows"
    hint = "if this is intended, write `statistics: data`"
    return warning("R126", span, message, hint)
