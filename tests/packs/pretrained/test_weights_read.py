"""How much of a file a rank reads: the pages of it that are in its memory when its start values are written, and the
bytes that are asked of safetensors."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import yaml
from safetensors.torch import save_file

import declarative_train as dt
from declarative_train.engine.step import load_weights
from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import compiled
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.packs.pretrained import library_models, published_encoders, published_models, published_vision

WIDTH, HIDDEN, VOCABULARY, LAYERS = 1024, 3072, 2048, 2
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "text", "path": "story.txt", "tokenizer": "bytes"},
        "window": {"length": 17},
        "fields": {"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}},
    },
    "model": {
        "graph": {
            "lm": {"type": "llama", "vocabulary": VOCABULARY, "layers": LAYERS, "width": WIDTH, "heads": 8}
            | {"kv_heads": 2, "hidden": HIDDEN, "input": "tokens"}
        },
        "weights": {"path": "base", "format": "huggingface"},
        "parameters": {"attn": {"adapter": {"type": "lora", "rank": 4}}},
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "lm", "target": "next"}},
    "training": {"steps": 1, "global_batch_size": 4, "optimizer": {"type": "sgd", "lr": 0.1}},
}
WAYS: dict[str, dict[str, Any]] = {
    "fsdp 4": {"parallelism": "fsdp", "layout": {"device": "cpu", "gpus": 4}},
    "pipeline 2": {
        "parallelism": {"pipeline": {"stages": 2, "schedule": "1f1b", "microbatches": 2}},
        "layout": {"device": "cpu", "gpus": 2},
    },
    "pipeline 2 of fsdp 2": {
        "parallelism": {"data": {"shard": 2}, "pipeline": {"stages": 2, "schedule": "1f1b", "microbatches": 2}},
        "layout": {"device": "cpu", "gpus": 4},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 110 MB, its projections in tensors of their own: large next to what is paged in at a time."""
    found = tmp_path_factory.mktemp("base")
    (found / "story.txt").write_text("a token after another, over and over again. " * 20)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH)}
    shapes["model.norm.weight"] = (WIDTH,)
    for at in range(LAYERS):
        top = f"model.layers.{at}."
        shapes |= {f"{top}self_attn.{each}_proj.weight": (WIDTH, WIDTH) for each in "qo"}
        shapes |= {f"{top}self_attn.{each}_proj.weight": (WIDTH // 4, WIDTH) for each in "kv"}
        shapes |= {f"{top}mlp.{each}_proj.weight": (HIDDEN, WIDTH) for each in ("gate", "up")}
        shapes |= {f"{top}mlp.down_proj.weight": (WIDTH, HIDDEN)}
        shapes |= {f"{top}{each}_layernorm.weight": (WIDTH,) for each in ("input", "post_attention")}
    torch.manual_seed(0)
    (found / "base").mkdir()
    (found / "base" / "config.json").write_text("{}")
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, found / "base" / "model.safetensors")
    return found


def resident_bytes(file: Path) -> int:
    """Of all maps of a file in this process."""
    text = Path("/proc/self/smaps").read_text()
    head = rf"^[0-9a-f]+-[0-9a-f]+ [^\n]*{re.escape(str(file))}\n"
    found = re.findall(rf"{head}(.*?)(?=^[0-9a-f]+-|\Z)", text, re.M | re.S)
    return sum(int(size) << 10 for part in found for size in re.findall(r"^Rss: +(\d+) kB", part, re.M))


def seen(plan: Plan, file: Path) -> tuple[int, int]:
    """(what this rank read of the file, what it holds of its parameters)."""
    write, most = load_weights.write_weights, [0]

    def watched(model: torch.nn.Module, opened: Any) -> None:
        opened = list(opened)
        write(model, opened)
        gc.collect()
        most[0] = max(most[0], resident_bytes(file))

    import declarative_train.engine.step.model_preparation as model_room

    model_room.write_weights = watched
    try:
        with kept_engine(plan) as engine:
            held = [item for name, item in engine.model.named_parameters() if ".lora_" not in name]
            return most[0], sum(getattr(item, "_local_tensor", item).nbytes for item in held)
    finally:
        model_room.write_weights = write


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says what of a file is in memory")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", ["fsdp 4", *(pytest.param(each, marks=pytest.mark.long) for each in [*WAYS][1:])])
def test_a_rank_reads_what_it_holds(folder: Path, way: str) -> None:
    """At most a tenth more: joined projections, sharded by rows across them, and stages."""
    plan = compiled(folder, RECIPE | WAYS[way])
    file = folder / "base" / "model.safetensors"
    found = on_ranks(plan, seen, plan, file)
    assert sum(held for _, held in found) == pytest.approx(file.stat().st_size, rel=0.01)
    assert all(0.9 * held < read < 1.1 * held for read, held in found), found


