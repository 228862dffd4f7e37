"""Dialogues as tokens: the numbers and the mask of transformers, what the assistant says, and templates that must not
do what they do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.data import MESSAGES, Column
from declarative_train.data import shared_sets
from declarative_train.data.spec import DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.text import chat
from declarative_train.packs.text.tokenizer import tokenizer
from declarative_train.packs.text.tokens import TokensField
from tests.data.conftest import Described

tokenizers = pytest.importorskip("tokenizers")

DIALOGUES: list[list[dict[str, Any]]] = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who are you?\n\n"},
        {"role": "assistant", "content": "  A model, na\u00efve \U0001f600."},
        {"role": "user", "content": "And \u4f60\u597d?"},
        {"role": "assistant", "content": "Hello <there> & \"you\""},
    ],
    [{"role": "user", "content": "One plus one?"}, {"role": "assistant", "content": "Two."}],
    [{"role": "user", "content": "Say nothing."}, {"role": "assistant", "content": ""}],
]  # fmt: skip

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' }}\n"
    "    {%- if message.role == 'assistant' %}\n"
    "        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}\n"
    "    {%- else %}{{- message['content'] ~ '<|im_end|>' }}{%- endif %}\n"
    "    {{- '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)
PLAIN_CHATML = CHATML.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
LLAMA3 = (
    "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages if m.content is defined %}"
    "{% set ns.n = ns.n + 1 %}<|im_start|>{{ m['role'] }}\n\n{{ m['content'] | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
MACRO = (
    "{%- macro shown(x) -%}[{{ x | tojson }}]{%- endmacro -%}"
    "{%- set today = strftime_now('%d %b %Y') if false else '26 Jul 2024' -%}{{ bos_token }}{{ today }}\n"
    "{%- if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}"
    "{%- else %}{% set rest = messages %}{% endif %}"
    "{%- for m in rest -%}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif -%}"
    "{%- if m.role == 'user' %} [INST] {{ shown(m.content) }} [/INST]"
    "{%- else %}{% generation %} {{ m.content | trim }}{{ eos_token }}{% endgeneration %}{% endif -%}"
    "{%- if loop.last %}{% break %}{% endif -%}{%- endfor -%}"
)
TEMPLATES = {"chatml": CHATML, "plain": PLAIN_CHATML, "llama3": LLAMA3, "macro": MACRO}
COLUMN = [Column("messages", MESSAGES)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-pair tokenizer with a chat template, as models are published with, and rows of dialogues."""
    root = tmp_path_factory.mktemp("chats")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([each["content"] for every in DIALOGUES for each in every] * 3, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(root / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (root / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
    with (root / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"messages": each, "score": 1}) + "\n" for each in DIALOGUES * 4)
    return root


def field(folder: Path, **keys: Any) -> TokensField:
    return TokensField.model_validate({"column": "messages", "tokenizer": str(folder), "length": 128} | keys)


def encoded(each: TokensField, value: Any) -> tuple[list[int], list[bool]]:
    found = tokenizer(each.tokenizer)
    tokens, trained, _ = each.encode(json.dumps(value), COLUMN, 0, found)
    assert trained is not None
    return list(tokens), list(trained)


def learnt(each: TokensField, value: Any) -> str:
    """What is to be predicted, as text."""
    tokens, trained = encoded(each, value)
    parts = [token for token, flag in zip(tokens, trained, strict=True) if flag]
    return tokenizer(each.tokenizer).decode(parts, skips_special=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_numbers_and_masks_are_those_of_transformers(folder: Path, name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast.from_pretrained(str(folder))
    each = field(folder, template=TEMPLATES[name])
    for dialogue in DIALOGUES:
        wanted = library.apply_chat_template(
            dialogue,
            chat_template=TEMPLATES[name],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask="endgeneration" in TEMPLATES[name],
        )
        tokens, trained = encoded(each, dialogue)
        assert tokens == wanted["input_ids"]
        if "assistant_masks" in wanted:
            assert list(map(int, trained)) == wanted["assistant_masks"]


def test_the_folders_own_template_is_taken_and_a_file_beside_it_goes_first(folder: Path, tmp_path: Path) -> None:
    assert encoded(field(folder), DIALOGUES[1]) == encoded(field(folder, template=CHATML), DIALOGUES[1])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(MACRO)
    assert encoded(field(tmp_path), DIALOGUES[1]) == encoded(field(folder, template=MACRO), DIALOGUES[1])
    (tmp_path / "mine.jinja").write_text(LLAMA3)
    mine = field(tmp_path, template=str(tmp_path / "mine.jinja"))
    assert encoded(mine, DIALOGUES[1]) == encoded(field(folder, template=LLAMA3), DIALOGUES[1])
    assert str(tmp_path / "mine.jinja") in mine.files


def test_what_the_assistant_says_is_learnt_and_nothing_else(folder: Path) -> None:
    assert learnt(field(folder), DIALOGUES[0]) == (
        '  A model, na\u00efve \U0001f600.<|im_end|>Hello <there> & "you"<|im_end|>'
    )
    # of a template that says nothing of it: what an answer adds
    assert learnt(field(folder, template=PLAIN_CHATML), DIALOGUES[1]) == "Two.<|im_end|>\n"
    assert learnt(field(folder, template=LLAMA3), DIALOGUES[1]) == "Two.<|im_end|>"


def test_messages_in_other_forms(folder: Path) -> None:
    each, wanted = field(folder), encoded(field(folder), DIALOGUES[1])
    question, answer = (message["content"] for message in DIALOGUES[1])
    shared = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": question[:4]}, {"type": "text", "text": question[4:]}]},
        {"role": "assistant", "content": answer, "tool_calls": None},
    ]
    assert encoded(each, shared) == encoded(each, parts) == wanted
    found = tokenizer(str(folder))
    paired = field(folder, prompt="question", column="answer", template=True)
    both = [Column("answer", "object"), Column("question", "object")]
    tokens, trained, _ = paired.encode((answer, question), both, 0, found)
    assert (tokens, trained) == wanted
    # what the prompt's own assistant said is not learnt
    longer = paired.encode((json.dumps(DIALOGUES[0][4:]), json.dumps(DIALOGUES[0][:4])), both, 0, found)
    assert longer[0] == encoded(each, DIALOGUES[0])[0]
    assert longer[1] is not None
    kept = [token for token, flag in zip(longer[0], longer[1], strict=True) if flag]
    assert found.decode(kept, skips_special=False) == 'Hello <there> & "you"<|im_end|>'


def test_another_template_is_not_that_of_the_plan(
    folder: Path, tmp_path: Path, spec: Callable[..., DataSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sets, "_latest", {})
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML)
    keys = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 64, "template": str(path)}
    found = spec(source={"type": "jsonl", "path": str(folder / "rows.jsonl")}, fields={"chat": keys})
    assert str(path) in {each.path for each in found.files}
    open_sets(found)
    shared_sets._latest.clear()
    path.write_text(PLAIN_CHATML.replace("<|im_start|>", "<s>"))
    with pytest.raises(DataError, match="field `chat` differs from the plan: its chat template has changed"):
        open_sets(found)


def test_prompts_and_answers_without_a_template(folder: Path) -> None:
    each = field(folder, prompt="question", column="answer", eos=True)
    columns = [Column("answer", "object"), Column("question", "object")]
    found = tokenizer(str(folder))
    tokens, trained, _ = each.encode(("Two.", "One plus one? "), columns, 0, found)
    assert tokens == [*found.encode("One plus one? Two."), found.special["eos"]]
    assert trained is not None
    assert not trained[0]
    assert found.decode([t for t, flag in zip(tokens, trained, strict=True) if flag]).strip() == "Two."
    assert trained[-1]


def test_three_columns_of_alpaca(folder: Path) -> None:
    each = field(folder, column="output", prompt="instruction", context="input", template=True)
    columns = [Column(name, "object") for name in ("output", "instruction", "input")]
    found = tokenizer(str(folder))
    for context, asked in (("4 and 5", "Add.\n\n4 and 5"), ("", "Add."), (None, "Add.")):
        tokens, trained, _ = each.encode(("9", "Add.", context), columns, 0, found)
        written = chat.write(CHATML, [{"role": "user", "content": asked}, {"role": "assistant", "content": "9"}], found)
        assert (list(tokens), list(trained or ())) == chat.tokens(written, found)
    assert each.missing_key(("9", None, "x")) == "prompt"
    assert not each.needs_value(columns[2])
    lone = field(folder, column="output", context="input").check([columns[0], columns[2]])
    assert lone is not None
    assert lone.field == "context"


def test_the_last_answer_alone_is_learnt(folder: Path) -> None:
    assert learnt(field(folder, answers="last"), DIALOGUES[0]) == 'Hello <there> & "you"<|im_end|>'
    assert learnt(field(folder, answers="last", template=PLAIN_CHATML), DIALOGUES[0]).startswith("Hello <there>")
    refused = field(folder, answers="last").check([Column("messages", "object")])
    assert refused is not None
    assert refused.field == "answers"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (PLAIN_CHATML.replace("assistant\\n' }}{%- endif", "other\\n' }}{%- endif"), "message 2 begins with"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "message 1 is not in the text"),
        (
            "{% for i in range(0, 2, 2) %}{% set q = messages[i] %}{% set a = messages[i + 1] %}"
            "{{ q.content ~ a.content }}{% endfor %}",
            "message 1 is not in the text",
        ),
        (
            "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x ~ m.content %}{% endfor %}{{ n.x }}",
            "which part of the text",
        ),
        (
            "{% macro say(all) %}{% for m in all %}{{ m.content }}{% endfor %}{% endmacro %}{{ say(messages) }}",
            "which part of the text",
        ),
        ("{{ raise_exception('no such role') }}", "the template says: no such role"),
        ("{{ messages[9].content.x }}", "the template fails: list object has no element 9"),
        ("{% for m in messages %}", "it is not a Jinja template"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "something forbidden"),
        ("{{ cycler.__init__.__globals__.os }}", "something forbidden"),
        ("{% set x = messages.append(1) %}", "something forbidden"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 1 s"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{{ 'ab' * 99999999999 }}", "characters"),
        ("{{ '%999999999d' % 1 }}", "characters"),
        ("{{ '{:999999999}'.format(1) }}", "characters"),
        ("{{ 'a'.ljust(999999999) }}", "characters"),
        ("{{ 'a' | center(999999999) }}", "characters"),
        ("{{ 'aaaa' | replace('a', 'a' * 2000000) }}", "characters"),
        ("{{ 9 ** 9 ** 9 }}", "bits"),
        ("{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "items"),
        ("{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}", "more than"),
        (
            "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set t %}{{ n.x }}{{ n.x }}{% endset %}"
            "{% set n.x = t %}{% endfor %}",
            "items",
        ),
        (
            "{% set n = namespace(x=1) %}{% for i in range(9) %}{% set n.x = {'a' * 3000000 ~ i: n.x} %}{% endfor %}",
            "items",
        ),
        ("{% for i in range(99999) %}" + "a" * 1000 + "{% endfor %}", "characters"),
        ("(" * 200, "brackets"),
        ("{% generation %}" * 300, "nested too deep"),
    ],
)
def test_a_template_that_is_wrong_or_hostile_is_told_at_once(folder: Path, template: str, says: str) -> None:
    begun = time.thread_time()
    with pytest.raises(chat.ChatError) as found:
        chat.write(template, DIALOGUES[1], tokenizer(str(folder)))
    assert says in str(found.value)
    assert time.thread_time() - begun < 3


