"""Training of a byte-pair tokenizer on texts. The result is a file of the library `tokenizers`.

Every byte is a token, so that any text can be encoded and decoded without loss (Sennrich et al., Neural machine
translation of rare words with subword units, 2016; bytes as in GPT-2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.core.machine import install
from declarative_train.packs.text.tokenizer import TokenizerError

END, PAD = "<|endoftext|>", "<|pad|>"
BYTES = 256


def train_tokenizer(texts: Iterable[str], vocabulary: int, special: Sequence[str] = ()) -> str:
    """Train a tokenizer and return the content of its file. Token 0 ends a text, token 1 is padding; then follow the
    tokens `special`. There are at most `vocabulary` tokens, fewer if the texts have no more pairs to merge. Raises
    TokenizerError."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise TokenizerError("a tokenizer is trained by the package tokenizers", install("text")) from None
    names = list(dict.fromkeys([END, PAD, *special]))
    if vocabulary < BYTES + len(names):
        message = f"{vocabulary} tokens are too few: {BYTES} bytes and {len(names)} special tokens come first"
        raise TokenizerError(message, f"ask for {BYTES + len(names)} at least")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=names, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True))
