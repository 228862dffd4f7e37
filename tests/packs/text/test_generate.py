"""A text model writes: the logits are those of the plain forward, whether or not anything is kept between tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from declarative_train.app.main import main
from declarative_train.inference.trained import Trained, UsageError, open_trained
from declarative_train.packs.text.generation import Sampling, TextModel, choose_token, generate
from declarative_train.packs.text.text_io import find_policy_output
from tests.inference.made_runs import trained

TEXT = "the cow runs, " * 90
RECIPE = """
name: language
data:
  source: {type: text, path: text.txt}
  window: {length: 25, stride: 5}
  fields:
    tokens: {column: tokens, rows: ":-1"}
    next: {column: tokens, rows: "1:"}
  split: {validation: {type: last, fraction: 0.2}}
model:
  graph:
    net: {type: gpt, vocabulary: 256, layers: 2, width: 32, heads: 4, input: tokens}
objective:
  loss: {type: cross_entropy, input: net, target: next}
training: {steps: 100, global_batch_size: 16, optimizer: {type: adamw, lr: 0.003}}
layout: {device: cpu}
logging: {dir: runs}
"""
GPT = "{type: gpt, vocabulary: 256, layers: 2, width: 32, heads: 4, input: tokens}"
OTHERS = {
    "llama": "{type: llama, vocabulary: 256, layers: 2, width: 32, heads: 4, kv_heads: 2, input: tokens}",
    "deepseek": "{type: deepseek, vocabulary: 256, layers: 2, width: 32, heads: 4, query_rank: 8, kv_rank: 12, "
    "plain_width: 6, rotary_width: 4, value_width: 8, experts: 4, top_k: 2, expert_hidden: 16, hidden: 32, "
    "input: tokens}",
    "gemma": "{type: gemma, vocabulary: 256, layers: 2, width: 32, heads: 4, kv_heads: 2, hidden: 64, head_width: 8, "
    "attn_cap: 1.0, logit_cap: 2.0, window: 5, global_every: 2, post_norms: true, qk_norm: true, input: tokens}",
    "recurrent": "logits_of_words",
}


def made(tmp_path: Path, recipe: str, *set_: str) -> Trained:
    (tmp_path / "text.txt").write_text(TEXT)
    return open_trained(trained(tmp_path, recipe, *set_))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return made(tmp_path_factory.mktemp("gpt"), RECIPE)


def plain(model: Trained, tokens: list[int]) -> torch.Tensor:
    """The last logits of the model's own forward over these tokens."""
    network = model.network([model.plan.objective.terms[0].input])
    (found,) = network.module(torch.tensor([tokens]))
    return found[0, -1]


@pytest.mark.parametrize("kind", ["deepseek", "gemma", "gpt", "llama"])
def test_cached_logits_are_those_of_the_plain_forward(kind: str, gpt: Trained, tmp_path: Path) -> None:
    trained_model = gpt
    if kind != "gpt":
        trained_model = made(tmp_path, RECIPE.replace(GPT, OTHERS[kind]), "training.steps=3")
    model = TextModel(trained_model)
    assert (model.reason, model.context, model.vocabulary) == ("", 24, 256)
    text = list(b"the cow runs, the cow runs, and the dog sleeps.")
    model.begin(text[:4])
    for position in range(4, len(text)):
        wanted = plain(trained_model, text[max(0, position - 24) : position])
        torch.testing.assert_close(model.logits, wanted, atol=2e-5, rtol=1e-4)
        model.feed(text[position : position + 1])
    with_all = TextModel(trained_model, cache=False)
    with_all.begin(text[:9])
    torch.testing.assert_close(with_all.logits, plain(trained_model, text[:9]), atol=2e-5, rtol=1e-4)


def test_it_writes_what_it_learned(gpt: Trained) -> None:
    found = "".join(generate(TextModel(gpt), "the cow", 40, Sampling(temperature=0), 0))
    assert found == TEXT[7:47]
    again = "".join(generate(TextModel(gpt, cache=False), "the cow", 40, Sampling(temperature=0), 0))
    assert again == found


def test_the_same_seed_draws_the_same_text(gpt: Trained) -> None:
    model = TextModel(gpt)

    def text(seed: int, number: int = 0, **how: float) -> str:
        return "".join(generate(model, "the ", 60, Sampling(temperature=2.0, **how), seed, number))  # type: ignore[arg-type]

    assert text(1) == text(1)
    assert len({text(1), text(2), text(1, 1)}) == 3
    assert text(1, top_k=1) == text(2, top_k=1) == "".join(generate(model, "the ", 60, Sampling(0), 0))