TURNS = [say for turn in (("Hi", "One"), ("Why", "Two")) for say in zip(("user", "assistant"), turn, strict=True)]
THOUGHTS = (  # the last answer has a thought, as of Qwen3; so a dialogue up to an answer has other text than the whole
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)
END = (  # an end after the loop, as of Phi-3, and another within it, as of gpt-oss
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '<return>' if loop.last else '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}"
)
ASKED = (  # the question writes the prompt, as of DeepSeek
    "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}<A>{% else %}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'user' %}<A>{% endif %}"
)
BY_NUMBER = (
    "{% for i in range(messages | length) %}{% set m = messages[i] %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (THOUGHTS, ["One<|im_end|>\n", "\n</think>\n\nTwo<|im_end|>\n"]),
        (END, ["One<end>", "Two<return>", "</s>"]),
        (ASKED, ["One<end>", "Two<end>"]),
        (BY_NUMBER, ["One", "Two"]),
        ("{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}", ["One", "Two!"]),
    ],
    ids=["thoughts", "end", "asked", "by number", "no prompt"],
)
def test_answers_are_found_by_the_loops_of_a_template(folder: Path, template: str, wanted: list[str]) -> None:
    given = [{"role": role, "content": content} for role, content in TURNS]
    written = chat.write(template, given, tokenizer(str(folder)))
    assert [written.text[begin:end] for begin, end in written.spans] == wanted


