"""Generation of text with a trained model, token by token, from a prompt.

Keys and values are cached if every node is causal self-attention or treats positions one by one. Otherwise, and for
texts longer than the context, all positions in the context are computed again for each token. The context is the length
of the samples in training, or a longer one of the published model if every node accepts any length.

T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from declarative_train.components.expressions.functions import ELEMENTWISE, INDEX
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import Operation, Reference
from declarative_train.components.layers import LAYERS
from declarative_train.components.layers.activations import Activation
from declarative_train.components.layers.modules.attention import SelfAttentionModule
from declarative_train.components.layers.modules.sequences import LearnedPositionsModule, SinusoidalPositionsModule
from declarative_train.engine.step.randomness import mix
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.read import read_layer
from declarative_train.inference.forward import Forward, device_for
from declarative_train.inference.trained import Trained, UsageError
from declarative_train.packs.text import layout
from declarative_train.packs.text.chat import ChatError
from declarative_train.packs.text.modules.latent_attention import LatentAttentionModule
from declarative_train.packs.text.sampling import Sampling, choose_token
from declarative_train.packs.text.text_io import (
    TextCodec,
    TextOutput,
    context_of_published,
    find_policy_output,
    find_text_output,
    is_of_text,
)
from declarative_train.packs.text.tokenizer import TokenizerError

_ONE_BY_ONE = frozenset({"dropout", "embedding", "embedding_noise", "latent_attention", "layer_scale", "linear", "moe",
                         "learned_positions", "sinusoidal_positions"})  # fmt: skip
_OF_ANY_LENGTH = frozenset({"transformers"})  # their layers mix positions but accept sequences of any length
_ALONG_WIDTH = frozenset({"layer_norm", "rms_norm"})
_OF_POSITIONS = (SelfAttentionModule, LatentAttentionModule, LearnedPositionsModule, SinusoidalPositionsModule)
_PART = "\ufffd"
_PROBE = 3  # length of the prefix by which causality is tested


class TextModel:
    """Trained model that computes the logits of the next token. `context`: number of tokens that it can read. `reason`:
    why keys and values are not cached; "" if they are. The constructor raises UsageError for a model that cannot
    generate text."""

    def __init__(self, trained: Trained, device: str = "auto", *, cache: bool = True) -> None:
        found = _text_output(trained)
        self._forward = Forward(trained, [found.output], device_for(trained, device))
        network = self._forward.network
        if found.others:
            others = ", ".join(f"`{name}`" for name in found.others)
            raise UsageError(f"{trained.name} also reads {others}, but only text is given")
        try:
            self.words = TextCodec.of(trained.plan, found.field)
        except TokenizerError as error:
            raise UsageError(f"{error}{f'; help: {error.help}' if error.help else ''}") from None
        self._outputs, self._length = found.reads, found.length
        self._num_dropped = found.length - found.context  # tokens at the end of a sample for which there are no logits
        self.vocabulary = found.vocabulary
        drops = _drops_last(network.graph)
        self.context = found.context
        if not _why_no_cache(network.graph, trained.plan.plugins, drops, _OF_ANY_LENGTH):
            self.context = max(self.context, _context_of_published(trained, found, network.module))
        self._extra = 1 if drops else 0  # the graph removes the last token, so one more is given
        self.reason = _why_no_cache(network.graph, trained.plan.plugins, drops) if cache else "it was turned off"
        self._tokens: list[int] = []
        self._kept: list[_CachedModule] = []
        self._logits: Tensor | None = None
        if self.reason:
            self._require_causal(trained)
        else:
            self._kept = _add_caches(network.module)

    def begin(self, tokens: list[int]) -> None:
        """Start a new text with the tokens of a prompt."""
        self._tokens, self._logits = [], None
        for each in self._kept:
            each.forget()
        self.feed(tokens)

    def feed(self, tokens: list[int]) -> None:
        """Append tokens to the text, and compute the logits of the token after them."""
        before = len(self._tokens)
        self._tokens += tokens
        if self.reason:
            self._logits = self._compute_padded(self._tokens[-self.context :])
        elif len(self._tokens) <= self.context:
            self._logits = self._compute(self._tokens[before:])
        else:  # the first token leaves the context, so the position of every token changes
            for each in self._kept:
                each.forget()
            self._logits = self._compute(self._tokens[-self.context :])

    @property
    def logits(self) -> Tensor:
        """Logits (V,) of the next token, float32."""
        assert self._logits is not None
        return self._logits

    def _compute(self, tokens: list[int]) -> Tensor:
        return self._run([*tokens, *[0] * self._extra])[len(tokens) - 1]

    def _compute_padded(self, tokens: list[int]) -> Tensor:
        """Return the logits of the token after the last of `tokens`. The tokens are first padded at the end to the
        length of a training sample; a causal model does not see the padding."""
        padding = max(self._length - len(tokens), self._num_dropped)
        return self._run([*tokens, *([0] * padding)])[len(tokens) - 1]

    def _run(self, tokens: list[int]) -> Tensor:
        made = layout.rows(self._outputs.values(), layout.pieces_of_texts([tokens]), len(tokens), 0)
        given = {name: made[output] for name, output in self._outputs.items()}
        (found,) = self._forward(given, len(self._tokens)).values()
        return found[0].float().cpu()

    def _require_causal(self, trained: Trained) -> None:
        start = [number % self.vocabulary for number in range(_PROBE)]
        ends = [[number % self.vocabulary] * (self._length - _PROBE) for number in (0, 1)]
        one, other = (self._run([*start, *end])[_PROBE - 1] for end in ends)
        if self._length > _PROBE and not torch.allclose(one, other, atol=1e-4, rtol=1e-3):
            raise UsageError(
                f"{trained.name} sees later tokens, so it cannot generate them one by one; help: train with attention "
                "that is `causal: true`"
            )


class _CachedModule(nn.Module):
    """Wrapper of attention, or of position embeddings, for generation token by token. It counts positions and caches
    keys and values."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def forget(self) -> None:
        self._length, self._keys, self._values = 0, None, None

    def forward(self, x: Tensor, *others: None) -> Tensor:
        start, module = self._length, self.module
        self._length += x.shape[-2]
        if not isinstance(module, SelfAttentionModule | LatentAttentionModule):
            found: Tensor = module(x, start=start)
            return found
        q, k, v = module.project(x, start)
        self._keys = k if self._keys is None else torch.cat([self._keys, k], 2)
        self._values = v if self._values is None else torch.cat([self._values, v], 2)
        return module.attend_last(q, self._keys, self._values)


