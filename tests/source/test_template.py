"""Templates in scalars: values with their own type, exact places, bounds."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.source.node import Mapping, Scalar, Sequence, to_value
from declarative_train.source.reader import read_text
from declarative_train.source.template import Templates, render_vars

NAMES = {
    "vars": {"width": 32, "sizes": [1, 2], "items": 5, "name": "x", "deep": {"a": 1}, "lr": 1e-4},
    "env": {"HOME": "/home/me", "PATH": "/bin"},
    "params": {"heads": 4, "kinds": ("a", "b")},
    "index": 2,
}


def node(template: str) -> Scalar:
    root, diagnostics = read_text("a.yaml", "a: '" + template.replace("'", "''") + "'\n")
    assert not diagnostics
    assert root is not None
    found = root.get("a")
    assert isinstance(found, Scalar)
    return found


def value(template: str) -> object:
    rendered, diagnostics = Templates().render(node(template), NAMES)
    assert not diagnostics, diagnostics
    return to_value(rendered)


def wrong(template: str) -> Diagnostic:
    begin = time.thread_time()
    scalar = node(template)
    templates = Templates()
    rendered, diagnostics = templates.render(scalar, NAMES)
    assert time.thread_time() - begin < 1
    assert rendered is scalar
    assert templates.failed == {scalar.span}
    assert len(diagnostics) == 1
    return diagnostics[0]


def underlined(template: str) -> str:
    """The part of the template that the diagnostic points at."""
    span = wrong(template).span
    assert span.line == span.end_line == 1
    return f"a: '{template}'"[span.column - 1 : span.end_column - 1]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ vars.width }}", 32),
        ("{{ vars.width * 2 }}", 64),
        ("{{ vars.lr }}", 1e-4),
        ("{{ 1e-4 }}", 1e-4),
        ("{{ '1e-4' }}", "1e-4"),
        ("{{ 'None' }}", "None"),
        ("{{ none }}", None),
        ("{{ true }}", True),
        ("{{ vars.width > 3 }}", True),
        ("{{ vars.sizes + [3] }}", (1, 2, 3)),
        ("{{ params.kinds + ['c'] }}", ("a", "b", "c")),
        ("{{ (1, 2) }}", (1, 2)),
        ("{{ {'a': [1.5, none]} }}", {"a": (1.5, None)}),
        ("{{ [3, 4, 6, 3][index] }}", 6),
        ("{{ 64 * 2 ** index }}", 256),
        ("{{ 1 if index == 0 else 2 }}", 2),
        ("{{ vars.items }}", 5),  # not the method of a dict
        ("{{ vars['deep'].a }}", 1),
        ("{{ range(3) }}", (0, 1, 2)),
        ("{{ vars.sizes | map('string') | join('-') }}", "1-2"),
        ("{{ vars.name ~ 1 ~ (2 ~ 3) }}", "x123"),
        ("{{ vars.sizes[:1] }}", (1,)),
        ("{{ env.HOME }}", "/home/me"),
        ("{{ env.NOPE | default('d') }}", "d"),
        ("{{ vars.nope is defined }}", False),
        ("{{ vars.width is divisibleby 8 }}", True),
        ("{{ 2 in vars.sizes }}", True),
        ("{{ vars.name.upper() }}", "X"),
        ("{{ vars.deep.items() }}", (("a", 1),)),
        ("{{ 1 }}, {{ 2 }}", "1, 2"),
        ("{{ vars.width }} ", "32 "),
        (" {{ vars.width }}", " 32"),
        ("run_{{ vars.width }}", "run_32"),
        ("{{ vars.width }}{{ index }}", "322"),
        ("{{ 'a' if index else 'b' }} {{ 'c' if not index else 'd' }}", "a d"),
        ("{{ vars.sizes | map('string') | map('upper') | list }}", ("1", "2")),
        ("{# nothing #}x", "x"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("no template", "no template"),
        ("{0..7}", "{0..7}"),
    ],
)
def test_values(template: str, expected: object) -> None:
    found = value(template)
    assert found == expected
    assert type(found) is type(expected)


def test_a_block_scalar_that_is_one_template_has_its_type() -> None:
    root, _ = read_text("a.yaml", "a: |\n  {{ vars.width }}\nb: |\n  {{ vars.width }}\n  more\n")
    assert root is not None
    rendered, _ = Templates().render(root, NAMES)
    assert to_value(rendered) == {"a": 32, "b": "32\nmore\n"}


def test_a_rendered_text_is_never_read_again() -> None:
    assert value("{{ '{{ vars.width }}' }}") == "{{ vars.width }}"
    rendered, _ = Templates().render(node("{{ '{{ vars.nope }}' }}"), NAMES)
    again, diagnostics = Templates().render(rendered, NAMES)
    assert again is rendered
    assert not diagnostics


def test_rendered_nodes_remember_their_template() -> None:
    scalar = node("{{ vars.sizes }}")
    rendered, _ = Templates().render(scalar, NAMES)
    assert isinstance(rendered, Sequence)
    first = rendered.items[0]
    assert isinstance(first, Scalar)
    assert (first.value, first.text, first.template) == (1, "1", "{{ vars.sizes }}")
    assert first.span == rendered.span == scalar.span
    assert first.place(0, 5) == scalar.span
    rendered, _ = Templates().render(node("{{ none }}"), NAMES)
    assert isinstance(rendered, Scalar)
    assert rendered.text == "null"
    assert not rendered.is_empty


def test_what_holds_no_template_is_the_same_node() -> None:
    root, _ = read_text("a.yaml", "a: {b: [1, '{x}']}\nc: '{{ 1 }}'\n")
    assert root is not None
    rendered, _ = Templates().render(root, {})
    assert isinstance(rendered, Mapping)
    assert rendered.get("a") is root.get("a")
    assert rendered.get("c") is not root.get("c")


def test_everything_wrong_is_said_and_the_rest_rendered() -> None:
    root, _ = read_text("a.yaml", "a: ['{{ no }}', '{{ 1 }}', {b: '{{ nor }}'}]\n")
    assert root is not None
    rendered, diagnostics = Templates().render(root, {})
    assert [d.span.column for d in diagnostics] == [9, 36]
    assert to_value(rendered) == {"a": ("{{ no }}", 1, {"b": "{{ nor }}"})}


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "part", "message", "help"),
    [
        ("{{ vars.widht }}", "widht", "`vars` has no `widht`", "did you mean `width`?"),
        ("a {{ 1 }} {{ vars.widht }}", "widht", "`vars` has no `widht`", "did you mean `width`?"),
        ("{{ vars['widht'] }}", "'widht'", "`vars` has no `widht`", "did you mean `width`?"),
        ("{{ width + vars.wide }}", "width", "`width` is not defined here", "did you mean `vars.width`?"),
        ("{{ varz.x }}", "varz", "`varz` is not defined here", "did you mean `vars`?"),
        ("{{ vars.deep.b }}", "b", "this mapping has no `b`", "known: a"),
        ("{{ vars.width.x }}", "x", "an integer has no `x`", None),
        ("{{ vars.sizes.append(1) }}", "append", "a list has no `append`", None),
        ("{{ params.head }}", "head", "`params` has no `head`", "did you mean `heads`?"),
    ],
)
def test_undefined_names(template: str, part: str, message: str, help: str | None) -> None:
    diagnostic = wrong(template)
    assert (diagnostic.code, diagnostic.message) == ("T002", message)
    assert (diagnostic.help or "").startswith(help or "")
    assert underlined(template) == part


@pytest.mark.parametrize(
    ("name", "words"), [("params", "inside a block"), ("index", "with `repeat`"), ("vars", "no section `vars`")]
)
def test_names_of_other_places(name: str, words: str) -> None:
    scalar = node(f"{{{{ {name} }}}}")
    _, (diagnostic,) = Templates().render(scalar, {"env": {}})
    assert words in (diagnostic.help or "")


def test_an_unset_variable_is_named() -> None:
    diagnostic = wrong("{{ env.HOEM }}")
    assert (diagnostic.code, diagnostic.message) == ("T003", "the environment variable `HOEM` is not set")
    assert "did you mean `HOME`?" in (diagnostic.help or "")
    assert underlined("{{ env.HOEM }}") == "HOEM"
    assert "/home/me" not in diagnostic.message + (diagnostic.help or "")


# --- syntax and failure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "code", "part", "words"),
    [
        ("{{ vars.width // }}", "T001", "}}", "unexpected `}}`"),
        ("{{ vars.width ) }}", "T001", ")", "unexpected `)`"),
        ("x {{ vars.width", "T001", "{{", "`{{` is not closed"),
        ("{% if x %}y", "T001", "{%", "is not closed"),
        ("{{ vars.width | foo }}", "T001", "foo", "there is no filter `foo`"),
        ("{{ vars.width | uper }}", "T001", "uper", "there is no filter `uper`"),
        ("{{ 1 is foo }}", "T001", "foo", "there is no test `foo`"),
        ("{{ a ! b }}", "T001", "!", "unexpected char `!`"),
        ("{{ a b }}", "T001", "b", "got `b`"),
        ("{% foo %}", "T001", "foo", "unknown tag `foo`"),
        ("{{ }}", "T001", "}}", ""),
        ("a {{ 1 // 0 }} b", "T006", "{{ 1 // 0 }}", "a division by zero"),
        ("{{ vars.sizes[7] }}", "T006", "{{ vars.sizes[7] }}", "index 7 of 2 items"),
        ("{{ vars.name + 1 }}", "T006", "{{ vars.name + 1 }}", "this template fails: "),
        ("{{ range(1.5) }}", "T006", "{{ range(1.5) }}", "`range` needs integers"),
        ("{{ range }}", "T009", "{{ range }}", "gives a function"),
        ("{{ vars.name.upper }}", "T009", "{{ vars.name.upper }}", "gives a function"),
        ("{{ {1: 2} }}", "T009", "{{ {1: 2} }}", "keys are not texts"),
        ("{{ self }}", "T009", "{{ self }}", ""),
    ],
)
def test_what_is_no_template_and_what_fails(template: str, code: str, part: str, words: str) -> None:
    diagnostic = wrong(template)
    assert diagnostic.code == code
    assert words in diagnostic.message
    assert underlined(template) == part
    assert "\n" not in diagnostic.message


def test_an_error_on_a_later_line_of_a_block_scalar() -> None:
    root, _ = read_text("a.yaml", "a: |\n  one\n  two {{ vars.widht }}\nb: >\n  one\n  {{ 1 +* }}\n")
    assert root is not None
    _, diagnostics = Templates().render(root, NAMES)
    assert [str(d.span) for d in diagnostics] == ["a.yaml:3:15", "a.yaml:6:9"]


def test_an_error_behind_escapes() -> None:
    root, _ = read_text("a.yaml", 'a: "\\t{{ vars.widht }}"\n')
    assert root is not None
    _, (diagnostic,) = Templates().render(root, NAMES)
    assert diagnostic.span.column == 15


@pytest.mark.parametrize(
    "text",
    [
        "{{ env }}",
        "{{ env.items() | list }}",
        "{{ env.values() | list }}",
        "{{ env | items | list }}",
        "{{ env | dictsort }}",
        "{{ env | list }}",
        "{{ env | string }}",
        "{{ env ~ '' }}",
        "a {{ env }} b",
        "{{ [env] | string }}",
        "{{ env | map('upper') | list }}",
    ],
)
def test_the_environment_as_a_whole_is_no_value(text: str) -> None:
    _, (diagnostic,) = Templates().render(node(text), {"env": os.environ})
    assert (diagnostic.code, diagnostic.message) == (
        "T009",
        "this template gives the whole environment, which is not a value of a recipe",
    )


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "{{ 10 ** 10 ** 10 }}",
        "{{ 2 ** 64 * 2 }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ [[0] * 9000] * 9000 }}",
        "{{ range(10 ** 9) }}",
        "{{ range(0, 1, 2 ** 63) }}{{ range(10 ** 6) }}",
        "{{ 2.5 ** 100000 }}",
        "{{ ('a' * 20000) | replace('a', 'b' * 20000) }}",
        "{{ ('a' * 20000).replace('a', 'b' * 20000) }}",
        "{{ (['a'] * 9000) | join('b' * 20000) }}",
        "{{ ('b' * 20000).join(['a'] * 9000) }}",
        "{{ " + " ~ ".join(["('a' * 40000)"] * 400) + " }}",
        "{{ [" + ", ".join(["[0] * 9000"] * 400) + "] }}",
        "{{ " + " + ".join(["(range(9000) | sort | map('string') | unique | list | length)"] * 140) + " }}",
        "{{ 'x' * 9000 }}" * 300,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 9000 + "1 }}",
        "{{ " + "1 + " * 5000 + "1 }}",
        "{{ " + "not " * 2400 + "1 }}",
        "{{ 1" + " if 1 else 1" * 800 + " }}",
    ],
)
def test_what_costs_too_much_is_refused_quickly(template: str) -> None:
    assert wrong(template).code in ("T005", "T001")


def test_all_templates_of_a_recipe_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.core import sandbox as clocks
    from declarative_train.source import sandbox

    looks = itertools.count()
    monkeypatch.setattr(clocks, "time", SimpleNamespace(thread_time=lambda: next(looks) / 1e6))
    monkeypatch.setattr(sandbox, "LIMITS", sandbox.LIMITS._replace(total_s=0.2))
    templates = Templates()
    template = "{{{{ range(5000) | sort | map('string') | list | length + {} }}}}"
    found = [templates.render(node(template.format(n)), {})[1] for n in range(100)]
    assert not found[0]
    assert "the templates of this recipe" in found[-1][0].message


@pytest.mark.parametrize(
    "template",
    [
        "{% include 'x' %}",
        "{% extends 'x' %}",
        "{% import 'x' as y %}",
        "{% macro m() %}{% endmacro %}",
        "{% block b %}{% endblock %}",
        "{% filter upper %}x{% endfilter %}",
        "{% for i in [1] %}{% endfor %}",
        "{% if index %}a{% else %}b{% endif %}",
        "{% set a = 2 %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ _counted }}",
        "{{ [[1]] | sum(start=[]) }}",
        "{{ vars() }}",
    ],
)
def test_parts_of_jinja_that_recipes_do_not_have(template: str) -> None:
    assert wrong(template).code == "T008"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ vars.__class__ }}",
        "{{ vars.sizes.__class__.__base__.__subclasses__() }}",
        "{{ range.__globals__ }}",
        "{{ ''['__class__'] }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ cycler }}",
        "{{ lipsum() }}",
        "{{ namespace(a=1) }}",
        "{{ dict(a=1) }}",
        "{{ vars.pop('width') }}",
        "{{ [1] | _seen }}",
        "{{ 3 | random }}",
        "{{ 'a' | attr('__class__') }}",
        "{{ [''] | map(attribute='__class__') | list }}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(template: str) -> None:
    assert wrong(template).code in ("T001", "T002", "T006", "T008")


def test_vars_cannot_be_changed() -> None:
    names = {"vars": {"sizes": [1]}}
    Templates().render(node("{{ vars.sizes.append(2) }}"), names)
    Templates().render(node("{{ vars.update({'sizes': 3}) }}"), names)
    assert names == {"vars": {"sizes": [1]}}


# --- vars -----------------------------------------------------------------------------------------------------------


def variables(text: str, env: dict[str, str] | None = None) -> tuple[dict[str, object], list[Diagnostic]]:
    root, diagnostics = read_text("a.yaml", text)
    assert not diagnostics
    assert root is not None
    return render_vars(root, env or {})


def test_vars_may_use_vars_and_env_in_any_order() -> None:
    text = "vars: {b: '{{ vars.a * 2 }}', a: '{{ env.N | int }}', c: {d: ['{{ vars.b }}']}, e: '{{ vars.c.d[0] }}'}\n"
    assert variables(text, {"N": "4"}) == ({"b": 8, "a": 4, "c": {"d": [8]}, "e": 8}, [])


def test_no_vars() -> None:
    assert variables("a: 1\n") == ({}, [])
    assert variables("vars: 5\n") == ({}, [])


def test_a_circle_of_vars_is_said_once() -> None:
    found, diagnostics = variables("vars:\n  a: '{{ vars.b }}'\n  b: '{{ vars.a }}'\n  c: '{{ vars.a }}'\n  d: 1\n")
    assert found == {"d": 1}
    assert [(d.code, d.message) for d in diagnostics] == [
        ("T004", "`vars` has values that refer to each other in a circle: `a` -> `b` -> `a`"),
    ]
    _, diagnostics = variables("vars: {a: '{{ vars.a }}'}\n")
    assert [d.code for d in diagnostics] == ["T004"]


def test_a_failed_var_is_said_where_it_failed_only() -> None:
    text = "vars: {a: '{{ 1 // 0 }}', b: '{{ vars.a }}', ok: 1}\n"
    found, diagnostics = variables(text)
    assert dict(found) == {"ok": 1}
    assert [d.code for d in diagnostics] == ["T006"]
    templates = Templates()
    _, diagnostics = templates.render(node("{{ vars.b }}"), {"vars": found})
    assert not diagnostics
    assert len(templates.failed) == 1
    _, diagnostics = templates.render(node("{{ vars.nope }}"), {"vars": found})
    assert [d.code for d in diagnostics] == ["T002"]


def test_the_depth_of_vars_is_bounded() -> None:
    lines = "".join(f"  v{n}: '{{{{ vars.v{n + 1} }}}}'\n" for n in range(3000))
    begin = time.perf_counter()
    _, diagnostics = variables(f"vars:\n{lines}  v3000: 1\n")
    assert time.perf_counter() - begin < 20
    assert all(d.code == "T005" for d in diagnostics)


def test_jinja_is_imported_for_templates_only() -> None:
    code = (
        "import sys\nfrom declarative_train.source.reader import read_text\n"
        "from declarative_train.source.template import Templates, render_vars\n"
        "root, _ = read_text('a', 'vars: {a: 1}\\nb: [x, {c: 1}]')\n"
        "render_vars(root, {})\nTemplates().render(root, {})\nassert 'jinja2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
