"""Published encoders taken in: what transformers computes, past the padding; heads that a file has, lacks, or has not
whole; and given back to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import declarative_train as dt
from declarative_train.packs.export.export import export
from declarative_train.plan.tensor_maps import parts_in
from tests.packs.pretrained import published_encoders as made

QUICK = ("BertForMaskedLM", "BertForSequenceClassification", "RobertaForMaskedLM", "RobertaForSequenceClassification")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in made.CLASSES]


def batch(padding: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, where they are none of the padding, and their types."""
    ids = torch.randint(5, 90, (4, made.TOKENS), generator=torch.Generator().manual_seed(1))
    ids[1, 7:] = ids[3, 1:] = padding
    types = (torch.arange(made.TOKENS) > 5).long().expand(4, -1)
    return ids, ids != padding, types


def theirs_of(model: Any, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None) -> torch.Tensor:
    """What the head gives: pooled states of a model without another one, where it pools."""
    told = {} if types is None else {"token_type_ids": types}
    found = model(ids, attention_mask=mask.long(), **told)
    return found["logits"] if "logits" in found else found.get("pooler_output", found["last_hidden_state"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ALL)
def test_outputs_and_gradients_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs, path = made.write(tmp_path, name)
    plan = dt.load(path).plan()
    ours = plan.module().eval().get_submodule("lm")
    ids, mask, types = batch(theirs.config.pad_token_id)
    typed = types if getattr(theirs.config, "type_vocab_size", 0) > 1 else None
    wanted = theirs_of(theirs, ids, mask, typed)
    found, hidden = ours(ids, mask, *(() if typed is None else (typed,)))
    assert hidden.shape == (4, made.TOKENS, 32)
    read = mask[:, :, None] if wanted.dim() == 3 else torch.ones_like(wanted[:, :1], dtype=torch.bool)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2)) * read  # no loss reads padding
    torch.testing.assert_close(found * read, wanted * read, rtol=1e-5, atol=1e-5)
    (wanted * weight).sum().backward()
    (found * weight).sum().backward()
    tensors, held = plan.plan.weights[0].tensors, dict(theirs.named_parameters(remove_duplicate=False))
    for parameter, mine in ours.named_parameters():
        graded = [held[part.name].grad for part in parts_in(tensors, parameter, held)]
        gradient = torch.cat(graded)
        scale = max(gradient.abs().max().item(), 1e-3)
        torch.testing.assert_close(mine.grad / scale, gradient / scale, rtol=1e-5, atol=1e-5, msg=parameter)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ALL)
def test_an_untouched_encoder_is_given_back_to_the_bit(tmp_path: Path, name: str) -> None:
    import transformers

    theirs, path = made.write(tmp_path, name)
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    before = json.loads((tmp_path / "published" / "config.json").read_text())
    assert json.loads((folder / "config.json").read_text()) == before
    kind: Any = getattr(transformers, name)
    back, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted = theirs.state_dict()
    assert all(torch.equal(value, wanted[key]) for key, value in back.state_dict().items())


def told(path: Path) -> list[tuple[str, str, str]]:
    return [(each.code, each.message, each.help or "") for each in dt.load(path).lint()]


