"""Messages about tokens: which of them a model reads, and which it learns to predict.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
R146 is an error, the others are warnings: the run is valid.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.core.span import Span


def answers_cut_off(span: Span, field: str, num_texts: int, num_cut: int, num_lost: int, length: int) -> Diagnostic:
    """answers-cut-off (D026)

    Finds: a field of dialogues, or of answers to prompts, in which `length` cuts off tokens of the answer in at least
           10% of the texts.
    Why:   the model does not learn how long answers end. A text whose whole answer is cut off does not train the model
           at all, and the run does not report this.
    Diff:
        data:
          fields:
    -       chat: {length: 16}
    +       chat: {length: 41}
    """
    lost = f", and in {num_lost:,} of them the whole answer" if num_lost else ""
    message = f"`length: {length}` cuts off the answers of {num_cut:,} of {num_texts:,} texts of `{field}`{lost}"
    return warning("D026", span, message, "make it longer; `dtrain data show` lists the lengths of the texts")


def end_not_trained(span: Span, field: str, last: str) -> Diagnostic:
    """end-not-trained (D027)

    Finds: a field of dialogues, or of answers to prompts, if in more than half of the texts no token that ends a text
           is among the last four tokens to be predicted.
    Why:   the model does not learn to stop: it continues after its answer until the limit of tokens is reached.
    Diff:
        data:
          fields:
    -       chat: {template: "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %} <end> {% else %}{{ m.content }} <end> {% endif %}{% endfor %}"}
    +       chat: {template: "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }} <end>{% endgeneration %} {% else %}{{ m.content }} <end> {% endif %}{% endfor %}"}
    """  # noqa: E501
    message = f"the answers of `{field}` end with text, such as {last}: no token that ends an answer is trained"
    hint = "write the end token inside of `{% generation %}`, or set `eos: true`"
    return warning("D027", span, message, hint)


def padding_is_target(span: Span, term: str, field: str, share: float) -> Diagnostic:
    """padding-is-target (R140)

    Finds: a loss without `mask` and `ignore_index` whose target is the tokens of texts of different lengths, so that
           more than 2% of these tokens are padding.
    Why:   padding counts as tokens to be predicted. It is easy to predict, so the loss looks low, and most of the
           gradient may come from it. In a dialogue, the tokens of the questions count too.
    Diff:
    -   model: {graph: {counts: null}}
        objective:
    -     loss: {type: cross_entropy, input: lm, target: next, mask: null}
    +     loss: {type: cross_entropy, input: lm, target: next, mask: counts}
    """
    message = f"the loss `{term}` counts the padding of `{field}`, {share:.0%} of its tokens"
    hint = f"set `mask` to a node `{field}.trained[:, 1:]`, or `{field}.mask` sliced as the target is"
    return warning("R140", span, message, hint)


def padding_is_counted(span: Span, node: str, field: str, what: str) -> Diagnostic:
    """padding-is-counted (R141)

    Finds: a mean, a sum, a maximum or the last state over the positions of texts of different lengths, without a mask.
    Why:   the result then depends on the padding after the text too, and so changes with `length`.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: notes.csv}
          fields:
            size: {type: tokens, column: note, tokenizer: bytes, length: 8}
        model:
          graph:
            embed: {type: embedding, embedding_dim: 8, input: size}
    -       pooled: mean(embed, dim=1)
    +       pooled: {type: sequence_pool, inputs: {x: embed, mask: size.mask}}
            hidden: {input: pooled}
        # file: notes.csv
        note,age
        good,12
        very bad,30
        so so,7
    """
    message = f"in `{node}`, {what} includes the padding of `{field}`"
    hint = f"use `{field}.mask`, as in `{{type: sequence_pool, inputs: {{x: NODE, mask: {field}.mask}}}}`"
    return warning("R141", span, message, hint)


def end_is_ignored(span: Span, term: str, token: str) -> Diagnostic:
    """end-is-ignored (R142)

    Finds: a loss whose `ignore_index` is the padding token, if the same token also ends a text.
    Why:   the loss ignores the ends of texts too, so the model never learns to stop.
    Diff:
        data: {fields: {chat: {pad: <end>}}}
    -   model: {graph: {counts: null}}
        objective:
    -     loss: {type: cross_entropy, input: lm, target: next, mask: null, ignore_index: 1}
    +     loss: {type: cross_entropy, input: lm, target: next, mask: counts}
    """
    message = (
        f"`ignore_index` of the loss `{term}` is {token}, which pads a text and also ends it: the end is not trained"
    )
    return warning("R142", span, message, "remove it, and set `mask` to a node of `FIELD.trained`")


def mask_of_other_tokens(span: Span, term: str, target: str, mask: str) -> Diagnostic:
    """mask-of-other-tokens (R143)

    Finds: a loss whose target and `mask` come from the same field of tokens, but are slices of different positions.
    Why:   the mask states for each token whether it counts. A mask that is shifted by one leaves out the last token of
           each answer, and counts the last token of each question.
    Diff:
        model:
          graph:
            next: chat[:, 1:]
    -       counts: chat.trained[:, :-1]
    +       counts: chat.trained[:, 1:]
    """
    message = (
        f"the loss `{term}` has the target `{target}` and the mask `{mask}`, which are slices of different positions"
    )
    return warning("R143", span, message, "slice both in the same way, usually by `[:, 1:]`")


def target_is_not_next(span: Span, term: str, shift: int) -> Diagnostic:
    """target-is-not-next (R144)

    Finds: a causal language model whose target is its own input, but not shifted by exactly one token.
    Why:   without a shift, the target of each position is the token that the model reads there, and it learns to copy.
           With a shift of two, it learns the token after the next one, and leaves out every second token when it
           generates text.
    Diff:
        model:
          graph:
            tokens: chat[:, :-1]
    -       next: chat[:, :-1]
    -       counts: chat.trained[:, :-1]
    +       next: chat[:, 1:]
    +       counts: chat.trained[:, 1:]
    """
    what = (
        "the token that it reads there" if shift == 0 else f"the token {shift} places after the one that it reads there"
    )
    message = f"at each position, the loss `{term}` trains the model to predict {what}"
    return warning("R144", span, message, "use `[:, :-1]` as the input and `[:, 1:]` as the target")


def texts_not_separated(span: Span, field: str) -> Diagnostic:
    """texts-not-separated (R145)

    Finds: a field of dialogues, or of answers to prompts, that is packed (`pack`), with a model that has attention and
           does not read the field's output `segments`.
    Why:   attention then reaches from one dialogue into another one of the same sample, so the model learns its answers
           as if the other dialogue came before them.
    Diff:
        data: {fields: {chat: {pack: best_fit, length: 65}}}
        model:
          graph:
            tokens: chat[:, :-1]
    +       segments: chat.segments[:, :-1]
    +       lm: {input: null, inputs: {tokens: tokens, segments: segments}}
    """
    message = f"`{field}` packs several texts into a sample, and nothing reads `{field}.segments`, which separate them"
    hint = f"write `inputs: {{tokens: TOKENS, segments: SEGMENTS}}`, with SEGMENTS a node `{field}.segments[:, :-1]`"
    return warning("R145", span, message, hint)


def packed_answers_in_kto(span: Span, node: str, field: str) -> Diagnostic:
    """packed-answers-in-kto (R146)

    Finds: a block `kto` whose inputs are computed from a field with `pack`.
    Why:   the loss of KTO compares single answers, and its KL term is a mean over answers. A packed sample has the sum
           of several answers, or, with the key `texts`, zeros for answers that are not there, which the mean would
           count.
    Diff:
    -   data: {fields: {chat: {pack: best_fit}}}
        model:
          graph:
            next: null
            counts: null
            segments: chat.segments[:, :-1]
            lm: {input: null, inputs: {tokens: tokens, segments: segments}}
            likely: {type: sequence_log_likelihood, inputs: [lm, chat, chat.trained]}
            known: detach(likely.sum)
            good: likely.sum > -50
            kto: {type: kto, inputs: [likely.sum, known, good, known, known]}
        objective: {loss: {type: mean, input: kto}}
    """
    message = f"`{node}` compares single answers, but `{field}` packs several texts into a sample"
    return error("R146", span, message, f"remove `pack` of `{field}`; length buckets leave little padding too")


def mostly_padding(span: Span, field: str, share: float, buckets: Sequence[int]) -> Diagnostic:
    """mostly-padding (R147)

    Finds: a token field with samples of at least 128 tokens, if at least 70% of its training samples' positions are
           padding. Fields with packed texts or length buckets are not checked.
    Why:   a step computes all positions of a sample, so most of its time and of its activations is spent on padding.
    Diff:
        data:
          fields:
    -       chat: {length: 257}
    +       chat: {length: {buckets: [25, 33, 257]}}
    """
    message = f"{share:.0%} of the positions of `{field}` are padding, on which each step spends its time"
    hint = f"`length: {{buckets: [{', '.join(map(str, buckets))}]}}` shortens batches of short texts; or pack the texts"
    return warning("R147", span, message, f"{hint} (`pack: best_fit`)")
