"""Fields and transforms of plugins: what they declare is known without their code, and held against what they make."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from declarative_train.components.counter_rng import Drawn, key_of
from declarative_train.components.data import BadValueError, Column, Field
from declarative_train.components.plugin_components import find_plugin_component, read_plugin_components
from declarative_train.components.plugin_layer import read_random_states
from declarative_train.components.transform import Transform
from declarative_train.core.tensor_spec import TensorSpec
from tests.components.test_plugged import found_in

HEAD = """\
import random as pythons
import numpy as np
import torch
from PIL import Image
from declarative_train.plugins import Field, Transform
"""
DECODE = "    def decode(self, a): "
APPLY = "    def apply(self, picture): "


def component(folder: Path, text: str, word: str, *, may_import: bool = True, **settings: Any) -> Any:
    path = folder / f"p{len(list(folder.iterdir()))}.py"
    path.write_text(HEAD + text)
    (name,) = found_in(HEAD + text, str(path))[word]
    kind = (
        find_plugin_component(word, str(path), name)
        if may_import
        else found_in(HEAD + text, str(path))[word][name].component
    )
    assert kind is not None
    return kind.from_data({"type": name, **settings})


def field(folder: Path, text: str, *, may_import: bool = True, **settings: Any) -> Field:
    found = component(folder, text, "field", may_import=may_import, **settings)
    assert isinstance(found, Field)
    return found


def transform(folder: Path, text: str, *, may_import: bool = True, **settings: Any) -> Transform:
    found = component(folder, text, "transform", may_import=may_import, **settings)
    assert isinstance(found, Transform)
    return found


A = Column("a", "float64")


@pytest.mark.parametrize(
    ("text", "line", "words", "help"),
    [
        ("class A(Field): ...\n", 1, "the field `A` has no `decode` or `decode_rows`", "def decode"),
        ("class A(Field):\n    def decode(self): ...\n", 2, "takes 0 arguments", "self, value"),
        ("class A(Field):\n    dtype = 'float'\n" + DECODE + "...\n", 2, "`dtype` is 'float'", "float32"),
        ("class A(Field):\n    shape = 3\n" + DECODE + "...\n", 2, "`shape` is not a shape", "a tuple"),
        ("class A(Field):\n    shape = (3, 0)\n" + DECODE + "...\n", 2, "`shape` is not a shape", "1 or more"),
        ("class A(Field):\n    shape = ('bins',)\n" + DECODE + "...\n", 2, "`shape` is not a shape", "argument"),
        ("class A(Field):\n    num_values = 'n'\n" + DECODE + "...\n", 2, "`num_values` is not a size", "a number"),
        ("class A(Field):\n    takes_text = 1\n" + DECODE + "...\n", 2, "`takes_text` is true or false", ""),
        ("class A(Field):\n    def __init__(self, column): ...\n" + DECODE + "...\n", 2, "an argument of", ""),
        ("class A(Transform): ...\n", 1, "the transform `A` has no `apply`", "picture, random"),
        ("class A(Transform):\n    size = 3\n" + APPLY + "...\n", 2, "`size` is not valid", "(height, width)"),
        ("class A(Transform):\n    size = ('h', 'w')\n" + APPLY + "...\n", 2, "`size` is not valid", "arguments"),
        ("class A(Transform):\n    interval = (0,)\n" + APPLY + "...\n", 2, "`interval` is not valid", "greatest"),
        ("class A(Transform):\n    is_random = 'no'\n" + APPLY + "...\n", 2, "`is_random` is true or false", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(text: str, line: int, words: str, help: str) -> None:
    _, problems = read_plugin_components("/nowhere/p.py", HEAD + text, may_import=False)
    assert [each.line for each in problems] == [line + HEAD.count("\n")], problems
    assert words in problems[0].message
    assert help in (problems[0].help or "")


SPECTRUM = """class Spectrum(Field):
    shape = (2, "bins")
    def __init__(self, bins: int = 4): self.bins = bins
    def decode(self, wave, gain):
        return np.stack([np.resize(wave, self.bins), np.full(self.bins, gain)]).astype(np.float32)
