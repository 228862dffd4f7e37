"""Writes the data of the chat recipes next to itself: dialogues, preferences, and a model of the size of a toy, in the
format of transformers, that knows some facts and no dialogue. python recipes/data/make_chats.py [FOLDER]

    chats.jsonl        {"messages": [{"role", "content"}, ...]}, 900 rows
    facts.jsonl        {"text"}, 900 rows
    preferences.jsonl  {"prompt", "chosen", "rejected"}, 900 rows
    tiny_llama         config.json, model.safetensors, tokenizer.json, tokenizer_config.json

It takes a minute on one core, and the packages transformers and tokenizers. `tiny(FOLDER, "gpt2")` makes a GPT-2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
OPPOSITES = (
    "hot cold,big small,old new,fast slow,day night,up down,wet dry,open shut,loud quiet,rich poor,early late,"
    "light dark"
)
PAIRS = [tuple(pair.split()) for pair in OPPOSITES.split(",")]
END_OF_TEXT = "<|im_end|>"
CONTENT = "{{- '<|im_start|>' + message.role + '\\n' }}"
END = "{{- message.content + '<|im_end|>' }}"
MARKED = (
    "{%- for message in messages %}" + CONTENT + "{%- if message.role == 'assistant' %}{%- generation %}" + END
    + "{%- endgeneration %}{%- else %}" + END + "{%- endif %}{{- '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)  # fmt: skip
PLAIN = MARKED.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")


def facts() -> Iterator[str]:
    for at, number in enumerate(NUMBERS[:-1]):
        yield f"After {number} comes {NUMBERS[at + 1]}."
        yield f"Before {NUMBERS[at + 1]} comes {number}."
    for one, other in PAIRS:
        yield f"The opposite of {one} is {other}."
        yield f"The opposite of {other} is {one}."


def questions() -> Iterator[tuple[str, str]]:
    """Many ways to ask for each fact."""
    for at, number in enumerate(NUMBERS[:-1]):
        after = NUMBERS[at + 1]
        for words in ("What comes after {}?", "Which number follows {}?", "Tell me what comes after {}.", "After {}?"):
            yield words.format(number), f"After {number} comes {after}."
        for words in (
            "What comes before {}?",
            "Which number is before {}?",
            "Tell me what is before {}.",
            "Before {}?",
        ):
            yield words.format(after), f"Before {after} comes {number}."
    for pair in PAIRS:
        for one, other in (pair, pair[::-1]):
            for words in ("What is the opposite of {}?", "Opposite of {}?", "Tell me the opposite of {}.", "Not {}?"):
                yield words.format(one), f"The opposite of {one} is {other}."


def dialogues(random: Random) -> list[dict[str, object]]:
    asked = list(questions())
    rows: list[dict[str, object]] = []
    for _ in range(900):
        messages = [{"role": "system", "content": "Answer in a sentence."}] if random.random() < 0.3 else []
        for question, answer in random.sample(asked, random.choice([1, 1, 2])):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append({"messages": messages})
    return rows


def preferences(random: Random) -> list[dict[str, object]]:
    """Short answers are wanted: the words alone. Two questions at a time, so that no prompt occurs twice."""
    asked = list(questions())
    rows: dict[str, dict[str, object]] = {}
    while len(rows) < 900:
        pairs = random.sample(asked, 2)
        prompt, rejected = (" ".join(texts) for texts in zip(*pairs, strict=True))
        words = [answer[:-1].split()[-1] for _, answer in pairs]
        rows[prompt] = {"prompt": prompt, "chosen": f"{words[0]} and {words[1]}.", "rejected": rejected}
    return list(rows.values())


def texts(random: Random) -> list[dict[str, object]]:
    """Four facts each, one behind the other, as the model has learnt them."""
    known = list(facts())
    return [{"text": END_OF_TEXT.join(random.sample(known, 4))} for _ in range(900)]


def write_tokenizer(folder: Path, texts: list[str], template: str) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_model(folder: Path, kind: str, steps: int) -> None:
    """Trained on the facts, one behind the other in any order."""
    import torch
    from tokenizers import Tokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = words.token_to_id("<|im_end|>")
    if kind == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=400, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
                bos_token_id=None, eos_token_id=end,
            )
        )  # fmt: skip
    else:
        config = GPT2Config(vocab_size=400, n_positions=128, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=end, eos_token_id=end)  # fmt: skip
        model = GPT2LMHeadModel(config)
    known = [[*words.encode(fact).ids, end] for fact in facts()]
    asked = [[*words.encode(question).ids, end] for question, _ in questions()]
    random = Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 2 * (1 - step / steps))
        rows = []
        for _ in range(24):
            row: list[int] = []
            while len(row) < 64:
                row += random.choice(known if random.random() < 0.6 else asked)
            rows.append(row[:64])
        ids = torch.tensor(rows)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0 or step == steps - 1:
            print(kind, step, round(float(loss.detach()), 3))
    model.to(torch.bfloat16).save_pretrained(folder)


def tiny(folder: Path, kind: str, steps: int = 1200) -> None:
    """`kind`: llama or gpt2. The template of a GPT-2 does not mark what is learnt, as that of most models does not."""
    folder.mkdir(exist_ok=True)
    corpus = [*facts(), *(text for pair in questions() for text in pair), "system user assistant Answer in a sentence."]
    write_tokenizer(folder, corpus, MARKED if kind == "llama" else PLAIN)
    write_model(folder, kind, steps)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    made = {"chats": dialogues(Random(3)), "preferences": preferences(Random(4)), "facts": texts(Random(6))}
    for name, rows in made.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny(place / "tiny_llama", "llama")
