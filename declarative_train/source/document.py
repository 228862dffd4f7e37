"""A document: the merged, not yet rendered tree of a recipe, and every file that it came from."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from declarative_train.core.span import Span
from declarative_train.source.node import Mapping, Node, Path, find


class SourceFile(NamedTuple):
    """A text that was read. `role`: recipe, base (`extends`), with (`--with`), block (a shipped block)."""

    path: str
    text: str
    role: str

    @property
    def sha256(self) -> str:
        from hashlib import sha256  # which a plan needs, and lint does not

        return sha256(self.text.encode("utf-8", errors="surrogatepass")).hexdigest()


class Dropped(NamedTuple):
    """A value that a later file displaced or removed: shown by `dtrain show`.

    `span` is the value that is gone, `by` what displaced it. `reason`: `replaced`, `removed` (by a null),
    `another type` (the whole mapping), `alternative` (`epochs` displaces `steps`).
    """

    path: Path
    span: Span
    by: Span
    reason: str


class Document(NamedTuple):
    """`complete` is False when a base or a `--with` file could not be read: what is missing may be in there, so only
    what is there can be judged.

    `base_orders` is for decisions, Q3 (a default wire that a derived recipe moves): for each mapping whose keys
    later files changed, its path and the keys as they stood, in order, in the first file: the merged `extends` of the
    recipe, or the recipe itself when it extends nothing. The node above `act` was the key before it in there.
    """

    path: str
    root: Mapping
    files: tuple[SourceFile, ...]
    overrides: tuple[str, ...] = ()  # the options as spans name them: `--set training.epochs=3`
    dropped: tuple[Dropped, ...] = ()
    base_orders: MappingABC[Path, tuple[str, ...]] = {}
    complete: bool = True

    def find(self, path: Path) -> Node | None:
        return find(self.root, path)

    def texts(self) -> MappingABC[str, str]:
        """Every text by the path that spans name it with, `--set` options included: what the renderer quotes from."""
        return {file.path: file.text for file in self.files} | {option: option for option in self.overrides}