"""


def test_a_field_is_known_without_its_code(tmp_path: Path) -> None:
    made = field(tmp_path, "raise RuntimeError('it ran')\n" + SPECTRUM, may_import=False, columns=["w", "g"], bins=3)
    columns = [Column("w", "float32", (6,)), Column("g", "float64")]
    assert made.wanted == ("w", "g")
    assert made.check(columns) is None
    assert made.row_spec(columns, {}) == TensorSpec((2, 3))
    shape_error = made.check(columns[:1])
    assert shape_error is not None
    assert shape_error.message == "`decode` of `spectrum` takes 2 columns, and it has 1"
    assert made.meaning == ("bins",)
    with pytest.raises(ValueError, match="`bins` is 0, and the size of a tensor"):
        field(tmp_path, SPECTRUM, columns=["w", "g"], bins=0)
    with pytest.raises(ValueError, match="name its `column` or `columns`"):
        field(tmp_path, SPECTRUM)


def test_a_field_decodes_row_by_row_and_rows_at_once(tmp_path: Path) -> None:
    columns = [Column("w", "float32", (6,)), Column("g", "float64")]
    waves, gains = np.arange(12, dtype=np.float32).reshape(2, 6), np.asarray([0.5, 2.0])
    found = field(tmp_path, SPECTRUM, columns=["w", "g"]).convert([waves, gains], columns, {})
    assert found.tolist() == [[[0, 1, 2, 3], [0.5] * 4], [[6, 7, 8, 9], [2] * 4]]
    assert found.dtype == np.float32
    at_once = "class A(Field):\n    dtype = 'int64'\n    num_values = 5\n"
    made = field(tmp_path, at_once + "    def decode_rows(self, a): return a.astype(np.int64)\n", column="a")
    assert made.row_spec([A], {}) == TensorSpec((), "int64", 5)
    assert made.convert([np.asarray([4.0, 0.0])], [A], {}).tolist() == [4, 0]
    assert made.convert([np.empty(0)], [A], {}).shape == (0,)
    with pytest.raises(BadValueError, match=r"`decode_rows` gives 7, beyond 0..4, but int64 of shape \(\) is declared"):
        made.convert([np.asarray([1.0, 7.0])], [A], {})
    several = field(
        tmp_path, "class A(Field):\n    def decode(self, *values): return float(sum(values))\n", columns="*"
    )
    assert several.check([A, A._replace(name="b"), A._replace(name="c")]) is None
    counts = field(tmp_path, f"class A(Field):\n    dtype = 'int64'\n{DECODE}return int(a)\n", column="a")
    tally = counts.tally([A])
    assert tally is not None
    tally.add([np.asarray([3.0, 9.0])])
    assert tally.result() == {"least": 3, "greatest": 9}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return np.zeros(2, np.float32)",
            r"`decode` gives float32 of shape (2,), but float32 of shape (3,) is declared",
        ),
        ("return np.zeros(3)", "`decode` gives float64 of shape (3,)"),
        ("return None", "`decode` gives None"),
        ("return 'abc'", "`decode` gives a text"),
        ("return [1.0, 2.0]", "`decode` gives float64 of shape (2,)"),
        ("return {}[a]", "`decode` fails: KeyError: "),
    ],
)
def test_what_a_field_makes_is_held_against_what_it_declares(body: str, words: str, tmp_path: Path) -> None:
    made = field(tmp_path, f"class A(Field):\n    shape = (3,)\n{DECODE}return [1, 2, a] if a < 2 else self.b(a)\n"
                 f"    def b(self, a): {body}\n", column="a")  # fmt: skip
    with pytest.raises(BadValueError) as error:
        made.convert([np.asarray([0.0, 1.0, 2.0])], [A], {})
    assert words in str(error.value)
    assert (error.value.problem, error.value.row) == ("plugin", 2)
    assert ("p0.py, line 9" in str(error.value)) == ("fails" in words)


def test_text_is_taken_by_fields_that_say_so(tmp_path: Path) -> None:
    text = Column("t", "object")
    plain = field(tmp_path, f"class A(Field):\n{DECODE}return 1.0\n", column="t")
    shape_error = plain.check([text])
    assert shape_error is not None
    assert "takes_text = True" in (shape_error.help or "")
    takes = field(tmp_path, f"class A(Field):\n    takes_text = True\n{DECODE}return float(len(a))\n", column="t")
    assert takes.check([text]) is None
    assert takes.check([A]) is not None
    assert takes.takes_text
    values = np.asarray(["ab", "c"], object)
    assert takes.convert([values], [text], {}).tolist() == [2, 1]


# --- transforms

PICTURE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (9, 7, 3), np.uint8))
NUMBERS = np.random.default_rng(3).random((3, 9, 7), np.float32)
NOISE = """class Noise(Transform):
    on_numbers = True
    interval = (-1, 2)
    def __init__(self, size: float = 0.5): self.amount = size
    def apply(self, picture, random):
        return (picture + self.amount * random.normal(size=picture.shape)).clip(-1, 2).astype(np.float32)