def test_a_result_of_a_tool_within_an_answer_is_not_learnt(folder: Path) -> None:
    template = (  # as of Gemma 4
        "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{% for c in m.calls %}({{ c }})"
        "{% for k in range(loop.index0 + 2, loop.index0 + 3) %}{% set t = messages[k] %}={{ t.content }}{% endfor %}"
        ".{% endfor %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    given = [
        {"role": "user", "content": "Sum?"},
        {"role": "assistant", "content": "", "calls": ["1+1"]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "Two"},
    ]
    written = chat.write(template, given, tokenizer(str(folder)))
    assert written.text == "<user>Sum?<assistant>(1+1)=2.<assistant>Two"
    assert [written.text[begin:end] for begin, end in written.spans] == ["(1+1)", ".", "Two"]


@pytest.mark.parametrize("pack", [None, "best_fit", "sequential"])
def test_a_set_of_dialogues_packed_and_not(spec: Callable[..., DataSpec], folder: Path, pack: str | None) -> None:
    keys = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 160, "pack": pack}
    described = spec(source={"type": "jsonl", "path": str(folder / "rows.jsonl")}, fields={"chat": keys})
    training = open_sets(described)["training"]
    made = training.gather(np.arange(training.num_samples))
    names = {name for name in made if name.startswith("chat")}
    assert "chat.trained" in names
    ids, trained = np.asarray(made["chat"]), np.asarray(made["chat.trained"])
    segments = np.asarray(made["chat.segments"])
    found, texts = tokenizer(str(folder)), []
    for row in range(len(ids)):
        for segment in range(1, segments[row].max() + 1):
            flags = trained[row] & (segments[row] == segment)
            texts.append(found.decode(ids[row][flags].tolist(), skips_special=False))
    wanted = sum(sum(encoded(field(folder), each)[1]) for each in DIALOGUES * 4)
    if pack == "sequential":  # cuts anywhere, and what a cut begins with follows from nothing
        assert wanted - len(ids) <= int(trained.sum()) <= wanted
        return
    assert sorted(texts) == sorted([learnt(field(folder), each) for each in DIALOGUES * 4])
    assert int(trained.sum()) == wanted


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no `role`"),
        ({"type": "tensor"}, "holds lists of messages, and a tensor holds numbers"),
        ({"type": "category"}, "holds lists of messages, and a category"),
        ({"tokenizer": "bytes"}, "the tokenizer has no chat template"),
        ({"template": "no.jinja"}, "there is no file no.jinja"),
        ({"template": "{% for x in %}"}, "it is not a Jinja template, line 1"),
        ({"template": "{{ raise_exception('no') }}"}, "the template says: no"),
    ],
)
def test_a_mistake_is_said_once(
    look: Callable[..., Described], folder: Path, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"messages": DIALOGUES[1], "n": 1}, {"messages": [{"who": "me", "content": "x"}], "n": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 64} | keys
    if made["type"] != "tokens":
        made = {"type": made["type"], "column": "messages"}
    found, diagnostics = look(source={"type": "jsonl", "path": str(path)}, fields={"chat": made})
    assert found is None
    (problem,) = diagnostics
    assert message in problem.message
    if not keys:
        assert f"row 2 of {path.name}" in problem.message or "row 2" in problem.message


