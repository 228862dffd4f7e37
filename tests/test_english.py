"""Plain English: few fragments and participles in the package, no banned words in texts for users."""

from __future__ import annotations

from tests.english import ROOT, draw, find_banned, find_messages, is_participle, measure, package_texts

FOR_USERS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "recipes/**/*.yaml", "declarative_train/**/blocks/*.yaml")
MESSAGES = ("tests/cases/err/*.out", "schemas/*.json")


def test_docstrings_and_names_are_those_of_plain_english() -> None:
    found = measure(package_texts())
    assert len(found.fragments) <= 0.02 * found.docstrings, found.fragments
    assert len(found.participles) <= 0.03 * found.functions, found.participles


def test_texts_for_users_have_no_banned_words() -> None:
    files = [path for pattern in (*FOR_USERS, *MESSAGES) for path in ROOT.glob(pattern)]
    assert len(files) > 100
    assert [(path.name, *found) for path in files for found in find_banned(path.read_text("utf-8"))] == []


def test_messages_have_no_banned_words() -> None:
    found = [
        (path, line, word)
        for path, text in package_texts().items()
        for line, message in find_messages(text)
        for _, word in find_banned(message)
    ]
    assert found == []


def test_a_draw_can_be_repeated() -> None:
    texts = {"made.py": "".join(f'def f{i}():\n    """Return {i}."""\n' for i in range(9))}
    assert draw(texts, 1, 3) == draw(texts, 1, 3) != draw(texts, 2, 3)


def test_what_is_not_plain_is_found() -> None:
    lines = [
        "def _told(x):",
        '    """Of a run."""',
        "class A:",
        '    """What it is."""',
        "def load(x):",
        '    """Return x."""',
    ]
    text = "\n".join(lines)
    found = measure({"a.py": text})
    assert ([each.line for each in found.fragments], [each.text for each in found.participles]) == ([1, 3], ["_told"])
    assert not is_participle("feed_model")
    assert list(find_banned("it is no file\nthere is no file\nput beside it")) == [(1, "is no"), (3, "beside")]
    assert list(find_banned("a plan of\ntoday; it is no longer there")) == [(1, "of today")]
    assert list(find_messages('"""A file."""\nhint = "told"  # told\n')) == [(2, "told")]