def test_a_new_head_is_drawn_and_counted(tmp_path: Path) -> None:
    """On a model without one, and on one with another; the trunk is the file's, and the export reads in both."""
    from transformers import AutoModelForSequenceClassification

    for name in ("BertModel", "BertForMaskedLM", "RobertaForMaskedLM"):
        theirs, path = made.write(tmp_path, name, node=", head: sequence, out_features: 4")
        found = told(path)
        pools = name == "BertModel"  # then the pooler is there
        count, numbers = (2, 32 * 4 + 4) if pools else (4, 32 * 32 + 32 + 32 * 4 + 4)
        (one,) = [message for code, message, _ in found if code == "U110"]
        assert f"{count} parameters ({numbers:,} numbers) start from random numbers: " in one
        plan = dt.load(path).plan()
        assert len(plan.plan.weights[0].drawn) == count
        module = plan.module()
        trunk = theirs if name == "BertModel" else getattr(theirs, theirs.base_model_prefix)
        embedded = module.get_parameter("lm.embed.weight")
        assert torch.equal(embedded, trunk.embeddings.word_embeddings.weight)
        assert 0.01 < module.get_parameter("lm.logits.weight").std() < 0.03
        assert not module.get_parameter("lm.logits.bias").any()
    run = dt.load(path).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    back = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert back.config.num_labels == 4
    ids, mask, types = batch(1)
    ours = run.module().eval().get_submodule("lm")
    wanted = back(ids, attention_mask=mask.long(), token_type_ids=types).logits
    torch.testing.assert_close(ours(ids, mask, types)[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_head_of_another_size_is_refused_or_dropped(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "BertForSequenceClassification", node=", out_features: 7")
    ((code, message, hint),) = told(path)
    assert code == "U106"
    assert "classifier.weight (3, 32) cannot fill `logits.weight` (7, 32)" in message
    assert "exclude: [logits]" in hint
    before = path.read_text()
    path.write_text(before.replace("huggingface", 'huggingface, rename: {"classifier.": drop}'))
    ((code, message, _),) = told(path)
    assert (code, "2 parameters (231 numbers)" in message) == ("U110", True)
    path.write_text(before.replace("huggingface", "huggingface, exclude: [logits]"))
    assert told(path) == []  # who excludes it knows


def test_an_idle_rename_is_told_beside_a_format_too(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "BertModel")
    path.write_text(path.read_text().replace("huggingface", 'huggingface, rename: {"clasifier.": drop}'))
    ((code, message, _),) = told(path)
    assert (code, "clasifier." in message) == ("U107", True)


def rewrite(folder: Path, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "published" / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_half_a_head_and_strange_names_are_errors(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "BertForSequenceClassification")
    rewrite(tmp_path, lambda tensors: {name: item for name, item in tensors.items() if name != "classifier.bias"})
    ((code, message, _),) = told(path)
    assert (code, "missing in the files: classifier.bias" in message) == ("U106", True)
    made.make("BertForQuestionAnswering", tmp_path / "published")
    ((code, message, hint),) = told(path)
    assert (code, "unexpected in the files: qa_outputs." in message) == ("U106", True)
    assert 'rename: {"qa_outputs.": drop}' in hint


def test_files_of_old_read_as_those_of_today(tmp_path: Path) -> None:
    """As bert-base-uncased is: of BertForPreTraining, with norms of gamma and beta, and the decoder next to what it is
    tied to."""
    theirs, path = made.write(tmp_path, "BertForPreTraining")

    def aged(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): item
            for name, item in tensors.items()
        }
        embedded = tensors["bert.embeddings.word_embeddings.weight"].clone()
        old |= {"cls.predictions.decoder.weight": embedded, "bert.embeddings.position_ids": torch.arange(20.0)[None]}
        return old

    rewrite(tmp_path, aged)
    assert told(path) == []
    ids, mask, types = batch(0)
    ours = dt.load(path).plan().module().eval().get_submodule("lm")
    wanted = theirs(ids, attention_mask=mask.long(), token_type_ids=types).prediction_logits
    torch.testing.assert_close(
        ours(ids, mask, types)[0] * mask[:, :, None], wanted * mask[:, :, None], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_decoder": True}, "its `is_decoder` is true, which is not supported"),
        ({"position_embedding_type": "relative_key"}, "its `position_embedding_type` is relative_key"),
        ({"tie_word_embeddings": False}, "its `tie_word_embeddings` is false"),
        ({"hidden_act": "mish"}, "its `hidden_act` is `mish`"),
    ],
)
def test_what_the_block_is_not_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    _, path = made.write(tmp_path, "BertForMaskedLM")
    place = tmp_path / "published" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    assert words in told(path)[0][1]


def test_roberta_takes_no_more_tokens_than_it_has_positions(tmp_path: Path) -> None:
    """The first ones are below its padding: 12 tokens need 14."""
    _, path = made.write(tmp_path, "RobertaForMaskedLM", max_position_embeddings=13)
    (tmp_path / "story.txt").write_text("unpadded" * 20)
    ((_, message, _),) = told(path)
    assert "`positions` go up to 13, and 13 positions can be learnt" in message