def test_a_column_of_messages_is_read_from_every_kind_of_file(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather, parquet

    table = pa.table({"messages": pa.array(DIALOGUES)})
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.arrow", compression="uncompressed")
    from declarative_train.components.datasets import DATASETS

    for kind, path in (("parquet", "a.parquet"), ("arrow", "a.arrow"), ("jsonl", folder / "rows.jsonl")):
        source = DATASETS[kind].model_validate({"type": kind, "path": str(tmp_path / path)})
        opened_table = source.open()
        assert opened_table.columns["messages"] == COLUMN[0]
        values = opened_table.read(["messages"], np.array([2, 0]))["messages"]
        assert [chat.messages(value) for value in values] == [DIALOGUES[2], DIALOGUES[0]]


def rows_of(path: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"type": "jsonl", "path": str(path)}


@pytest.mark.parametrize("template", [CHATML, PLAIN_CHATML], ids=["marked", "plain"])
@pytest.mark.parametrize("key", chat.FLAGS)
def test_an_answer_that_is_marked_as_not_learnt_is_not(folder: Path, template: str, key: str) -> None:
    each, ending = field(folder, template=template), "" if template is CHATML else "\n"
    first, second = (f"{DIALOGUES[0][at]['content']}<|im_end|>{ending}" for at in (2, 4))

    def flagged(*flags: object) -> list[dict[str, Any]]:
        made = [dict(message) for message in DIALOGUES[0]]
        for message, flag in zip(made[2::2], flags, strict=True):
            message[key] = flag
        made[1][key] = 0  # of a user: it is not learnt in any case
        return made

    for no in (0, False, 0.0):
        assert learnt(each, flagged(no, None)) == second
        assert learnt(each, flagged(1, no)) == first
        assert learnt(each, flagged(no, no)) == ""
    assert learnt(each, flagged(None, True)) == first + second
    assert encoded(each, flagged(0, 1))[0] == encoded(each, DIALOGUES[0])[0]
    ended = field(folder, template=template, eos="</s>")
    assert learnt(ended, flagged(1, no)) == first  # nor what the recipe puts behind it
    assert learnt(ended, flagged(no, 1)) == second + "</s>"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "assistant", "content": "a", "weight": 0.5}, "message 2 has `weight: 0.5`"),
        ({"role": "assistant", "content": "a", "train": "no"}, 'message 2 has `train: "no"`'),
        ({"role": "user", "content": "a", "train": True}, "message 2 has `train: true` and the role `user`"),
        ({"role": "critic", "content": "a"}, "message 2 has the role `critic`; known are system, developer, user"),
        ({"from": "narrator", "value": "a"}, "message 2 has the role `narrator`; known are"),
    ],
)
def test_what_a_message_cannot_say_is_reported_with_row_and_message(
    look: Callable[..., Described], folder: Path, tmp_path: Path, message: dict[str, Any], says: str
) -> None:
    begin = [{"role": "user", "content": "q"}] if "role" in message else [{"from": "human", "value": "q"}]
    source = rows_of(tmp_path / "rows.jsonl", {"messages": DIALOGUES[1]}, {"messages": [*begin, message]})
    keys = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 64}
    found, (problem,) = look(source=source, fields={"chat": keys})
    assert found is None
    assert problem.code == "D040"
    assert says in problem.message
    assert "in row 2 of" in problem.message


