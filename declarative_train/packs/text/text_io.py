"""Text input and output of a plan's model: the functions find the output that has the logits of the next token, and
convert text to tokens and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from declarative_train.components.fields import FIELDS
from declarative_train.packs.pretrained.published import PublishedError, config_of, family_of
from declarative_train.packs.text import chat, layout
from declarative_train.packs.text.tokenizer import Tokenizer, TokenizerError, tokenizer_of
from declarative_train.packs.text.tokens import TokensField
from declarative_train.plan.subgraph import prune

if TYPE_CHECKING:
    from declarative_train.data.spec import FieldSpec
    from declarative_train.plan.plan import Plan

_CONTEXT = ("max_position_embeddings", "n_positions")  # keys of a config: number of tokens that the model can read
_EXAMPLE = [{"role": "user", "content": "a"}, {"role": chat.ASSISTANT, "content": "b"}]


@dataclass(frozen=True, slots=True)
class TextOutput:
    """Output of a model that predicts text.

    output   name of the output with the logits (T, V) of the next token at T positions
    field    name of the field with the tokens
    length   tokens of a sample
    context  how many of these tokens the model computes logits for
    reads    batch entries from the field: {name: output of the field (`ids`, `mask`, ...)}
    others   names of the other batch entries that the model reads
    """

    output: str
    field: str
    length: int
    context: int
    vocabulary: int
    reads: dict[str, str]
    others: tuple[str, ...]


def is_of_text(plan: Plan) -> bool:
    return plan.data.source.get("type") == "text" or any(_is_tokens(field) for field in plan.data.fields)


def find_text_output(plan: Plan) -> TextOutput | None:
    """Return the output that predicts the next token; None if no loss `cross_entropy` reads such an output."""
    for term in plan.objective.terms:
        along_last = int(str(term.component.get("class_dim", -1))) in (-1, 2)
        if term.component["type"] == "cross_entropy" and term.target is not None and along_last:
            found = _read_output(plan, term.input)
            if found is not None:
                return found
    return None


def find_policy_output(plan: Plan) -> TextOutput | None:
    """Return the output that predicts the next token in a plan without a `cross_entropy`, such as preference
    optimisation. It is the only node that computes logits from tokens, has trained parameters, and is read by another
    node. Return None if there is not exactly one such node."""
    graph = prune(plan, list(dict.fromkeys(term.input for term in plan.objective.terms)))
    read = {edge for node in graph.nodes for edge in node.inputs.values()}
    trained = [parameter.name for parameter in plan.parameters if not parameter.frozen]
    known = {field.name: field.tensor.num_values or 0 for field in plan.data.fields}
    found = []
    for node in graph.nodes:
        is_read = f"{node.name}:{next(iter(node.outputs))}" in read
        if is_read and any(name.startswith(f"{node.name}.") for name in trained):
            made = _read_output(plan, node.name)
            if made is not None and made.vocabulary >= known[made.field]:
                found.append(made)
    return found[0] if len(found) == 1 else None


def _read_output(plan: Plan, output: str) -> TextOutput | None:
    """Return a description of the output named `output`; None if it cannot predict text. Each of its samples must have
    the shape (positions, scores), and it must be computed from a field with one row of tokens per sample."""
    specs = {field.name: field for field in plan.data.fields}
    graph = prune(plan, [output])
    spec = graph.spec(graph.outputs[output])
    known = [name for name in graph.inputs if specs[name].tensor.num_values is not None]
    fields = [name for name in known if "." not in name] or [name.partition(".")[0] for name in known]
    if len(spec.shape) != 2 or not fields or len(specs[fields[0]].tensor.shape) != 1:
        return None
    field = fields[0]
    mine = [name for name in graph.inputs if name.partition(".")[0] == field]
    length = specs[field].tensor.shape[0]
    return TextOutput(
        output,
        field,
        length,
        min(length, spec.shape[0]),
        spec.shape[1],
        {name: name.partition(".")[2] or layout.OUTPUTS[0] for name in mine},
        tuple(name for name in graph.inputs if name not in mine),
    )


def context_of_published(plan: Plan, found: TextOutput) -> int | None:
    """Return the context length, in tokens, of the published model with whose weights training began: the smallest in
    the configs of its nodes. Return None without such a model, or if no config has it."""
    graph = prune(plan, [found.output])
    started = {each.node for each in plan.weights if each.tensors is not None}
    lengths = []
    for each in plan.published:
        is_used = any(each.node == node.name or each.node.startswith(f"{node.name}.") for node in graph.nodes)
        family = family_of(each.block)
        if not is_used or each.config is None or family is None or started.isdisjoint(("", each.node)):
            continue
        try:
            config = config_of(family, each.params, each.config)
        except PublishedError:
            continue
        lengths += [size for key in _CONTEXT if isinstance(size := config.get(key), int)]
    return min(lengths, default=None)


def _is_tokens(field: FieldSpec) -> bool:
    return field.component.get("type") == "tokens"


@dataclass(frozen=True)
class TextCodec:
    """Converter between text and the tokens on which a model was trained. `ends`: tokens at which generation stops,
    because they end a text or an answer in the training data. `is_chat`: the model was trained on dialogues."""

    tokenizer: Tokenizer
    field: TokensField | None = None
    ends: frozenset[int] = frozenset()
    is_chat: bool = False

    @classmethod
    def of(cls, plan: Plan, field: str) -> TextCodec:
        """Return the converter between texts and tokens for the field `field`. Raises TokenizerError."""
        spec = next(each for each in plan.data.fields if each.name == field)
        component = spec.component if _is_tokens(spec) else plan.data.source
        found = tokenizer_of(component)
        made = FIELDS.read(spec.component)
        own = made if isinstance(made, TokensField) else None
        asked = component.get("eos", False)
        end = found.role("eos", asked if isinstance(asked, bool | str) else False)
        ends = frozenset() if end is None else frozenset({end})
        if own is None or not (own.template is not None or spec.statistics.get("dialogues")):
            return cls(found, own, ends)
        return cls(found, own, ends | _ends(own, found), is_chat=True)

    def encode(self, text: str) -> list[int]:
        """Encode a text that the model will continue. Tokens that begin a text are added, but not those that end it."""
        plain = self.tokenizer.encode(text, adds_special=False)
        if self.field is None:
            return plain
        before: list[int] = []
        if self.field.special:
            whole = self.tokenizer.encode(text)
            before = next((whole[:at] for at in range(len(whole)) if whole[at : at + len(plain)] == plain), [])
        return self._add_first([*before, *plain])

    def encode_prompt(self, prompt: str) -> list[int]:
        """Encode a user's message, or messages as JSON, up to the beginning of the assistant's answer. Raises ChatError
        and TokenizerError."""
        template = chat.template_text(None if self.field is None else self.field.template, self.tokenizer)
        given = chat.dialogue(chat.messages(prompt, "user"), template)
        return self._add_first(
            chat.tokens(chat.render(template, given, self.tokenizer, answers=True), self.tokenizer)[0]
        )

    def _add_first(self, tokens: list[int]) -> list[int]:
        first = None if self.field is None else self.tokenizer.role("bos", self.field.bos)
        return tokens if first is None or tokens[:1] == [first] else [first, *tokens]


def _ends(field: TokensField, found: Tokenizer) -> frozenset[int]:
    """Return the tokens that end a text: the tokenizer's end-of-text token and, if the field has a chat template, the
    token that ends an answer. This is the first special token in the answer of a rendered example."""
    ends = {found.special["eos"]} if "eos" in found.special else set()
    try:
        template = chat.template_text(field.template, found)
        tokens, trained = chat.tokens(chat.write(template, _EXAMPLE, found), found)
    except (chat.ChatError, TokenizerError):
        return frozenset(ends)
    answer = [token for token, flag in zip(tokens, trained, strict=True) if flag]
    special = next((token for token in answer if not found.decode([token]) and found.token_text(token)), None)
    return frozenset(ends if special is None else {*ends, special})