def test_what_is_drawn_among() -> None:
    logits = torch.tensor([0.1, 3.0, 2.0, -1.0, 2.9])
    generator = torch.Generator().manual_seed(0)

    def seen(sampling: Sampling) -> set[int]:
        return {choose_token(logits, sampling, generator) for _ in range(300)}

    assert seen(Sampling(0)) == {1}
    assert seen(Sampling(1.0, top_k=2)) == {1, 4}
    assert seen(Sampling(1.0, top_p=0.5)) == {1, 4}
    assert seen(Sampling(1.0, top_p=1.0, top_k=3)) == {1, 4, 2}
    assert seen(Sampling(5.0)) == {0, 1, 2, 3, 4}
    draws = torch.bincount(
        torch.tensor([choose_token(logits, Sampling(1.0), generator) for _ in range(4000)]), minlength=5
    )
    torch.testing.assert_close(draws / 4000, logits.softmax(0), atol=0.03, rtol=0)


RECURRENT = RECIPE.replace(
    f"    net: {GPT}\n",
    "    embed: {type: embedding, embedding_dim: 16, input: tokens}\n"
    "    memory: {type: gru, hidden_size: 32}\n"
    "    net: {type: linear, out_features: 256, input: memory}\n",
)


def test_a_model_that_keeps_its_own_memory_is_computed_anew(tmp_path: Path) -> None:
    trained_model = made(tmp_path, RECURRENT, "training.steps=3")
    model = TextModel(trained_model)
    assert model.reason == "`memory` (gru) may mix positions"
    tokens = list(b"the cat")
    model.begin(tokens)
    torch.testing.assert_close(model.logits, plain(trained_model, tokens), atol=1e-5, rtol=1e-4)