def _add_caches(module: nn.Module) -> list[_CachedModule]:
    """Replace each module that depends on positions by a _CachedModule that wraps it. Return these wrappers."""
    found = [name for name, part in module.named_modules() if isinstance(part, _OF_POSITIONS)]
    kept = []
    for name in found:
        owner, _, attribute = name.rpartition(".")
        part = _CachedModule(module.get_submodule(name))
        setattr(module.get_submodule(owner), attribute, part)
        kept.append(part)
    return kept


def _drops_last(graph: Graph) -> frozenset[str]:
    """Return the names of the expressions in `graph` that take a field without its last position: `tokens[:, :-1]`.
    Return the empty set if any other node reads a field, because the model then uses the last position."""
    readers = [node for node in graph.nodes if any(edge in graph.inputs for edge in node.inputs.values())]
    found = frozenset(node.name for node in readers if node.kind == "expression" and _takes_all_but_last(node))
    return found if len(found) == len(readers) else frozenset()


def _takes_all_but_last(node: Node) -> bool:
    root = parse(str(node.expression)).root
    if not isinstance(root, Operation) or root.name != INDEX or not isinstance(root.operands[0], Reference):
        return False
    return root.options["index"] == (slice(None), slice(None, -1))


def _context_of_published(trained: Trained, found: TextOutput, module: nn.Module) -> int:
    """Return how many tokens a model can read: the smallest limit in the configs of the published models in it; 0 if no
    config has a limit."""
    limits = [context_of_published(trained.plan, found)]
    for part in module.modules():  # models of the library transformers have a `config`
        limits.append(getattr(getattr(part, "config", None), "max_position_embeddings", None))
    return min((limit for limit in limits if isinstance(limit, int)), default=0)