def packed_share(plan: Plan, file: Path) -> tuple[int, int, int, bool]:
    """(what this rank read, the bytes of its parameters, what they take in the file, whether its first rows are those
    of the file, packed)."""
    from safetensors.torch import load_file

    from declarative_train.components.layers.modules.packed import find_packed, pack
    from declarative_train.graph.initialise import local_rows

    read, held = seen(plan, file)
    with kept_engine(plan) as engine:
        packed, in_file = find_packed(engine.model), 0
        for name, item in engine.model.named_parameters():
            local = getattr(item, "_local_tensor", item)
            in_file += 4 * len(local) * packed[name].columns if name in packed else local.nbytes
        rows = local_rows(engine.model.get_parameter("lm.embed.weight"))
        assert rows is not None
        table = load_file(file)["model.embed_tokens.weight"][rows.first : rows.first + len(rows.values)]
        return read, held, in_file, torch.equal(pack(table, "nf4"), rows.values)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says what of a file is in memory")
@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_rank_packs_what_it_reads(folder: Path) -> None:
    """Joined projections too; a rank reads its rows alone, and holds less than a seventh of them."""
    recipe = json.loads(json.dumps(RECIPE)) | WAYS["fsdp 4"]
    recipe["model"]["parameters"] = {"lm": {"storage": "nf4"}} | recipe["model"]["parameters"]
    plan = compiled(folder, recipe)
    file = folder / "base" / "model.safetensors"
    for read, held, in_file, is_packed in on_ranks(plan, packed_share, plan, file):
        assert 0.9 * in_file < read < 1.1 * in_file
        assert held < in_file / 7
        assert is_packed


class Counted:
    """What safetensors opens, and how many bytes of tensors are taken out of it, in this process."""

    num_bytes = 0

    def __init__(self, *words: Any, **keys: Any) -> None:
        self._file: Any = OPEN(*words, **keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.__exit__(*reason)

    def get_tensor(self, name: str) -> torch.Tensor:
        return noted(self._file.get_tensor(name))

    def get_slice(self, name: str) -> Sliced:
        return Sliced(self._file.get_slice(name))


class Sliced:
    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return noted(self._part[index])


def noted(tensor: torch.Tensor) -> torch.Tensor:
    Counted.num_bytes += tensor.nbytes
    return tensor


def library(folder: Path, name: str) -> tuple[Any, Path]:
    """A node of transformers with tied embeddings, from shards."""
    library_models.write_data(folder)
    model = library_models.publish("qwen3", folder / "published", max_shard_size="20KB")
    node = {"type": "transformers", "path": "published", "input": "tokens"}
    path = folder / "recipe.yaml"
    text = yaml.safe_dump(library_models.recipe(node, "next"), sort_keys=False)
    path.write_text(re.sub(r"layout:.*?(?=^\w|\Z)", "layout: {device: cpu}\n", text, flags=re.M | re.S))
    return model, path


OPEN = safetensors.safe_open
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (published_models.write, {"max_shard_size": "20KB"}),  # queries, keys and values are one map here
    "gpt2": (published_models.write, {}),  # its maps stand transposed in the file, its head is its embedding
    "BertForSequenceClassification": (published_encoders.write, {}),
    "timm_resnet": (published_vision.write, {"node": ", over: 2 samples"}),
    "transformers": (library, {}),
}
MODES = {
    "fsdp 2": "parallelism: fsdp",
    "fsdp 4": "parallelism: fsdp",
    "pipeline 2": "parallelism: {pipeline: {stages: 2, microbatches: 2}}",
}
QUICK = {("gpt2", "fsdp 4")}


def asked(plan: Plan) -> tuple[int, int]:
    """(bytes that this rank took out of the files, those of what it holds)."""
    safetensors.safe_open = Counted  # type: ignore[misc]
    Counted.num_bytes = 0
    with kept_engine(plan) as engine:
        items = {id(item): item for _, item in engine.model.named_parameters()}
        items |= {id(item): item for name, item in engine.model.named_buffers() if "running" in name}
        return Counted.num_bytes, sum(getattr(item, "_local_tensor", item).nbytes for item in items.values())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=() if (name, mode) in QUICK else pytest.mark.long)
        for name in MODELS
        for mode in MODES
        if (name, mode) != ("transformers", "pipeline 2")  # which cannot cut it
    ],
)
def test_a_rank_asks_for_what_it_holds(tmp_path: Path, name: str, mode: str) -> None:
    """Joined, transposed, in shards, of convolutions, tied: a rank takes its share of a file, at most a tenth more."""
    write, told = MODELS[name]
    _, path = write(tmp_path, name, **told)
    gpus = f"{{device: cpu, gpus: {mode.split()[1]}}}"
    path.write_text(path.read_text().replace("{device: cpu}", gpus) + MODES[mode] + "\n")
    plan = dt.load(path).plan().plan
    found = on_ranks(plan, asked, plan)
    assert len(found) == int(mode.split()[1])
    for rank, (read, held) in enumerate(found):
        assert 0 < read <= 1.1 * held, (rank, read, held)
