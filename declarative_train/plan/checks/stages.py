"""Messages on the stages of a pipeline and the layout.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.amounts import amount, format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.core.span import Span


def cut_not_a_node(span: Span, name: str, known: Sequence[str]) -> Diagnostic:
    """cut-not-a-node (P101)

    Finds: a name in `cut_before` that is not a place at which the model can be cut.
    Why:   the model can be cut before a top-level node, and before and after each copy of an outermost `repeat`. A copy
           cannot be split, and nodes computed from fields alone belong to no stage.
    Diff:
    -   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [logit]}}
    +   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [logits]}}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    message, fixes = f"the model cannot be cut before `{name}`", suggest_fix(span, name, known)
    return error("P101", span, message, did_you_mean(name, known), fixes=fixes)


def cut_out_of_order(span: Span, name: str, before: str) -> Diagnostic:
    """cut-out-of-order (P102)

    Finds: names in `cut_before` that are not in the order of the graph, or a name that leaves the stage before it
           empty.
    Why:   the stages run in the order of the graph, from the fields to the loss.
    Diff:
    -   parallelism: {pipeline: {stages: 3, microbatches: 4, cut_before: [logits, hidden]}}
    -   layout: {gpus: 3}
    +   parallelism: {pipeline: {stages: 2, microbatches: 4, cut_before: [logits]}}
    +   layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    # `before`: the first node of the stage that begins before this cut.
    message = (
        f"`{name}` comes before `{before}` in the graph, which already starts a stage"
        if name != before
        else f"the first stage always starts with `{name}`"
    )
    return error("P102", span, message, "list the nodes in the order of the graph, without the first one")


def nothing_in_stage(span: Span, stage: int, nodes: Sequence[str]) -> Diagnostic:
    """nothing-in-stage (P103)

    Finds: a pipeline stage without a parameter.
    Why:   the rank of this stage would train nothing, and only pass on its inputs.
    Diff:
        model:
          graph:
            last: {type: relu, input: logits}
        objective:
          loss: {type: cross_entropy, input: last, target: digit}
    -   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [last]}}
    +   parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [logits]}}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    held = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    return error(
        "P103", span, f"stage {stage} ({held}) has no parameter", "cut at another node, or remove `cut_before`"
    )


def too_few_nodes(span: Span, stages: int, nodes: Sequence[str]) -> Diagnostic:
    """too-few-nodes (P104)

    Finds: more pipeline stages than nodes with parameters.
    Why:   each stage needs at least one node with parameters. A node cannot be split, unless it is a model of
           transformers.
    Bad:
        parallelism: {pipeline: {stages: 3, microbatches: 3}}
        layout: {gpus: 3}
        training: {global_batch_size: 12}
    Good:
        parallelism: {pipeline: {stages: 2, microbatches: 2}}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    listed = ", ".join(nodes[:8]) + (f", and {len(nodes) - 8} more" if len(nodes) > 8 else "")
    message = f"{format_count(stages, 'stage')}, but only {format_count(len(nodes), 'node')} with parameters"
    return error("P104", span, message, f"at most {len(nodes)}: {listed}" if nodes else None)


def model_in_one_stage(span: Span, path: str, reason: str, *, is_error: bool) -> Diagnostic:
    """model-in-one-stage (P114)

    Finds: a pipeline for a model of transformers or timm that cannot be cut and stays in one stage. This is an error if
           the rest of the model has too few nodes for the other stages.
    Why:   stages are cut between the layers that the library's plan for the class names (`base_model_pp_plan`,
           transformers-models.md). A class without a plan cannot be cut, nor one whose layers read more than the output
           of the previous layer.
    Diff:
        model:
          graph:
            hidden: {type: reshape, shape: [B, 8, 8], input: pixels}
            act:
              type: transformers
              config: {model_type: bert, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 9}
              inputs: {inputs_embeds: hidden}
            flat: {type: flatten, input: act}
            logits: {type: linear, out_features: 10, input: flat}
    -   parallelism: {pipeline: {stages: 2, microbatches: 2}}
    +   parallelism: fsdp
        layout: {gpus: 2}
    """
    message = f"`{path}` stays in one stage: {reason}"
    hint = "use fsdp, or a block such as `llama` or `gpt`"
    return (error if is_error else warning)("P114", span, message, hint)


def tie_across_stages(span: Span, name: str, stage: int, other: int, schedule: str) -> Diagnostic:
    """tie-across-stages (P105)

    Finds: a parameter that two pipeline stages on the same rank share, in a mode that shards parameters.
    Why:   both stages would use one tensor, and torch's `fully_shard` shards it for one of them only.
    Diff:
        model:
          graph:
            first: {type: linear, out_features: 64, input: pixels}
            second: {type: linear, out_features: 64, input: first}
            hidden: {input: second}
    -       third: {type: linear, out_features: 64, input: hidden}
    -       act: {input: third}
    -       logits: {input: act}
          parameters:
    -       third.weight: {tie: first.weight}
    +       second.weight: {tie: first.weight}
        parallelism:
          data: {shard: 2}
    -     pipeline: {stages: 4, schedule: zbv, microbatches: 4, cut_before: [second, hidden, third]}
    +     pipeline: {stages: 2, schedule: 1f1b, microbatches: 2, cut_before: [second]}
        layout: {gpus: 4}
        training: {global_batch_size: 16}
    """
    message = (
        f"`{name}` belongs to the stages {stage} and {other}, which {schedule} places on one rank, but it is sharded"
    )
    return error("P105", span, message, "use 1f1b or gpipe, or `data: {replicate: N}`")


def reuse_across_stages(span: Span, name: str, stage: int, target: str, target_stage: int, cut: str) -> Diagnostic:
    """reuse-across-stages (P106)

    Finds: a node with running statistics, or a node of a plugin, that is called again in another pipeline stage.
    Why:   each of the stages holds a copy of the node. Parameters stay equal, since gradients are summed over the
           copies. But each stage would update its own statistics, and what else a plugin's code stores is unknown.
    Diff:
        model:
          graph:
    -       norm: {type: batch_norm, over: 4 samples, input: hidden}
    +       norm: {type: layer_norm, input: hidden}
            again: {type: reuse, node: norm, input: norm}
            act: {input: again}
            logits: {input: act}
        parallelism: {pipeline: {stages: 2, microbatches: 2, cut_before: [again]}}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    # `cut`: the first node of the later stage.
    message = (
        f"`{name}` in stage {stage} calls `{target}` of stage {target_stage} again: the cut before `{cut}` separates "
        "them"
    )
    return error("P106", span, message, "move the cut so that both are in one stage, or use fsdp")


