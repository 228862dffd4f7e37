"""llama.cpp's converter reads exported folders: the same file as from the folder that transformers wrote.

It is not a package: `LLAMA_CPP` is the folder of a clone (docs/exporting.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declarative_train as dt
from declarative_train.packs.export.export import export
from tests.packs.pretrained import published_models as made

FOLDER = Path(os.environ.get("LLAMA_CPP", ""))
pytestmark = [
    pytest.mark.skipif("LLAMA_CPP" not in os.environ, reason="LLAMA_CPP does not name a clone of llama.cpp"),
    pytest.mark.timeout(300),
]
SPACE = "\u0120"  # as such a tokenizer writes it
CONVERT = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda *_: "default"  # it knows published tokenizers by their hash
sys.argv = [f"{sys.argv[1]}/convert_hf_to_gguf.py", *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def convert(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the fields and tensors of the file that the converter makes of a folder."""
    out = folder.with_suffix(".gguf")
    words = [sys.executable, "-c", CONVERT, str(FOLDER), str(folder), "--outtype", "f32", "--outfile", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    if str(FOLDER / "gguf-py") not in sys.path:
        sys.path.append(str(FOLDER / "gguf-py"))
    reader = import_module("gguf").GGUFReader(out)
    # the others name the folder and count fields
    sizes = {
        name: each.contents() for name, each in reader.fields.items() if not name.startswith(("general.", "GGUF."))
    }
    return sizes, {each.name: np.array(each.data) for each in reader.tensors}


def write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer of single bytes, of which the first is the space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (letter != SPACE, letter))[:size]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, eos_token="!").save_pretrained(folder)


@pytest.mark.parametrize(
    "name", ["deepseek", "gemma3", "gpt_oss", "llama", "llama3", "mistral", "mixtral", "qwen3", "qwen3_moe"]
)
def test_an_export_converts_to_the_file_of_the_published_model(tmp_path: Path, name: str) -> None:
    """One step with a learning rate of 0."""
    _, path = made.write(tmp_path, name, node=", bias_rate: 0.0" if name == "deepseek" else "")
    write_tokenizer(tmp_path / "published", 96)
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    fields, tensors = convert(export(run.trained(), "huggingface", tmp_path / "back").folder)
    wanted_fields, wanted = convert(tmp_path / "published")
    assert fields == wanted_fields
    assert tensors.keys() == wanted.keys()
    assert [name for name in tensors if not np.array_equal(tensors[name], wanted[name])] == []
