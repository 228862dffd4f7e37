"""Packed texts: where each piece stands follows from lengths alone, and tokens are made once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.data import BadValueError
from declarative_train.data import shared_sets
from declarative_train.data.prepared_set import prepare
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.files.paths import SourceError
from declarative_train.packs.text import cache
from declarative_train.packs.text.packing import Packing, PackMode, pack
from declarative_train.packs.text.text_files import TextDataset
from declarative_train.packs.text.token_tables import PackedRows
from declarative_train.packs.text.tokenizer import tokenizer
from tests.data.conftest import Described

WAYS: tuple[PackMode, ...] = ("best_fit", "sequential")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dtrain" / "tokens"


def sizes_of(kind: str) -> np.ndarray:
    draw = np.random.default_rng(1)
    return {
        "short": draw.integers(0, 50, 700),
        "long": draw.integers(1, 3000, 500),
        "like texts": draw.lognormal(4.5, 1, 4000).astype(np.int64),
        "equal": np.full(40, 16),
        "whole": np.full(9, 64),
        "one": np.array([200]),
        "empty": np.array([0, 0]),
        "none": np.array([], np.int64),
    }[kind]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["short", "long", "like texts", "equal", "whole", "one", "empty", "none"])
def test_every_token_of_every_text_stands_in_one_place(kind: str, way: Any) -> None:
    sizes, length = sizes_of(kind), 64
    found = pack(sizes, length, way)
    counts = np.zeros(len(sizes), np.int64)
    np.add.at(counts, found.texts, found.lengths)
    assert counts.tolist() == sizes.tolist()
    assert (found.lengths > 0).all()
    assert found.begins[-1] == len(found.texts)
    for sample in range(found.num_samples):
        assert 0 < found.lengths[found.begins[sample] : found.begins[sample + 1]].sum() <= length
    order = np.lexsort((found.offsets, found.texts))
    ends, last = (found.offsets + found.lengths)[order], found.texts[order]
    begins = found.offsets[order]
    goes_on = np.concatenate([[False], last[1:] == last[:-1]])[: len(last)]
    assert (begins[~goes_on] == 0).all()
    assert (begins[goes_on] == np.roll(ends, 1)[goes_on]).all()
    again = pack(sizes, length, way)
    assert all((a == b).all() for a, b in zip(found[1:], again[1:], strict=True))


def test_packed_samples_are_full() -> None:
    for way in WAYS:
        assert pack(sizes_of("like texts"), 512, way).fill > 0.95
    assert pack(np.full(40, 16), 64, "best_fit").num_samples == 10


def test_only_texts_longer_than_a_sample_are_cut_by_fit() -> None:
    sizes = sizes_of("like texts")
    found = pack(sizes, 256, "best_fit")
    pieces = np.bincount(found.texts, minlength=len(sizes))
    assert pieces.tolist() == (-(-sizes // 256)).tolist()


def test_best_fit_is_that_of_the_plain_algorithm() -> None:
    """Longest first, each where the least room is left, as one would write it down."""
    draw = np.random.default_rng(2)
    for _ in range(20):
        sizes = draw.integers(1, 33, 60)
        rooms: list[int] = []
        for size in sorted(sizes.tolist(), reverse=True):
            fits = [(room, at) for at, room in enumerate(rooms) if room >= size]
            if fits:
                rooms[min(fits)[1]] -= size
            else:
                rooms.append(32 - size)
        found = pack(sizes, 32, "best_fit")
        used = np.add.reduceat(found.lengths, found.begins[:-1])
        assert sorted((32 - used).tolist()) == sorted(rooms)


# -- sets


def rows(folder: Path, num_texts: int = 60) -> tuple[str, list[str]]:
    draw = np.random.default_rng(3)
    texts = ["".join(map(chr, draw.integers(97, 123, size))) for size in draw.integers(0, 40, num_texts)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path), texts


def packed(path: str, spec: Callable[..., DataSpec], **keys: Any) -> DataSpec:
    made = {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 32, "pack": "best_fit"} | keys
    return spec(source={"type": "jsonl", "path": path}, fields={"text": made}, split={"validation": 0.25})


def pieces_in(batch: dict[str, Any]) -> list[str]:
    found = []
    for tokens, segments in zip(batch["text"].numpy(), batch["text.segments"].numpy(), strict=True):
        found += [bytes(tokens[segments == each].tolist()).decode() for each in range(1, segments.max() + 1)]
    return found


@pytest.mark.parametrize("pack_", [*WAYS, None])
def test_a_row_without_a_text_is_left_out_where_that_is_asked_for(
    tmp_path: Path, look: Callable[..., Described], pack_: str | None
) -> None:
    path = tmp_path / "rows.jsonl"
    texts = ["abc", None, "defg", "hi", None, "jklmn", "op", "q"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    field = {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 8, "pack": pack_}
    keys: dict[str, Any] = {
        "source": {"type": "jsonl", "path": str(path)},
        "fields": {"text": {key: value for key, value in field.items() if value is not None}},
    }
    for _ in range(2):  # what was made for the one is not taken for the other
        assert [each.code for each in look(**keys)[1]] == ["D007"]
        shared_sets._latest.clear()
        found, (told,) = look(on_bad_row="skip", **keys)
        assert found is not None
        assert (told.code, told.message.split(":")[0]) == ("D024", "2 rows skipped")
        made = prepare_sets(found)["training"]
        letters = made.gather(np.arange(made.num_samples))["text"]
        assert sorted(map(chr, letters[letters > 0].tolist())) == list("abcdefghijklmnopq")
        assert pack_ is not None or made.num_samples == 6
        shared_sets._latest.clear()


@pytest.mark.parametrize("way", WAYS)
def test_each_set_holds_its_texts_once(tmp_path: Path, spec: Callable[..., DataSpec], way: str) -> None:
    path, texts = rows(tmp_path)
    found = packed(path, spec, pack=way)
    sets = open_sets(found)
    letters = ["".join(sorted("".join(pieces_in(each.gather(np.arange(each.num_samples)))))) for each in sets.values()]
    assert sorted("".join(letters)) == sorted("".join(texts))
    if way == "best_fit":
        whole = [piece for each in sets.values() for piece in pieces_in(each.gather(np.arange(each.num_samples)))]
        assert sorted(text for text in texts if 0 < len(text) <= 32) == sorted(
            piece for piece in whole if piece in texts and len(piece) <= 32
        )
    batch = sets["training"].gather(np.arange(4))
    segments, trained = batch["text.segments"].numpy(), batch["text.trained"].numpy()
    first = np.ones(segments.shape, bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    assert (trained == (segments > 0) & ~first).all()
    assert (batch["text.mask"].numpy() == (segments > 0)).all()
    positions = batch["text.positions"].numpy()
    assert (positions[first] == 0).all()
    assert (positions[:, 1:][~first[:, 1:]] == positions[:, :-1][~first[:, 1:]] + 1).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_packed_samples_is_the_same_on_every_layout(
    tmp_path: Path, spec: Callable[..., DataSpec], workers: int
) -> None:
    path, _ = rows(tmp_path)
    found = packed(path, spec)
    size = found.set("training").num_samples
    seen = []
    for ranks in (1, 2, 4):
        batch = BatchSpec(8, ranks, 1, 8 // ranks, 1, -(-size // 8))
        samples = [
            TrainingBatches(found, batch, rank, open_sets(found)).sample_indices(3, np.arange(size))
            for rank in range(ranks)
        ]
        assert all((each == samples[0]).all() for each in samples)
        seen.append(samples[0].tolist())
    assert sorted(seen[0]) == list(range(size))
    assert seen[0] == seen[1] == seen[2]


def test_a_set_that_is_not_held_gives_the_same(tmp_path: Path, spec: Callable[..., DataSpec]) -> None:
    path, _ = rows(tmp_path)
    held = prepare_sets(packed(path, spec))["training"]
    assert held.held is not None
    assert isinstance(held.table, PackedRows)
    read = prepare("training", held.table, held.rows, None, held.readers, hold_bytes=0)
    assert read.held is None
    order = np.random.default_rng(0).permutation(held.num_samples)
    one, other = held.gather(order), read.gather(order)
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize(
    ("fields", "window", "message"),
    [
        ({"n": {"column": "n"}}, None, "`n` is a value of one row"),
        ({}, {"length": 2}, "`window` needs consecutive rows"),
    ],
)
def test_a_packed_field_stands_alone(
    tmp_path: Path, look: Callable[..., Described], fields: dict[str, Any], window: object, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one", "n": 1}\n{"text": "two", "n": 2}\n' * 4)
    made = {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 8, "pack": "sequential"}
    keys = {} if window is None else {"window": window}
    source = {"type": "jsonl", "path": str(path)}
    found, diagnostics = look(source=source, fields={"text": made} | fields, **keys)
    assert found is None
    (problem,) = diagnostics
    assert message in problem.message
    assert problem.span.path == "data.fields.text.pack"


# -- the cache


def work(texts: list[str | None], about: object = "x", **keys: Any) -> cache.EncodingJob:
    def encode(text: str | None, row: int) -> cache.Encoded:
        if text is None:
            raise BadValueError("missing", "text", "`text` misses a text", row=row, help="write one")
        return cache.Encoded(list(text.encode()), unread=("name",) if row % 700 == 300 else ())

    return cache.EncodingJob(len(texts), lambda start, stop: texts[start:stop], encode, 256, about=about, **keys)


TEXTS: list[str | None] = [f"text number {number} " * (number % 5) for number in range(2000)]


def text_of(found: cache.Tokens, number: int) -> str:
    return found.tokens[found.starts[number] : found.starts[number + 1]].tobytes()[::2].decode()


def test_tokens_are_made_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.make_tokens(work(TEXTS))
    assert [text_of(first, number) for number in range(len(TEXTS))] == TEXTS
    assert first.tokens.dtype == np.uint16
    assert sorted(os.listdir(first.folder)) == ["about.json", "starts.npy", "tokens"]
    monkeypatch.setattr(cache, "_write", pytest.fail)
    again = cache.make_tokens(work(TEXTS))
    assert (again.folder, again.unread) == (first.folder, first.unread)
    assert (again.tokens == first.tokens).all()


def test_several_processes_make_the_same(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_num_processes", lambda *_: 1)
    one = cache.make_tokens(work(TEXTS, "one"))
    monkeypatch.setattr(cache, "_num_processes", lambda *_: 3)
    three = cache.make_tokens(work(TEXTS, "three"))
    assert (one.starts == three.starts).all()
    assert (one.tokens == three.tokens).all()
    assert one.unread == three.unread == {"name": (3, 300)}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_text_comes_back_with_its_row(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(cache, "_num_processes", lambda *_: processes)
    texts = [*TEXTS]
    texts[1234] = None
    with pytest.raises(BadValueError, match="misses a text") as caught:
        cache.make_tokens(work(texts))
    assert (caught.value.row, caught.value.help, caught.value.column) == (1234, "write one", "text")


def test_a_stopped_making_goes_on_where_it_was(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_num_processes", lambda *_: 1)
    seen: list[int] = []

    def encode(text: Any, row: int) -> cache.Encoded:
        seen.append(row)
        if row == 1500 and len(seen) == 1501:
            raise KeyboardInterrupt
        return cache.Encoded(list(text.encode()))

    stopped = work(TEXTS)._replace(encode=encode)
    with pytest.raises(KeyboardInterrupt):
        cache.make_tokens(stopped)
    found = cache.make_tokens(stopped)
    assert [text_of(found, number) for number in range(len(TEXTS))] == TEXTS
    assert len(seen) < 1501 + 1000
    assert not [name for name in os.listdir(own_cache) if name.endswith(".making")]


def test_a_process_that_is_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_num_processes", lambda *_: 2)
    parent = os.getpid()

    def encode(text: Any, row: int) -> cache.Encoded:
        if row == 900 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return cache.Encoded(list(text.encode()))

    with pytest.raises(SourceError, match="was killed"):
        cache.make_tokens(work(TEXTS)._replace(encode=encode))


@pytest.mark.parametrize("name", ["about.json", "starts.npy", "tokens"])
def test_what_is_not_whole_is_made_again(own_cache: Path, name: str) -> None:
    first = cache.make_tokens(work(TEXTS))
    folder = first.folder
    whole = (Path(folder) / name).read_bytes()
    del first
    (Path(folder) / name).write_bytes(whole[: len(whole) // 2])
    again = cache.make_tokens(work(TEXTS))
    assert [text_of(again, number) for number in range(len(TEXTS))] == TEXTS


def test_without_a_place_for_it_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "relative")
    found = cache.make_tokens(work(TEXTS))
    assert found.folder == ""
    assert text_of(found, 7) == TEXTS[7]
    assert not list(tmp_path.iterdir())


def test_another_text_of_the_same_size_has_other_tokens(tmp_path: Path, spec: Callable[..., DataSpec]) -> None:
    path, _ = rows(tmp_path, 5)
    before = pieces_in(open_sets(packed(path, spec))["training"].gather(np.arange(1)))
    content = Path(path).read_text()
    state = os.stat(path)
    Path(path).write_text(content.swapcase().replace("TEXT", "text"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = pieces_in(open_sets(packed(path, spec))["training"].gather(np.arange(1)))
    assert after == [each.swapcase() for each in before]


# -- files of text


def test_files_and_lines_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\n\n  \nsecond line\r\nna\u00efve")
    (tmp_path / "b.txt").write_text("")
    whole = TextDataset(path=str(tmp_path / "*.txt"), documents="file").open()
    assert whole.read(["text"], slice(0, 2))["text"].tolist() == [(tmp_path / "a.txt").read_bytes().decode(), ""]
    assert whole.place(0).endswith("a.txt")
    lines = TextDataset(path=str(tmp_path / "*.txt"), documents="line").open()
    assert lines.read(["text"], slice(0, lines.num_rows))["text"].tolist() == ["first", "second line", "na\u00efve"]
    assert lines.read(["text", "path"], np.array([2, 0]))["text"].tolist() == ["na\u00efve", "first"]
    assert lines.place(1).startswith("line 4 of ")
    (tmp_path / "c.txt").write_bytes(b"good\nb\xe4d")
    with pytest.raises(SourceError, match="is not UTF-8: line 2 has the byte 0xe4"):
        TextDataset(path=str(tmp_path / "c.txt"), documents="file").open().read(["text"], slice(0, 1))


def test_a_stream_of_tokens_is_that_of_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|endoftext|>"])
    made.train_from_iterator(
        ["the cat and the hat " * 9],
        library.trainers.BpeTrainer(
            vocab_size=290,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.save(str(tmp_path / "t.json"))
    texts = {"a.txt": "the cat\nand the hat\n", "b.txt": "", "c.txt": "that hat"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    table = TextDataset(path=str(tmp_path / "*.txt"), tokenizer=str(tmp_path / "t.json"), eos=True).open()
    wanted = [token for text in texts.values() for token in [*made.encode(text).ids, 0]]
    assert table.read(["tokens"], slice(0, table.num_rows))["tokens"].tolist() == wanted
    assert table.columns["tokens"].num_values == tokenizer(str(tmp_path / "t.json")).num_tokens
    starts = np.array([3, 0, 5])
    runs = table.read_runs(["tokens"], starts, 4)["tokens"]
    assert runs.tolist() == [wanted[start : start + 4] for start in starts]
    assert table.place(len(wanted) - 1).endswith("c.txt")


def test_windows_that_are_not_held_read_runs(tmp_path: Path, spec: Callable[..., DataSpec]) -> None:
    """The same bytes as one row number after the other, over the ends of files, too."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(bytes(range(number * 40, number * 40 + 37)))
    found = spec(
        source={"type": "text", "path": str(tmp_path / "*.txt")},
        window={"length": 9, "stride": 4},
        fields={"past": {"column": "tokens", "rows": ":-1"}, "last": {"column": "tokens", "rows": -1}},
        split={"validation": {"type": "last", "fraction": 0.3}},
    )
    for each in prepare_sets(found).values():
        read = prepare(each.name, each.table, each.rows, each.windows, each.readers, hold_bytes=0)
        assert read.held is None
        order = np.random.default_rng(0).permutation(each.num_samples)
        one, other = each.gather(order), read.gather(order)
        assert all((one[name] == other[name]).all() and one[name].dtype == other[name].dtype for name in one)


def test_a_packing_says_how_full_it_is() -> None:
    assert Packing(4, np.array([0, 1, 2]), np.zeros(2, int), np.zeros(2, int), np.array([4, 2])).fill == 0.75