def reuse_with_split_backward(span: Span, schedule: str, name: str) -> Diagnostic:
    """reuse-with-split-backward (P107)

    Finds: a node that is called twice, with a pipeline schedule that splits each backward in two
           (interleaved_zero_bubble, zbv, dualpipev).
    Why:   torch fails in this case, with "backward through the graph a second time".
    Diff:
        model:
          graph:
            first: {type: linear, out_features: 64, input: pixels}
            again: {type: reuse, node: first, input: first}
            second: {type: linear, out_features: 64, input: again}
            hidden: {input: second}
        parallelism:
    -     pipeline: {stages: 4, schedule: zbv, microbatches: 4, cut_before: [second, hidden, logits]}
    +     pipeline: {stages: 4, schedule: interleaved_1f1b, microbatches: 4, cut_before: [second, hidden, logits]}
        layout: {gpus: 2}
        training: {global_batch_size: 8}
    """
    message = f"`{name}` calls a node a second time, but {schedule} splits each backward in two"
    return error("P107", span, message, "use interleaved_1f1b or looped_bfs (with one stage per rank: 1f1b or gpipe)")


def does_not_fit(
    span: Span, mode: str, needed_bytes: int, memory_bytes: int, hints: Sequence[str], *, is_certain: bool
) -> Diagnostic:
    """does-not-fit (P108)

    Finds: a model whose training needs more memory than a device of the kind `layout.hardware` has.
    Why:   the run would stop with "out of memory" in its first step, after all ranks were started.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 100000000, input: pixels}
    +       hidden: {type: linear, out_features: 1000000, input: pixels}
        parallelism: auto
        layout: {gpus: 1, hardware: h100-sxm}
    """
    # `mode`: the one that needs the least memory of all that were considered. `is_certain`: no mode fits.
    message = f"{mode} needs about {amount(needed_bytes, 'B')} on a device, of {amount(memory_bytes, 'B')} usable"
    if not is_certain:
        return warning("P108", span, message, _either("try: ", hints))
    return error("P108", span, f"no mode fits: {message}", _either("these would fit: ", hints))


def _either(head: str, hints: Sequence[str]) -> str:
    return head + "; ".join(hints) if hints else "make the model smaller, or use devices with more memory"


def no_mode_left(span: Span, mode: str, refusal: Diagnostic) -> Diagnostic:
    """no-mode-left (P109)

    Finds: `parallelism: auto` if lint rejects every mode, usually because the batch size cannot be divided evenly.
    Why:   sizes are never rounded and every GPU is used, so there is no mode to choose.
    Diff:
    -   training: {global_batch_size: 100, microbatch_size: 3}
    +   training: {global_batch_size: 100, microbatch_size: 5}
        parallelism: auto
        layout: {gpus: 2}
    """
    # `refusal`: the error of the simplest mode.
    message = f"no mode is feasible; {mode} was rejected because {refusal.message}"
    return error("P109", span, message, refusal.help, (Related(refusal.span, f"{refusal.code}, for {mode}"),))