"""
GLOBAL = """class Turned(Transform):
    is_random = True
    def apply(self, picture):
        angle = 90 * int(torch.randint(4, ())) + 45 * np.random.rand() + pythons.random()
        return picture.rotate(angle)
"""


def drawn(number: int, epoch: int = 0) -> Drawn:
    return Drawn(key_of("transform", 0, epoch, 0), number)


def test_a_transform_is_known_without_its_code(tmp_path: Path) -> None:
    noise = transform(tmp_path, "raise RuntimeError('it ran')\n" + NOISE, may_import=False)
    assert (noise.is_random, noise.on_numbers) == (True, True)
    assert noise.interval_after((0.0, 1.0), 3) == (-1, 2)
    assert noise.check((9, 7), 3) is None
    assert noise.size_after((9, None)) == (9, None)
    cut = "class Cut(Transform):\n    size = ('side', 5)\n    def __init__(self, side: int): self.side = side\n" + APPLY
    assert transform(tmp_path, cut + "...\n", may_import=False, side=4).size_after((None, None)) == (4, 5)
    assert not transform(tmp_path, cut + "...\n", may_import=False, side=4).is_random
    unknown = transform(tmp_path, NOISE.replace("interval", "other"), may_import=False)
    assert unknown.interval_after((0.0, 1.0), 3) == (float("-inf"), float("inf"))


@pytest.mark.parametrize(("text", "value"), [(NOISE, NUMBERS), (GLOBAL, PICTURE)], ids=["given", "global"])
def test_draws_follow_from_the_sample_and_leave_others_alone(text: str, value: Any, tmp_path: Path) -> None:
    made = transform(tmp_path, text)
    assert made.check((9, 7), 3) is None
    before = read_random_states()
    one, same_draw = (np.asarray(each) for each in made.apply([value, value], drawn(5)))
    np.testing.assert_array_equal(one, same_draw)
    torch.rand(1), random.random(), np.random.rand()  # what other samples or the model draw does not matter
    again = np.asarray(made.apply([value], drawn(5))[0])
    np.testing.assert_array_equal(one, again)
    others = [np.asarray(made.apply([value], each)[0]) for each in (drawn(6), drawn(5, epoch=1))]
    assert not any(np.array_equal(one, other) for other in others)
    torch.manual_seed(0)
    before = read_random_states()
    made.apply([value], drawn(5))
    assert read_random_states() == before


@pytest.mark.parametrize(
    ("text", "words", "help"),
    [
        ("    size = (4, 4)\n" + APPLY + "return picture\n",
         "`apply` gives a picture of 9 x 7 in mode RGB, expected 4 x 4 in mode RGB", "declares `size"),
        (APPLY + "return picture.convert('L')\n", "of 9 x 7 in mode L", ""),
        (APPLY + "return picture.resize((3, 3))\n", "of 3 x 3 in mode RGB, expected 9 x 7", "declares `size"),
        (APPLY + "return np.asarray(picture)\n", "gives a ndarray, expected a Pillow image", ""),
        ("    on_numbers = True\n" + APPLY + "return picture[:1]\n", "float32 of shape (1, 9, 7), expected", ""),
        ("    on_numbers = True\n" + APPLY + "return picture > 0\n", "gives bool of shape (3, 9, 7)", ""),
        (APPLY + "return picture.rotate(np.random.rand())\n", "but does not declare it", "is_random"),
        (APPLY + "return picture.rotate(torch.rand(()).item())\n", "draws random numbers", "random)`"),
        (APPLY + "return {}[0]\n", "fails on a generated image: KeyError: 0; ", ""),
        ("    turns = 0\n" + APPLY + "\n        self.turns += 45\n        return picture.rotate(self.turns)\n",
         "changes the same image differently", "random)`"),
    ],
)  # fmt: skip
def test_what_a_transform_does_wrong_is_found_on_a_made_picture(
    text: str, words: str, help: str, tmp_path: Path
) -> None:
    shape_error = transform(tmp_path, "class A(Transform):\n" + text).check((9, 7), 3)
    assert shape_error is not None
    assert words in shape_error.message
    assert help in (shape_error.help or "")


def test_a_picture_is_the_code_s_to_write_to(tmp_path: Path) -> None:
    text = (
        "class A(Transform):\n    on_numbers = True\n"
        + APPLY
        + "\n        picture[:] = 0\n        return torch.from_numpy(picture)\n"
    )
    value = NUMBERS.copy()
    made = transform(tmp_path, text).apply([value], drawn(1))[0]
    assert made.max() == 0
    np.testing.assert_array_equal(value, NUMBERS)
