"""Tokens and masks of dialogues compared with a second implementation: the chat templates that TRL ships, rendered by
transformers, and TRL's `{% generation %}` versions of them.

The templates are read from the installed package, whose trainers are not imported.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from declarative_train.components.data import MESSAGES, BadValueError, Column
from declarative_train.packs.text.tokenizer import tokenizer
from declarative_train.packs.text.tokens import TokensField

tokenizers = pytest.importorskip("tokenizers")
trl = find_spec("trl")
if trl is None or trl.origin is None:
    pytest.skip("TRL is not installed", allow_module_level=True)

FOLDER = Path(trl.origin).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))
QUICK = {"cohere", "deepseekv3", "gemma3", "glm4moe", "gptoss", "llama3_1", "phi3", "qwen2_5", "qwen3", "smolvlm"}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": WEATHER}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


def say(role: str, content: str, **keys: object) -> dict[str, Any]:
    return {"role": role, "content": content, **keys}


TURNS = [say("user", "Hi"), say("assistant", "Hello!"), say("user", "And now?"), say("assistant", "Bye.")]
DIALOGUES: dict[str, list[dict[str, Any]]] = {
    "single": TURNS[:2],
    "system": [say("system", "Be brief."), *TURNS[:2]],
    "multi": TURNS,
    "thoughts": [TURNS[0], TURNS[1] | {"reasoning_content": "easy"}, TURNS[2], TURNS[3] | {"reasoning_content": "end"}],
    "tools": [
        say("user", "Weather in Paris?"),
        say("assistant", "", tool_calls=[CALL]),
        say("tool", "sunny", name="weather"),
        say("assistant", "It is sunny."),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes, whose tokens are as short as a mask can be."""
    root = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate(["<s>", "</s>", "<pad>", "<unk>", *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>"])
    made.save(str(root / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (root / "tokenizer_config.json").write_text(json.dumps(named | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return root


Masked = tuple[list[int], list[int]]


def ours(folder: Path, template: str, dialogue: list[dict[str, Any]], tools: list[Any] | None) -> Masked | None:
    keys = {"column": "messages", "tools": "tools", "tokenizer": str(folder), "length": 1 << 16, "template": template}
    field = TokensField.model_validate(keys)
    columns = [Column("messages", MESSAGES), Column("tools", MESSAGES)]
    try:
        found = field.encode((json.dumps(dialogue), json.dumps(tools)), columns, 0, tokenizer(str(folder)))
    except BadValueError:
        return None
    assert found.trained is not None
    return list(found.tokens), list(map(int, found.trained))


def theirs(library: Any, template: str, dialogue: list[dict[str, Any]], tools: list[Any] | None) -> Masked | None:
    """The mask is of zeros for a template without `{% generation %}`."""
    try:
        found = library.apply_chat_template(
            dialogue,
            tools=tools,
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask="endgeneration" in template,
        )
    except Exception:  # Jinja's, and whatever a template meets in data that it does not expect
        return None
    return found["input_ids"], found.get("assistant_masks", [0] * len(found["input_ids"]))


OPENINGS = {  # of an answer: TRL trains them, and here they are of the prompt, which the template ends with them
    "deepseek_r1_distill": "<\uff5cAssistant\uff5c>|<\uff5ctool\u2581outputs\u2581end\uff5c>",
    "deepseekv3": "<\uff5cAssistant\uff5c>",
    "gptoss": re.escape("<|start|>assistant"),
    "muse_glimmer": re.escape("<|start|>assistant"),
    "nemotron_3_5_lightning": "<think>\n?",
    "nemotron_3_nano": "<think>\n?",
    "nemotron_3_super": "<think>\n?",
    "nemotron_3_ultra": "<think>\n?",
    "qwen2_5": "\n",
    "qwen3_5_nothink": "<think>\n\n</think>\n\n",
    "qwen3_5_think": "<think>\n",
    "qwen3_6": "<think>\n",
    "qwen3_8": "<think>\n",
}
OTHER_TEXT = {  # TRL's version of it writes another text, of dialogues with several answers
    "glm4moe",
    "qwen3",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
}
MORE = {("diffusion_gemma", "tools")}  # an answer follows a call without a turn of its own: what is between is learnt
SILENT = {"idefics3", "smolvlm"}  # they write no content that is a string, so that transformers loses it


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.long) for each in NAMES]
)
def test_a_template_gives_the_tokens_of_transformers_and_the_masks_of_trl(folder: Path, name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast.from_pretrained(str(folder))
    plain, marked = (FOLDER / f"{name}{end}.jinja" for end in ("", "_training"))
    for kind, dialogue in DIALOGUES.items():
        tools = TOOLS if kind == "tools" else None
        found = ours(folder, plain.read_text(), dialogue, tools)
        wanted = theirs(library, plain.read_text(), dialogue, tools)
        if found is None:
            assert wanted is None or name in SILENT
        else:
            assert wanted is not None
            assert found[0] == wanted[0]
        if not marked.exists():
            continue
        trained = theirs(library, marked.read_text(), dialogue, tools)
        assert ours(folder, marked.read_text(), dialogue, tools) == trained
        if found is None or trained is None or (name, kind) in MORE:
            continue
        if found[0] != trained[0]:
            assert name in OTHER_TEXT
            continue
        assert all(theirs_too or not own for own, theirs_too in zip(found[1], trained[1], strict=True))
        rest = [
            token for token, own, other in zip(found[0], *(f[1] for f in (found, trained)), strict=True) if other > own
        ]
        answers = sum(message["role"] == "assistant" for message in dialogue)
        assert re.fullmatch(f"({OPENINGS.get(name, '')}){{{answers}}}", library.decode(rest))


def test_the_quick_templates_are_there() -> None:
    assert set(NAMES) >= QUICK | OPENINGS.keys() | OTHER_TEXT
    assert any(name.startswith("deepseek") for name in NAMES)
