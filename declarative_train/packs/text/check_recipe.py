"""Checks of a recipe with token fields: whether the tokens that count in the loss are the intended ones. The checks use
real texts and the model of the recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.data.spec import DataSpec
from declarative_train.packs.text.check_padding import COUNTED, check_encoders, check_masks, check_positions
from declarative_train.packs.text.checked_fields import CheckedText, TokenSlice, checked_texts, slice_of
from declarative_train.packs.text.checks import unequal_pair
from declarative_train.packs.text.checks.trained import (
    answers_cut_off,
    end_is_ignored,
    end_not_trained,
    mask_of_other_tokens,
    mostly_padding,
    packed_answers_in_kto,
    padding_is_target,
    target_is_not_next,
    texts_not_separated,
)
from declarative_train.packs.text.tokenizer import Tokenizer
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.model.tree import BlockNode, LayerNode, Scope
from declarative_train.recipe.model.walk import Frame, all_layers, all_nodes, inputs_before
from declarative_train.recipe.recipe import Recipe

_CUT, _ENDED = 0.1, 0.5  # fractions of texts
_MOSTLY, _LONG = 0.7, 128  # fraction of padding; tokens of a sample, because padding of short samples costs little
_LAST = 4  # the end of an answer is among so many last tokens: a line break may follow it
_SPECIAL = re.compile(r"<.+>|\[[A-Z]+\]")
_ATTENTION = frozenset({"latent_attention", "self_attention", "transformers"})
_CAUSAL = frozenset({"deepseek", "gemma", "gpt", "gpt_oss", "llama", "mixtral"})


def check_recipe(recipe: Recipe, data: DataSpec, parameters: Sequence[ParameterPlan]) -> Iterator[Diagnostic]:
    """Check the token fields and the preference losses of a recipe, and yield a diagnostic for each probable mistake.
    `parameters`: those of the model."""
    yield from unequal_pair.check(recipe.model.scope, data, parameters)
    texts = {each.name: each for each in checked_texts(data)}
    attends = any(node.layer.type in _ATTENTION for node in all_layers(recipe.model.scope))
    for text in texts.values():
        place = f"data.fields.{text.name}"
        if text.padded >= _MOSTLY and text.field.longest >= _LONG and not text.field.buckets:
            yield mostly_padding(recipe.span(f"{place}.length"), text.name, text.padded, _suggest_buckets(text))
        if text.marks:
            yield from _check_answers(recipe, place, text, is_whole=len(texts) > 1)
            read = {name.partition(":")[0] for node in recipe.model.scope.nodes for name in node.inputs.values()}
            if text.field.pack is not None and f"{text.name}.segments" not in read and attends:
                yield texts_not_separated(recipe.span(f"{place}.pack"), text.name)
    if texts:
        yield from _check_terms(recipe, texts)
        yield from check_positions(recipe.model.scope, texts)
        yield from check_encoders(recipe.model.scope, texts)
        yield from check_masks(recipe, texts)
        yield from _check_kto(recipe.model.scope, {name for name, text in texts.items() if text.field.pack is not None})


def _suggest_buckets(text: CheckedText) -> list[int]:
    """Return up to three length buckets for a field, ascending: the median and the 90% quantile of the lengths of its
    texts, and the field's own length.

    The first two are rounded up so that they differ from the last by a multiple of 8. Many models read one token less
    than a sample has, so for a field of length 257, 33 is better than 32.
    """
    longest = text.field.longest
    quantiles = np.quantile(np.minimum(text.tokens.sizes[text.rows], longest), (0.5, 0.9))
    return sorted({longest, *(longest - (longest - int(np.ceil(each))) // 8 * 8 for each in quantiles)})


def _check_answers(recipe: Recipe, place: str, text: CheckedText, *, is_whole: bool) -> Iterator[Diagnostic]:
    """Warn if answers are often cut off at the length of a sample, or often lack a token that ends them. `place`:
    dotted path of the field in the recipe. `is_whole`: several fields are packed together, so that a text is not
    divided over several samples."""
    num_cut = num_lost = num_ended = num_answers = 0
    last = 0
    for row in text.rows.tolist():
        begin, end = int(text.tokens.starts[row]), int(text.tokens.starts[row + 1])
        assert text.tokens.trained is not None
        trained = np.flatnonzero(text.tokens.trained[begin:end])
        if not len(trained):
            continue
        first, stop = text.field.cut_to_length(0, end - begin)
        num_kept = int(np.count_nonzero((trained >= first) & (trained < stop)))
        num_cut += num_kept < len(trained)
        num_lost += not num_kept
        num_answers += 1
        last = int(text.tokens.tokens[begin + int(trained[-1])])
        ends = text.tokens.tokens[begin + trained[-_LAST:]].tolist()
        num_ended += any(_is_special(text.found, number) for number in ends)
    if (text.field.pack is None or is_whole) and num_cut >= max(1, _CUT * num_answers):
        span = recipe.span(f"{place}.length")
        yield answers_cut_off(span, text.name, num_answers, num_cut, num_lost, text.field.longest)
    if num_answers and text.found.special.get("eos") is not None and num_ended < _ENDED * num_answers:
        key = "template" if text.field.template is not None else "tokenizer"
        yield end_not_trained(recipe.span(f"{place}.{key}"), text.name, f"`{text.found.token_text(last)}`")


def _is_special(found: Tokenizer, number: int) -> bool:
    return number in found.special.values() or _SPECIAL.fullmatch(found.token_text(number)) is not None


def _check_terms(recipe: Recipe, texts: dict[str, CheckedText]) -> Iterator[Diagnostic]:
    scope = recipe.model.scope
    shifts: dict[str, int] = {}
    for name, term in recipe.objective.losses.items():
        target = slice_of(scope, scope.outputs.get(term.target or "", term.target or ""))
        if target is None or target.field not in texts or target.output != "ids":
            continue
        text, path = texts[target.field], ("objective", "losses", name)
        mask = None if term.mask is None else slice_of(scope, scope.outputs.get(term.mask, term.mask))
        if mask is not None and mask.field == target.field and mask.positions != target.positions:
            yield mask_of_other_tokens(_place(recipe, name, "mask"), name, str(term.target), str(term.mask))
        ignored = getattr(term.component, "ignore_index", None)
        if ignored is None and term.mask is None and text.padded > COUNTED:
            yield padding_is_target(recipe.span((*path, "target")), name, text.name, text.padded)
        ends = {text.found.special.get("eos"), text.found.role("eos", text.field.eos)} - {None}
        if ignored is not None and ignored == text.field.pad_of(text.found) and ignored in ends and text.padded:
            token = f"`{text.found.token_text(ignored)}`"
            yield end_is_ignored(recipe.span((*path, "ignore_index")), name, token)
        wire = scope.outputs.get(term.input, term.input)
        read = _read_by_causal(scope, wire.partition(":")[0])
        if read is not None and read.field == target.field:
            shifts[name] = target.start - read.start
    if shifts and 1 not in shifts.values():
        name, shift = next(iter(shifts.items()))
        yield target_is_not_next(_place(recipe, name, "target"), name, shift)


def _place(recipe: Recipe, term: str, key: str) -> Span:
    """Return the place in the recipe that defines the tensor `key` (`input` or `target`) of the loss `term`: the node
    that computes it or, if it is a field, the key in the loss."""
    scope, name = recipe.model.scope, str(getattr(recipe.objective.losses[term], key))
    node = Frame(scope).nodes.get(scope.outputs.get(name, name).partition(":")[0])
    return recipe.span(("objective", "losses", term, key)) if node is None else node.span


def _read_by_causal(scope: Scope, name: str) -> TokenSlice | None:
    """Return the slice of a token field's ids that the node `name` reads. Return None if the node is not a causal
    language model, or if it reads something else."""
    node, wire = Frame(scope).nodes.get(name), None
    if isinstance(node, BlockNode) and node.block in _CAUSAL:
        wire = node.inputs.get("tokens")
    elif isinstance(node, LayerNode) and node.layer.type == "transformers" and node.layer.find_text_ports() is None:
        wire = next(iter(node.inputs.values()), None)
    found = None if wire is None else slice_of(scope, wire)
    return found if found is not None and found.output == "ids" else None


def _check_kto(scope: Scope, packed: set[str]) -> Iterator[Diagnostic]:
    """Report each block `kto` with an input that is computed from packed texts. `packed`: names of the fields that are
    packed."""
    for frame, node in all_nodes(Frame(scope)):
        if isinstance(node, BlockNode) and node.block == "kto":
            read = {name.partition(".")[0] for name in inputs_before(frame, node.inputs.values())} & packed
            if read:
                yield packed_answers_in_kto(node.span, node.path, min(read))
