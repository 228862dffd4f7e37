"""A plan of a text model -> which output writes, and how a text becomes the tokens that it was taught, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from declarative_train.components.fields import FIELDS
from declarative_train.components.fields.tokens import TokensField
from declarative_train.components.published import PublishedError, config_of, family_of
from declarative_train.components.texts import chat, layout
from declarative_train.components.texts.tokenizer import BYTES, Tokenizer, TokenizerError, tokenizer
from declarative_train.plan.subgraph import pruned

if TYPE_CHECKING:
    from declarative_train.data.spec import FieldSpec
    from declarative_train.plan.plan import Plan

_CONTEXT = ("max_position_embeddings", "n_positions")  # of a config, in tokens
_EXAMPLE = [{"role": "user", "content": "a"}, {"role": chat.ASSISTANT, "content": "b"}]


@dataclass(frozen=True, slots=True)
class Written:
    """`output`: its logits (T, V) are of the next token, at each of T positions; `field`: holds the tokens, `length` of
    them in a sample; the model sees `context`. `reads`: the names of the batch that it needs, each with the output of a
    field of tokens that it is; `others`: what it needs beside them."""

    output: str
    field: str
    length: int
    context: int
    vocabulary: int
    reads: dict[str, str]
    others: tuple[str, ...]


def is_of_text(plan: Plan) -> bool:
    return plan.data.source.get("type") == "text" or any(_is_tokens(field) for field in plan.data.fields)


def written(plan: Plan) -> Written | None:
    """None: no `cross_entropy` is about logits of the next token."""
    for term in plan.objective.terms:
        along_last = int(str(term.component.get("class_dim", -1))) in (-1, 2)
        if term.component["type"] == "cross_entropy" and term.target is not None and along_last:
            found = _written_by(plan, term.input)
            if found is not None:
                return found
    return None


def policy(plan: Plan) -> Written | None:
    """Return what writes where no `cross_entropy` is about logits of the next token, as in preference optimisation: the
    node with trained parameters whose logits of all tokens the objective reads. None: there is not exactly one."""
    graph = pruned(plan, list(dict.fromkeys(term.input for term in plan.objective.terms)))
    read = {edge for node in graph.nodes for edge in node.inputs.values()}
    trained = [parameter.name for parameter in plan.parameters if not parameter.frozen]
    known = {field.name: field.tensor.num_values or 0 for field in plan.data.fields}
    found = []
    for node in graph.nodes:
        is_read = f"{node.name}:{next(iter(node.outputs))}" in read
        if is_read and any(name.startswith(f"{node.name}.") for name in trained):
            made = _written_by(plan, node.name)
            if made is not None and made.vocabulary >= known[made.field]:
                found.append(made)
    return found[0] if len(found) == 1 else None


def _written_by(plan: Plan, output: str) -> Written | None:
    """None: the output is not (T, N) of a field of T numbers."""
    specs = {field.name: field for field in plan.data.fields}
    graph = pruned(plan, [output])
    spec = graph.spec(graph.outputs[output])
    known = [name for name in graph.inputs if specs[name].tensor.num_values is not None]
    fields = [name for name in known if "." not in name] or [name.partition(".")[0] for name in known]
    if len(spec.shape) != 2 or not fields or len(specs[fields[0]].tensor.shape) != 1:
        return None
    field = fields[0]
    mine = [name for name in graph.inputs if name.partition(".")[0] == field]
    length = specs[field].tensor.shape[0]
    return Written(
        output,
        field,
        length,
        min(length, spec.shape[0]),
        spec.shape[1],
        {name: name.partition(".")[2] or layout.OUTPUTS[0] for name in mine},
        tuple(name for name in graph.inputs if name not in mine),
    )


def published_context(plan: Plan, found: Written) -> int | None:
    """Return how many tokens the published model sees that a text model started from, with the params of its node.
    None: it started from none, or its config does not say."""
    graph = pruned(plan, [found.output])
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
class Words:
    """Text to the tokens that a model was taught, and back. `ends`: tokens that end a text, or an answer, if it learnt
    them. `is_chat`: it was taught dialogues."""

    tokenizer: Tokenizer
    field: TokensField | None = None
    ends: frozenset[int] = frozenset()
    is_chat: bool = False

    @classmethod
    def of(cls, plan: Plan, field: str) -> Words:
        """Raises TokenizerError."""
        spec = next(each for each in plan.data.fields if each.name == field)
        component = spec.component if _is_tokens(spec) else plan.data.source
        found = tokenizer(str(component.get("tokenizer", BYTES)))
        made = FIELDS.read(spec.component)
        own = made if isinstance(made, TokensField) else None
        asked = component.get("eos", False)
        end = found.role("eos", asked if isinstance(asked, bool | str) else False)
        ends = frozenset() if end is None else frozenset({end})
        if own is None or not (own.template is not None or spec.statistics.get("dialogues")):
            return cls(found, own, ends)
        return cls(found, own, ends | _ends(own, found), is_chat=True)

    def encoded(self, text: str) -> list[int]:
        """Of a beginning: what is put behind a text is not there yet."""
        plain = self.tokenizer.encode(text, adds_special=False)
        if self.field is None:
            return plain
        before: list[int] = []
        if self.field.special:
            whole = self.tokenizer.encode(text)
            before = next((whole[:at] for at in range(len(whole)) if whole[at : at + len(plain)] == plain), [])
        return self._begun([*before, *plain])

    def asked(self, prompt: str) -> list[int]:
        """Return the tokens of what a user says, or of messages as JSON, up to where the assistant begins. Raises
        ChatError and TokenizerError."""
        template = chat.template_text(None if self.field is None else self.field.template, self.tokenizer)
        given = chat.dialogue(chat.messages(prompt, "user"), template)
        return self._begun(chat.tokens(chat.render(template, given, self.tokenizer, answers=True), self.tokenizer)[0])

    def _begun(self, tokens: list[int]) -> list[int]:
        first = None if self.field is None else self.tokenizer.role("bos", self.field.bos)
        return tokens if first is None or tokens[:1] == [first] else [first, *tokens]


def _ends(field: TokensField, found: Tokenizer) -> frozenset[int]:
    """The first special token behind an answer, and the tokenizer's own end."""
    ends = {found.special["eos"]} if "eos" in found.special else set()
    try:
        template = chat.template_text(field.template, found)
        tokens, trained = chat.tokens(chat.write(template, _EXAMPLE, found), found)
    except (chat.ChatError, TokenizerError):
        return frozenset(ends)
    said = [token for token, flag in zip(tokens, trained, strict=True) if flag]
    special = next((token for token in said if not found.decode([token]) and found.token_text(token)), None)
    return frozenset(ends if special is None else {*ends, special})