def _why_no_cache(
    graph: Graph, plugins: tuple[str, ...], drops: Collection[str] = (), kinds: Collection[str] = ()
) -> str:
    """Return why keys and values cannot be cached; "" if they can. The text names the first node that prevents it: a
    `reuse` node, or a node that may mix positions otherwise than by causal self-attention. `drops`: names of nodes that
    are not checked. `kinds`: types of layers that are not checked."""
    for node in graph.nodes:
        if node.name in drops or (node.component is not None and node.component["type"] in kinds):
            continue
        if node.graph is not None:
            if reason := _why_no_cache(node.graph, plugins, (), kinds):
                return reason
        elif node.kind == "reuse":
            return f"`{node.name}` calls `{node.target}` again"
        elif node.kind == "expression":
            others = set(parse(str(node.expression)).operations) - ELEMENTWISE
            if others:
                return f"the expression `{node.name}` may mix positions (`{min(others)}`)"
        elif node.component is not None and not _is_one_by_one(node.component, tuple(node.inputs), plugins):
            return f"`{node.name}` ({node.component['type']}) may mix positions"
    return ""


def _is_one_by_one(component: dict[str, object], inputs: Sequence[str], plugins: tuple[str, ...]) -> bool:
    kind = str(component["type"])
    if kind not in LAYERS:
        return False
    layer = read_layer(component, plugins)
    if kind == "self_attention":
        return bool(component.get("causal")) and not {"mask"} & set(inputs)
    if kind in _ALONG_WIDTH:
        return component.get("num_dims", 1) == 1
    if layer.operation:
        return layer.operation in ELEMENTWISE
    return kind in _ONE_BY_ONE or (isinstance(layer, Activation) and kind != "glu")  # `glu` works along a dimension


def _text_output(trained: Trained) -> TextOutput:
    """Return the output of the model that has the logits of the next token. Raises UsageError if no output has them."""
    if not is_of_text(trained.plan):
        kind = trained.plan.data.source.get("type")
        raise UsageError(f"{trained.name} was trained on {kind} and not on text; help: `dtrain predict RUN INPUT`")
    found = find_text_output(trained.plan) or find_policy_output(trained.plan)
    if found is None:
        raise UsageError(
            f"{trained.name} has no logits (B, T, V) of the next token: no `cross_entropy` reads such an output, and "
            "there is not exactly one trained node whose logits the objective reads"
        )
    return found


def encode_prompt(text: str, model: TextModel, *, chat: bool = False) -> list[int]:
    """Return the tokens of a prompt. `chat`: the text is a user's message, or messages as JSON; the tokens end where
    the assistant's answer begins. Raises UsageError for an empty prompt, and for a token outside the vocabulary."""
    try:
        tokens = model.words.encode_prompt(text) if chat else model.words.encode(text)
    except (ChatError, TokenizerError) as error:
        raise UsageError(f"{error}{f'; help: {error.help}' if error.help else ''}") from None
    if not tokens:
        raise UsageError("--prompt is empty; help: give at least a line break: --prompt $'\\n'")
    if max(tokens) >= model.vocabulary:
        what = "byte" if model.words.tokenizer.num_tokens == 256 else "token"
        message = f"--prompt has the {what} {max(tokens)}, and the model has tokens 0 to {model.vocabulary - 1}"
        raise UsageError(message)
    return tokens


def generate(
    model: TextModel,
    prompt: str,
    num_tokens: int,
    sampling: Sampling,
    seed: int,
    number: int = 0,
    *,
    chat: bool = False,
) -> Iterator[str]:
    """Yield the continuation of a prompt in pieces of text. It ends after `num_tokens` tokens, or at a token that ends
    a text. `chat`: the prompt is a user's message, or messages as JSON. `number`: index of the continuation, if there
    are several of one prompt: the text depends on `seed` and `number`, and is the same each time on one machine."""
    generator = torch.Generator().manual_seed(mix(seed, number) & (2**63 - 1))
    given = encode_prompt(prompt, model, chat=chat)
    model.begin(given)
    written, shown = list(given), model.words.tokenizer.decode(given)
    for position in range(num_tokens):
        token = choose_token(model.logits, sampling, generator)
        if token in model.words.ends:
            break
        written.append(token)
        text = model.words.tokenizer.decode(written)
        if not text.endswith(_PART) and len(text) > len(shown):  # not in the middle of a character
            yield text[len(shown) :]
            shown = text
        if position < num_tokens - 1:
            model.feed([token])
    if rest := model.words.tokenizer.decode(written)[len(shown) :]:
        yield rest
