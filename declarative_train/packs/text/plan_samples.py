"""Plan of the texts that the model generates at evaluations (`evaluation.samples`): the tokens of the prompts, and
checks that the model can generate text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.packs.text import chat
from declarative_train.packs.text.checks.samples import cannot_write
from declarative_train.packs.text.text_io import TextCodec, TextOutput, find_text_output, is_of_text
from declarative_train.packs.text.tokenizer import TokenizerError
from declarative_train.plan.plan import SamplesPlan

if TYPE_CHECKING:
    from declarative_train.packs.text.evaluation_keys import TextSamples
    from declarative_train.plan.plan import Plan
    from declarative_train.recipe.recipe import Recipe


def add_samples(plan: Plan, recipe: Recipe) -> tuple[Plan, list[Diagnostic]]:
    """Add the tokens of the prompts in `evaluation.samples` to the plan. Return (plan, diagnostics). If the model
    cannot continue the prompts, the plan is unchanged."""
    asked: TextSamples | None = recipe.evaluation.samples  # type: ignore[attr-defined]
    if asked is None or plan.evaluation is None:
        return plan, []
    span = recipe.span("evaluation.samples")
    found = find_text_output(plan) if is_of_text(plan) else None
    problem = _problem(plan, found)
    if found is None or problem:
        return plan, [cannot_write(span, problem)]
    try:
        words = TextCodec.of(plan, found.field)
        tokens = [tuple(_tokens(prompt, words)) for prompt in asked.prompts]
    except (TokenizerError, chat.ChatError) as error:
        return plan, [cannot_write(span, str(error), error.help)]
    problems = list(_check_prompts(asked, tokens, found))
    if problems:
        span = recipe.span("evaluation.samples.prompts")
        return plan, [cannot_write(span, each) for each in problems]
    samples = SamplesPlan(
        asked.prompts, tuple(tokens), asked.max_tokens, asked.temperature, asked.top_k, asked.top_p, asked.seed
    )
    return replace(plan, evaluation=replace(plan.evaluation, samples=samples)), []


def _tokens(prompt: str, words: TextCodec) -> list[int]:
    return words.encode_prompt(prompt) if words.is_chat else words.encode(prompt)


def _problem(plan: Plan, found: TextOutput | None) -> str:
    if not is_of_text(plan):
        return "the data has no text"
    if found is None:
        return "no `cross_entropy` reads logits (B, T, V) of the next token"
    if found.others:
        return f"the model reads {', '.join(f'`{name}`' for name in found.others)} in addition to its tokens"
    term = next(term for term in plan.objective.terms if term.input == found.output)
    if term.component.get("chunks") is not None:
        return f"the loss `{term.name}` computes its logits in chunks, never all together"
    if plan.layout.context is not None:
        return "each rank of `context` has a part of the positions"
    if plan.layout.cuts is not None and found.output in plan.layout.cuts.outputs:
        return "each rank of `tensor` computes the logits of a part of the vocabulary"
    return ""


def _check_prompts(asked: TextSamples, tokens: list[tuple[int, ...]], found: TextOutput) -> Iterator[str]:
    for prompt, each in zip(asked.prompts, tokens, strict=True):
        if not each:
            yield f"the prompt `{prompt:.40}` has no token"
        elif max(each) >= found.vocabulary:
            known = f"the model has tokens 0 to {found.vocabulary - 1}"
            yield f"the prompt `{prompt:.40}` has the token {max(each)}, but {known}"
        elif len(each) > found.context:
            yield (
                f"the prompt `{prompt:.40}` has {format_count(len(each), 'token')}, but the model's context is "
                f"{found.context}"
            )
