"""Hints for values of a wrong type, if it is certain what was meant: booleans of YAML 1.1 such as `yes`, or quotes that
are missing or superfluous.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

from declarative_train.core.amounts import is_numeric
from declarative_train.core.diagnostics.diagnostic import Fix
from declarative_train.source.node import Node, Scalar

_WORDS_OF_1_1 = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:[_,]\d{3})+|[+-]?\d+(?:_\d+)+")
_ROUND = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGbB])")
_LETTERS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_FORMULA = re.compile(r"[\d.eE+\-]+(?:\s*(?:\*\*|//|[-*/+])\s*[\d.eE+\-]+)+")
_TUPLE = re.compile(r"\(([^()\[\]{}]*)\)")
_NUMBERS_IN_TEXT = re.compile(r"(\d+(?:\s*,\s*\d+)+)")
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*(epoch|step|sample)s?")
_ENV = re.compile(r"\{\{\s*(env\.\w+)\s*\}\}")
_NUMBERS = ("int_type", "int_from_float", "float_type")
_ALL = ("all", "auto", "max", "-1")
_ENDLESS = ("inf", "infinity", "infinite", ".inf", "-1")
WORDS_FOR_VALUES: dict[str, dict[str, str]] = {  # key -> {value that other tools allow: hint}
    "gpus": dict.fromkeys(_ALL, "write the number: `gpus: 2`; the plan depends on it, and `dtrain doctor` shows it"),
    "gpus_per_node": dict.fromkeys(_ALL, "write the number of each node: `gpus_per_node: 8`"),
    "nodes": dict.fromkeys(_ALL, "write the number, `nodes: 4`, or a range, `nodes: 1..4`"),
    "global_batch_size": {
        "auto": "write the number of samples of a step: results depend on it; `microbatch_size` and "
        "`gradient_accumulation_steps` fit it into memory"
    },
    "microbatch_size": {"auto": "write the number, or remove it; `dtrain plan` estimates the memory"},
    "epochs": dict.fromkeys(
        _ENDLESS,
        "a run has a length, which its lr schedule needs: write one, and stop it by `early_stop` or `max_time`",
    ),
    "steps": dict.fromkeys(
        _ENDLESS,
        "a run has a length, which its lr schedule needs: write one, and stop it by `early_stop` or `max_time`",
    ),
    "missing": {
        **dict.fromkeys(("median", "mode", "most_frequent"), "write `mean`, or the number itself: `missing: 35.0`"),
        **dict.fromkeys(
            ("drop", "dropna"), "rows are left out by `on_bad_row: skip` under `data`, with `missing: error`"
        ),
        **dict.fromkeys(("ffill", "bfill", "interpolate"), "fill them in the file; here `mean`, `zero` or a number"),
    },
    "dtype": {
        **dict.fromkeys(("object", "str", "string", "category", "categorical"), "a column of words: `type: category`"),
        **dict.fromkeys(("datetime", "datetime64", "datetime64[ns]", "date"), "a column of dates: `type: date`"),
    },
    "workers": {"auto": "write the number of loader processes per rank: `workers: 2`; with 0 the rank reads by itself"},
}
_NO_BATCH = "`B` is the batch, and only allowed at the start of a shape"
_FOR_THE_BATCH = {  # key -> hint
    "dim": "the batch cannot be selected: the first dimension of a sample is 1, the last is -1",
    "dims": "an order of dimensions begins with the batch, 0: [0, 2, 1]",
    "shape": "this is a shape without the batch: remove it",
    "sizes": "these are the sizes that one dimension becomes: omit the batch",
}


class ValueHint(NamedTuple):
    help: str | None = None
    fixes: tuple[Fix, ...] = ()


def value_hint(node: Node, kind: str, key: str = "") -> ValueHint:
    """Return a hint for `node`, the wrong value of `key`; an empty ValueHint if there is none. `kind`: pydantic's name
    of the error, which names the expected type, such as `int_type`."""
    if not isinstance(node, Scalar) or node.value is None:
        return ValueHint()
    if node.template is not None:
        return _hint_on_template(node, node.template, kind) if kind in _NUMBERS else ValueHint()
    if kind == "string_type":
        return _write(node, f'"{node.text}"')
    if (note := WORDS_FOR_VALUES.get(key.rpartition(".")[2], {}).get(node.text.strip().lower())) is not None:
        return ValueHint(note)
    if isinstance(node.value, float) and node.value.is_integer() and kind in ("int_type", "int_from_float"):
        return _write(node, str(int(node.value)))
    if not isinstance(node.value, str):
        return ValueHint()
    word = _WORDS_OF_1_1.get(node.value.lower())
    if word is not None:
        return _write(node, word) if kind == "bool_type" else ValueHint(f"`{node.text}` is text in YAML 1.2")
    text = node.value.strip()
    if text == "B" and kind in _NUMBERS:
        return ValueHint(_FOR_THE_BATCH.get(key.partition(".")[0], _NO_BATCH))
    if kind not in _NUMBERS:
        return _hint_on_list(node, text)
    if (with_unit := _WITH_UNIT.fullmatch(text)) is not None and key.endswith(f"{with_unit[2]}s"):
        return _write(node, with_unit[1])  # `epochs: 3 epochs`
    return _hint_on_number(node, text, kind, is_share=not key.endswith("epochs"))


def _hint_on_number(node: Scalar, text: str, kind: str, *, is_share: bool) -> ValueHint:
    """Return a hint for a number that is text in YAML: a percentage, or a number with quotes, thousands separators, a
    suffix (`2k`) or a formula. `kind`: pydantic's name of the error, such as `int_type`. `is_share`: whether `5%` means
    0.05 for this key."""
    if node.quoted and is_numeric(text):
        return ValueHint("write it without quotes", _edit(node, text))
    if (share := _SHARE.fullmatch(text)) is not None and kind == "float_type" and is_share:
        return _write(node, f"{Decimal(share[1]) / 100:f}")
    if _GROUPED.fullmatch(text):
        return _write(node, text.replace(",", "").replace("_", ""))
    if (round_number := _ROUND.fullmatch(text)) is not None:
        number = Decimal(round_number[1]) * _LETTERS[round_number[2].lower()]
        return ValueHint(f"write `{number:f}`") if number == number.to_integral_value() else ValueHint()
    if _FORMULA.fullmatch(text):
        return ValueHint(f'a template computes: `"{{{{ {text} }}}}"`')
    return _hint_on_list(node, text)


def _hint_on_list(node: Scalar, text: str) -> ValueHint:
    """Return a hint for a text that is a Python tuple, or has several numbers, where a list is expected."""
    tuple_ = _TUPLE.fullmatch(text) or _NUMBERS_IN_TEXT.fullmatch(text)
    return ValueHint() if tuple_ is None else _write(node, f"[{tuple_[1].strip().removesuffix(',')}]")


def _hint_on_template(node: Scalar, template: str, kind: str) -> ValueHint:
    if isinstance(node.value, float):
        return ValueHint("`//` is integer division, `| int` truncates")
    if (variable := _ENV.fullmatch(template)) is not None:
        number = "float" if kind == "float_type" else "int"
        return ValueHint(f"values of `env` are texts: `{{{{ {variable[1]} | {number} }}}}`")
    return ValueHint("a template keeps the type of its value only without any text around it, not even a space")


def _write(node: Scalar, text: str) -> ValueHint:
    return ValueHint(f"write `{text}`", _edit(node, text))


def _edit(node: Scalar, text: str) -> tuple[Fix, ...]:
    is_plain = not node.pieces and node.span.line == node.span.end_line
    return (Fix(node.span, text, safe=True),) if is_plain else ()
