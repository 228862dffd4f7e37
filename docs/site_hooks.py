"""What mkdocs lacks: pages of files outside docs/ (CONTRIBUTING, CHANGELOG, the recipes), and links to them."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
WIDE = ("docs/components.md", "docs/sections.md")  # written for terminals of 120 columns
FOLDERS = {"Recipes": "recipes", "Switches of the mode": "switches"}
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]"  # the text of a link may be a picture
    r"\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The recipes stand in the navigation without being written down twice."""
    assert config.nav is not None
    for entry in config.nav:
        if "Recipes" in entry:
            entry["Recipes"] = [
                {title: [recipe_page(path) for path in recipes() if path.parent.name == folder]}
                for title, folder in FOLDERS.items()
            ]
        if "Gallery" in entry:
            entry["Gallery"] += [recipe_page(path) for path in recipes() if path.parent.name == "gallery"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        files.append(File.generated(config, MOVED[name], content=(ROOT / name).read_text()))
    for path in recipes():
        files.append(File.generated(config, recipe_page(path), content=recipe_text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that are right in the repository become right on the site; what has no page here stays as words."""
    here = PurePosixPath(page.file.src_uri)
    source = next((name for name, moved in MOVED.items() if moved == str(here) and name != "README.md"), f"docs/{here}")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    parts[::2] = [LINK.sub(lambda match: link(match, PurePosixPath(source).parent, here), part) for part in parts[::2]]
    text = "".join(parts)
    return text.replace("```text\n", "``` {.text .wraps}\n") if source in WIDE else text


def link(match: re.Match[str], folder: PurePosixPath, here: PurePosixPath) -> str:
    target = match["target"]
    if ":" in target:
        return match[0]
    path = (ROOT / folder / target).resolve()
    if not path.is_relative_to(ROOT):
        return match[0]
    place = path.relative_to(ROOT).as_posix()
    if place.startswith("docs/"):
        uri = place.removeprefix("docs/")
    elif place in MOVED:
        uri = MOVED[place]
    elif path in recipes():
        uri = recipe_page(path)
    elif path.exists():
        return match["text"]
    else:
        return match[0]  # mkdocs says that it is broken
    up = "../" * (len(here.parts) - 1)
    return f"{match['image']}[{match['text']}]({up}{uri}{match['anchor'] or ''})"


def recipes() -> list[Path]:
    return sorted((ROOT / "recipes").rglob("*.yaml"))


def recipe_page(path: Path) -> str:
    return f"recipes/{path.relative_to(ROOT / 'recipes').with_suffix('.md').as_posix()}"


def recipe_text(path: Path) -> str:
    """Return the page of a recipe: its story, which is the comment on top, then the file without it."""
    lines = path.read_text().splitlines()
    head = [line for line in lines if not line.startswith("# yaml-language-server")]
    length = next((number for number, line in enumerate(head) if not line.startswith("#")), len(head))
    story = [line.removeprefix("#").removeprefix(" ") for line in head[:length]]
    whole = "\n".join(head[length:]).strip("\n")
    place = path.relative_to(ROOT).as_posix()
    return f"# {path.stem}\n\n`{place}`\n\n``` {{.text .wraps}}\n{chr(10).join(story)}\n```\n\n```yaml\n{whole}\n```\n"
