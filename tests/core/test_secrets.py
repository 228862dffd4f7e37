"""Texts without values of the environment, passwords and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train.core.secrets import (
    list_variables,
    masked,
    names_in,
    record_derived,
    record_variable,
    variables_in,
    with_names,
    with_values,
)
from declarative_train.source.node import Scalar
from declarative_train.source.reader import read_text
from declarative_train.source.template import Templates, render_vars


def rendered(text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The value of `x` in a recipe."""
    import os

    monkeypatch.setenv("A_TOKEN", "s3cret-Word")
    monkeypatch.setenv("A_WORD", "short")
    root, _ = read_text("r.yaml", text)
    assert root is not None
    variables, found = render_vars(root, os.environ)
    value = root.get("x")
    assert value is not None
    node, more = Templates().render(value, {"vars": variables, "env": os.environ})
    assert not [*found, *more]
    assert isinstance(node, Scalar)
    return node.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x: '{{ env.A_TOKEN }}'", "{{ env.A_TOKEN }}"),
        ("x: 'a/{{ env.A_TOKEN }}.csv'", "a/{{ env.A_TOKEN }}.csv"),
        ("x: \"{{ env['A_TOKEN'] }}\"", "{{ env.A_TOKEN }}"),
        ("vars: {v: '{{ env.A_TOKEN }}'}\nx: 'a/{{ vars.v }}'", "a/{{ env.A_TOKEN }}"),
        ("x: '{{ env.A_TOKEN | upper }}'", "***"),
        ("x: '{{ env.A_TOKEN[:-1] }}'", "***"),
        ("vars: {v: '{{ env.A_TOKEN }}'}\nx: '{{ vars.v | upper }}'", "***"),
        ("vars: {v: '{{ vars.w }}', w: '{{ env.A_TOKEN }}'}\nx: 'is {{ vars.v | lower }}'", "***"),
        ("x: '{{ env.A_WORD }}'", "short"),
        ("x: '{{ env.A_TOKEN | length }}'", "11"),
        ("vars: {v: plain-text-here}\nx: '{{ vars.v | upper }}'", "PLAIN-TEXT-HERE"),
        ("x: \"{{ env.NOT_SET | default('a-default') }}\"", "a-default"),
    ],
)
def test_what_a_template_makes_of_the_environment_is_masked(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert masked(rendered(text, monkeypatch)) == shown


def test_names_are_put_back_from_the_environment_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    record_variable("A_TOKEN", "s3cret")
    record_variable("A_LONGER", "s3cret-and-more")
    record_variable("OF_A_NAME", "A_TOKEN")
    text = "s3cret, s3cret-and-more, A_TOKEN and 's3cretly'"
    named = with_names(text)
    assert named == "{{ env.A_TOKEN }}, {{ env.A_LONGER }}, {{ env.OF_A_NAME }} and '{{ env.A_TOKEN }}ly'"
    assert names_in(named) == ["A_TOKEN", "A_LONGER", "OF_A_NAME"]
    for name, value in list_variables():
        monkeypatch.setenv(name, value)
    assert with_values(named) == text
    monkeypatch.delenv("A_TOKEN")
    assert with_values(named).startswith("{{ env.A_TOKEN }}, s3cret-and-more")


def test_a_url_keeps_neither_password_nor_key_nor_value() -> None:
    record_variable("A_TOKEN", "s3cret")
    assert masked("http://me:s3cret@host/s3cret.csv?sig=s3cret") == "http://***@host/{{ env.A_TOKEN }}.csv?sig=***"


def test_variables_are_found_by_their_values(tmp_path: Path) -> None:
    record_variable("A_TOKEN", "s3cret")
    record_derived("S3CRET")
    assert variables_in("http://host/s3cret") == ["A_TOKEN"]
    assert variables_in("http://host/S3CRET") == ["a variable of the environment"]
    assert variables_in("http://host/") == []