def test_roles_of_published_data_sets_are_those_of_templates(folder: Path) -> None:
    each = field(folder)
    for written, role in chat.ROLES.items():
        for name in (written, written.capitalize()):
            wanted = [{"role": "user", "content": "q"}, {"role": role, "content": "a"}]
            given = [{"from": "human", "value": "q"}, {"from": name, "value": "a"}]
            assert encoded(each, given) == encoded(each, wanted)
            assert encoded(each, [wanted[0], {"role": name, "content": "a"}]) == encoded(each, wanted)
    # a template that knows a role gets it as it is written
    own = field(folder, template=CHATML.replace("{%- if message.role ==", "{%- if message['role'] == 'observation' %}"
                                                "{{- 'saw ' }}{%- endif %}{%- if message.role =="))  # fmt: skip
    tokens, _ = encoded(own, [{"role": "user", "content": "q"}, {"role": "observation", "content": "r"}])
    assert "<|im_start|>observation\nsaw r" in tokenizer(str(folder)).decode(tokens, skips_special=False)


WITH_TOOLS = "{%- if tools %}{{- tools | tojson + '\\n' }}{%- endif %}" + CHATML
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"city": {"type": "string"}}}}]


def test_tools_reach_the_template(spec: Callable[..., DataSpec], folder: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast.from_pretrained(str(folder))
    keys = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 200, "template": WITH_TOOLS}
    other = [{"type": "function", "function": {"name": "time"}}]  # Arrow gives it `parameters: null`
    wanted = [
        library.apply_chat_template(DIALOGUES[1], tools=tools, chat_template=WITH_TOOLS, return_dict=False)
        for tools in (TOOLS, other, None)
    ]
    for number, rows in enumerate(([TOOLS, other, None], [json.dumps(TOOLS), json.dumps(other), "[]"])):
        source = rows_of(tmp_path / f"{number}.jsonl", *({"messages": DIALOGUES[1], "tools": each} for each in rows))
        found = open_sets(spec(source=source, fields={"chat": keys | {"tools": "tools"}}))["training"]
        made = found.gather(np.arange(3))
        assert [ids[mask].tolist() for ids, mask in zip(made["chat"], made["chat.mask"], strict=True)] == wanted