def test_the_command(
    gpt: Trained, wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(gpt.run)
    words = ["generate", run, "--prompt", "the cow", "--temperature", "0"]
    assert main([*words, "--max-tokens", "12"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "the cow runs, the c\n"
    assert captured.err == ""
    assert main([*words, "--max-tokens", "30", "--num", "2"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count(TEXT[:37]) == 2
    assert "---" in captured.out
    assert "the model sees 24 tokens; beyond that each token is computed again from the 24 before it" in captured.err

    assert main([*words, "--max-tokens", "12", "--num", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"prompt": "the cow", "text": " runs, the c"}] * 2

    def said(code: int, *words: str) -> str:
        assert main(["generate", *words]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    assert "--prompt is empty" in said(2, run, "--prompt", "")
    assert "was trained on csv and not on text" in said(2, str(wine), "--prompt", "a")
    assert "is not 0 or more" in said(2, run, "--prompt", "a", "--temperature", "-1")
    assert "is not between 0 and 1" in said(2, run, "--prompt", "a", "--top-p", "1.5")
    two_ways = RECIPE.replace(
        f"    net: {GPT}\n",
        "    embed: {type: embedding, embedding_dim: 16, input: tokens}\n"
        "    look: {type: self_attention, heads: 2}\n"
        "    net: {type: linear, out_features: 256, input: look}\n",
    )
    (tmp_path / "text.txt").write_text(TEXT)
    both = trained(tmp_path, two_ways, "training.steps=3")
    assert "sees later tokens" in said(2, str(both), "--prompt", "the")


PUBLISHED = Path(__file__).parents[3] / "recipes" / "data"
CHAT = f"""
name: chat
data:
  source: {{type: jsonl, path: {PUBLISHED}/chats.jsonl}}
  fields:
    chat: {{type: tokens, column: messages, tokenizer: {PUBLISHED}/tiny_llama, length: 33}}
model:
  graph:
    tokens: chat[:, :-1]
    next: chat[:, 1:]
    answers: chat.trained[:, 1:]
    lm: {{type: llama, from: {PUBLISHED}/tiny_llama, input: tokens}}
  weights: {{path: {PUBLISHED}/tiny_llama, format: huggingface}}
objective: {{loss: {{type: cross_entropy, input: lm, target: next, mask: answers}}}}
training: {{steps: 1, global_batch_size: 4, optimizer: {{type: sgd, lr: 1.0e-9}}}}
layout: {{device: cpu}}
logging: {{dir: runs}}
"""
PREFERENCES = f"""
name: preferences
data:
  source: {{type: jsonl, path: {PUBLISHED}/preferences.jsonl}}
  fields:
    chosen: {{type: tokens, column: chosen, prompt: prompt, template: true, tokenizer: {PUBLISHED}/tiny_llama,
             length: 48}}
    rejected: {{type: tokens, column: rejected, prompt: prompt, template: true, tokenizer: {PUBLISHED}/tiny_llama,
               length: 48}}
model:
  blocks:
    log_likelihood:
      inputs: [logits, text, said]
      graph:
        each: gather(log_softmax(logits, dim=-1), unsqueeze(text[:, 1:], -1), dim=-1)
        sum: sum(each[:, :, 0] * float(said[:, 1:]), dim=-1)
      output: sum
  graph:
    good: chosen[:, :-1]
    bad: rejected[:, :-1]
    policy: {{type: llama, from: {PUBLISHED}/tiny_llama, input: good}}
    policy_bad: {{type: reuse, node: policy, input: bad}}
    before: {{type: llama, from: {PUBLISHED}/tiny_llama, input: good}}
    before_bad: {{type: reuse, node: before, input: bad}}
    now_good: {{type: log_likelihood, inputs: [policy, chosen, chosen.trained]}}
    now_bad: {{type: log_likelihood, inputs: [policy_bad, rejected, rejected.trained]}}
    then_good: {{type: log_likelihood, inputs: [before, chosen, chosen.trained]}}
    then_bad: {{type: log_likelihood, inputs: [before_bad, rejected, rejected.trained]}}
    dpo: -log_sigmoid((now_good - then_good) - (now_bad - then_bad))
  weights:
    policy: {{path: {PUBLISHED}/tiny_llama, format: huggingface}}
    before: {{path: {PUBLISHED}/tiny_llama, format: huggingface}}
  parameters:
    before: {{frozen: true}}
objective: {{loss: {{type: mean, input: dpo}}}}
training: {{steps: 1, global_batch_size: 4, optimizer: {{type: sgd, lr: 1.0e-9}}}}
layout: {{device: cpu}}
logging: {{dir: runs}}
"""
LIBRARY = CHAT.replace(
    f"{{type: llama, from: {PUBLISHED}/tiny_llama, input: tokens}}",
    f"{{type: transformers, path: {PUBLISHED}/tiny_llama, input: tokens}}",
).replace(f"  weights: {{path: {PUBLISHED}/tiny_llama, format: huggingface}}\n", "")


@pytest.mark.parametrize("recipe", [CHAT, PREFERENCES, LIBRARY], ids=["chat", "preferences", "library"])
def test_a_published_model_sees_as_many_tokens_as_its_config_says(tmp_path: Path, recipe: str) -> None:
    """Also after preference optimisation, where the policy writes, and no `cross_entropy` is about its logits."""
    from transformers import LlamaForCausalLM

    model = TextModel(open_trained(trained(tmp_path, recipe)))
    assert model.context == 128  # of sequences of 32 or 47
    assert (model.reason == "") is (recipe is not LIBRARY)
    tokens = [number * 7 % 300 for number in range(130)]
    library = LlamaForCausalLM.from_pretrained(str(PUBLISHED / "tiny_llama"), dtype=torch.float32)
    for begin, end in ((0, 20), (0, 100), (2, 130)):
        model.begin(tokens[:end])
        with torch.no_grad():
            wanted = library(torch.tensor([tokens[begin:end]])).logits[0, -1]
        torch.testing.assert_close(model.logits, wanted, atol=1e-4, rtol=1e-4)
    assert model.words.is_chat
    assert model.words.encode_prompt("Who?") == model.words.encode_prompt('[{"role": "user", "content": "Who?"}]')


def test_the_policy_alone_writes(tmp_path: Path) -> None:
    trained_model = open_trained(trained(tmp_path, PREFERENCES))
    found = find_policy_output(trained_model.plan)
    assert found is not None
    assert (found.output, found.field) == ("policy", "chosen")
    both = open_trained(
        trained(tmp_path, PREFERENCES.replace("frozen: true", "lr_scale: 0.5").replace(": pref", ": b"))
    )
    with pytest.raises(UsageError, match="there is not exactly one trained node"):
        TextModel(both)
