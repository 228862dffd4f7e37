"""Document: the merged tree of a recipe before templates are rendered, and every file that it came from."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from declarative_train.core.span import Span
from declarative_train.source.node import Mapping, Node, Path, find


class SourceFile(NamedTuple):
    """Text of one file of a recipe. `role`: `recipe`, `base` (named by `extends`), `with` (named by `--with`), or
    `block` (a block that dtrain ships).
    """

    path: str
    text: str
    role: str

    @property
    def sha256(self) -> str:
        from hashlib import sha256  # imported here, because only a plan needs it

        return sha256(self.text.encode("utf-8", errors="surrogatepass")).hexdigest()


class Dropped(NamedTuple):
    """Value that a later file replaced or removed; `dtrain show` lists it.

    `span` is the place of the dropped value, `by` the place of the value that replaced it. `reason`: `replaced`,
    `removed` (by a null), `another type` (the whole mapping was replaced), `alternative` (`epochs` replaces `steps`).
    """

    path: Path
    span: Span
    by: Span
    reason: str


class Document(NamedTuple):
    """Merged recipe, before its templates are rendered.

    complete     False if a base or a `--with` file could not be read, so missing values are not reported
    base_orders  {path of a mapping: its keys in the recipe that `extends` names}, for mappings whose keys or
                 their order are different after the merge. Without `extends`, the keys before `--with` and `--set`"""

    path: str
    root: Mapping
    files: tuple[SourceFile, ...]
    overrides: tuple[str, ...] = ()  # options as they are written in spans: `--set training.epochs=3`
    dropped: tuple[Dropped, ...] = ()
    base_orders: MappingABC[Path, tuple[str, ...]] = {}
    complete: bool = True

    def find(self, path: Path) -> Node | None:
        return find(self.root, path)

    def texts(self) -> MappingABC[str, str]:
        """Return {path: text} of all files. Each `--set` option is an entry too, {option: option}, because spans use
        the option as their path."""
        return {file.path: file.text for file in self.files} | {option: option for option in self.overrides}
