"""Writes the data of the review recipe next to itself: reviews of two clauses each, and a DistilBERT of the size of a
toy, in the format of transformers, that has read others without their verdicts.

python recipes/data/make_reviews.py [FOLDER]

    reviews.csv        text, verdict (bad, good), stars (1 to 5); 900 rows
    tiny_distilbert    config.json, model.safetensors, tokenizer.json, tokenizer_config.json

It takes a minute on one core, and the packages transformers and tokenizers.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from random import Random

KIND = "lovely,fresh,warm,clean,quick,friendly,bright,tasty,quiet,generous,calm,fair"
UNKIND = "awful,stale,cold,dirty,slow,rude,dark,bland,noisy,stingy,hectic,overpriced"
NAMED = "soup,bread,room,service,terrace,coffee,waiter,menu,table,breakfast,staff,place"
GOOD, BAD, THINGS = (words.split(",") for words in (KIND, UNKIND, NAMED))
CLOSING = {
    "bad": ("Never again.", "We left early.", "Stay away."),
    "good": ("We will come again.", "Go there!", "We felt at home."),
}


def clause(random: Random, verdict: str) -> str:
    own, other = (GOOD, BAD) if verdict == "good" else (BAD, GOOD)
    thing = random.choice(THINGS)
    if random.random() < 0.5:
        return f"the {thing} was {random.choice(['not', 'never', 'far from'])} {random.choice(other)}"
    return f"the {thing} was {random.choice(['', 'very ', 'quite '])}{random.choice(own)}"


def review(random: Random) -> tuple[str, str, int]:
    """Its text, its verdict, and its stars: one more, or less, where something was very much so."""
    verdict = random.choice(["bad", "good"])
    one, two = clause(random, verdict), clause(random, verdict)
    text = f"{one[0].upper()}{one[1:]}{random.choice([' and ', ', ', '; '])}{two}."
    is_strong = "very" in text
    return text, verdict, 4 + is_strong if verdict == "good" else 2 - is_strong


def reviews(random: Random) -> str:
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    rows.writerow(["text", "verdict", "stars"])
    rows.writerows(review(random) for _ in range(900))
    return made.getvalue()


def unlabelled(random: Random, count: int) -> list[str]:
    """Reviews as they stand somewhere, each with a sentence more that says how it was meant."""
    found = (review(random) for _ in range(count))
    return [f"{text} {random.choice(CLOSING[verdict])}" for text, verdict, _ in found]


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_model(folder: Path, texts: list[str], steps: int) -> None:
    """Trained to find hidden words."""
    import torch
    from tokenizers import Tokenizer
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.enable_padding(pad_id=0)
    ids = torch.tensor([each.ids for each in words.encode_batch(texts)])
    size = words.get_vocab_size()
    config = DistilBertConfig(vocab_size=size, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
                              max_position_embeddings=48, dropout=0.0, attention_dropout=0.0)  # fmt: skip
    model = DistilBertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50, 2 * (1 - step / steps))
        rows = ids[torch.randint(len(ids), (64,))]
        rows = rows[:, : int((rows != 0).sum(1).max())]
        hidden = (torch.rand(rows.shape) < 0.2) & (rows > 4)
        shown = rows.masked_fill(hidden & (torch.rand(rows.shape) < 0.9), 4)
        labels = rows.masked_fill(~hidden, -100)
        loss = model(input_ids=shown, attention_mask=rows != 0, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0 or step == steps - 1:
            print("distilbert", step, round(float(loss.detach()), 3))
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (place / "reviews.csv").write_text(reviews(Random(5)))
    (place / "tiny_distilbert").mkdir(exist_ok=True)
    texts = unlabelled(Random(6), 4000)
    write_tokenizer(place / "tiny_distilbert", texts)
    write_model(place / "tiny_distilbert", texts, int(sys.argv[2]) if len(sys.argv) > 2 else 1600)