@pytest.mark.parametrize(
    ("keys", "tools", "path", "says"),
    [
        ({"template": WITH_TOOLS}, "a clock", "column", "its tools are not a list of JSON schemas, in row 1"),
        ({}, TOOLS, "tools", "its chat template writes no tools"),
        ({"template": WITH_TOOLS}, 3, "tools", "`tools` holds int64, and tools are lists of JSON schemas"),
        ({"column": "text"}, TOOLS, "tools", "tools are written by a chat template, and its column holds text"),
    ],
)
def test_tools_that_cannot_be_written_are_reported(
    look: Callable[..., Described], folder: Path, tmp_path: Path, keys: dict[str, Any], tools: object, path: str,
    says: str,
) -> None:  # fmt: skip
    source = rows_of(tmp_path / "rows.jsonl", {"messages": DIALOGUES[1], "text": "a", "tools": tools})
    made = {"type": "tokens", "column": "messages", "tools": "tools", "tokenizer": str(folder), "length": 64} | keys
    found, (problem,) = look(source=source, fields={"chat": made})
    assert found is None
    assert problem.span.path == f"data.fields.chat.{path}"
    assert says in problem.message


@pytest.mark.parametrize("pack", [None, "best_fit"])
def test_what_no_template_reads_is_reported(
    look: Callable[..., Described], folder: Path, tmp_path: Path, pack: str | None
) -> None:
    def named(dialogue: list[dict[str, Any]], **keys: object) -> list[dict[str, Any]]:
        return [dialogue[0] | keys, *dialogue[1:]]

    source = rows_of(
        tmp_path / "rows.jsonl",
        {"messages": DIALOGUES[0], "tools": TOOLS},
        {"messages": named(DIALOGUES[1], name="Ada", note="", weight=0), "tools": TOOLS},
        {"messages": named(DIALOGUES[1], name="Ben", reasoning="why"), "tools": TOOLS},
    )
    keys = {"type": "tokens", "column": "messages", "tokenizer": str(folder), "length": 200, "pack": pack}

    def reported(template: str, **more: object) -> list[str]:
        found, diagnostics = look(source=source, fields={"chat": keys | {"template": template} | more})
        assert found is not None
        assert all(problem.code == "D025" and not problem.is_error for problem in diagnostics)
        return [problem.message for problem in diagnostics]

    for _ in range(2):  # from the cache as well
        (message,) = reported(CHATML)
        assert "`name` (2 rows, first row 2 of" in message
        assert "`reasoning` (1 row, first row 3 of" in message
        assert "note" not in message
        assert "weight" not in message
    assert reported("{% generation %}{{ messages | tojson }}{% endgeneration %}") == []
    reads = CHATML.replace("{{- '<|im_start|>'", "{{- message.get('name', '') + message.reasoning_content|d('') }}"
                                                 "{{- '<|im_start|>'")  # fmt: skip
    assert reported(reads) == []
    (message,) = reported("{%- if tools %}{{- tools }}{%- endif %}" + reads)
    assert "its chat template writes tools, but does not get those of the column `tools`" in message
    assert reported("{%- if tools %}{{- tools }}{%- endif %}" + reads, tools="tools") == []
