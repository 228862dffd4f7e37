"""Templates that need no Jinja: the value is the one that Jinja gives, or none is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from declarative_train.source.plain_template import NOT_PLAIN, evaluate_plain
from declarative_train.source.sandbox import NameMissing, Sandbox

NAMES: dict[str, object] = {
    "vars": {"width": 48, "lr": 1e-4, "name": "x", "on": True, "nothing": None, "items": 5, "zero": 0, "minus": -7}
    | {"deep": {"a": 1.5}, "list": [1], "large": 2**63, "huge": 1e308, "true": 3},
    "params": {"heads": 4},
    "index": 2,
}
OPERANDS = [
    *("vars.width", "vars.lr", "vars.name", "vars.on", "vars.nothing", "vars.items", "vars.zero", "vars.minus"),
    *("vars.deep.a", "vars.deep", "vars.list", "vars.large", "vars.huge", "vars.true", "params.heads", "index"),
    *("vars.nope", "nope", "vars.width.bit_length", "true", "none", "not", "0", "2", "10", "0.5", "00.5", "3.25"),
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", ">", "and", "if", "."]


def templates() -> Iterator[str]:
    """Every operand, every pair with every operator, and long ones by chance, of the plain operators mostly."""
    yield from (f"{{{{ {operand} }}}}" for operand in OPERANDS)
    for left, symbol, right in product(OPERANDS, OPERATORS, OPERANDS):
        yield f"{{{{{left} {symbol} {right}}}}}"
    random = Random(1)
    for _ in range(300):
        words = [random.choice(OPERANDS[:8] + OPERANDS[14:16] + OPERANDS[-6:])]
        for _ in range(random.randrange(1, 6)):
            words += [random.choice(OPERATORS[:5]), random.choice(OPERANDS[-6:] + OPERANDS[:2])]
        yield f"{{{{ {random.choice(['', ' ']).join(words)} }}}}"


def test_what_is_plain_is_what_jinja_gives() -> None:
    sandbox = Sandbox()
    num_plain = 0
    for template in templates():
        found = evaluate_plain(template, NAMES)
        if found is NOT_PLAIN:
            continue
        num_plain += 1
        sandbox.total_steps = 0
        expected = sandbox.read(template).run(NAMES)
        assert (type(found), repr(found)) == (type(expected), repr(expected)), template
    assert num_plain > 500


@pytest.mark.parametrize(
    "template",
    [
        "{{ vars }}",
        "{{ vars.list }}",
        "{{ vars.nope }}",
        "{{ vars.name * 2 }}",
        "{{ vars.width / vars.zero }}",
        "{{ vars.large * 2 }}",
        "{{ vars.large * 2 // 2 }}",
        "{{ vars.on + 1 }}",
        "{{ -vars.width }}",
        "{{ (vars.width) }}",
        "{{- vars.width }}",
        "{{ vars.width -}}",
        "{{ vars.width }} ",
        "{{ vars.width }}{{ index }}",
        "{{ vars._width }}",
        "{{ 'x' }}",
        "{{ 1_000 }}",
        "{{ 1e3 }}",
        "{{ " + "1 + " * 300 + "1 }}",
        "plain text",
    ],
)
def test_the_rest_is_left_to_jinja(template: str) -> None:
    assert evaluate_plain(template, NAMES) is NOT_PLAIN


def test_what_looking_a_name_up_raises_is_raised() -> None:
    class Names(dict[str, object]):
        def __getitem__(self, name: str) -> object:
            raise NameMissing(None, name)

    with pytest.raises(NameMissing):
        evaluate_plain("{{ vars.a }}", {"vars": Names(a=1)})


def test_plain_templates_do_not_import_jinja() -> None:
    code = (
        "import sys\nfrom declarative_train.source.reader import read_text\n"
        "from declarative_train.source.template import Templates, render_vars\n"
        "root, _ = read_text('a', 'vars: {a: 4, b: \"{{ vars.a * 2 }}\"}\\nb: \"{{ vars.b / vars.a }}\"')\n"
        "vars, _ = render_vars(root, {})\nrendered, _ = Templates().render(root, {'vars': vars})\n"
        "assert rendered.get('b').value == 2.0, rendered\nassert 'jinja2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
