"""Loader of a recipe: it merges the bases (`extends`), the file, `--with` files and `--set` options, in that order.

A file that several `extends` name is read again for each of them. Mistakes in a file are reported at their own lines,
and the rest is still merged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.source.checks.merging import (
    base_outside_tree,
    circular_extends,
    extends_too_long,
    missing_base,
    template_in_extends,
    wrong_extends,
)
from declarative_train.source.checks.yaml_values import unreadable_file
from declarative_train.source.document import Document, SourceFile
from declarative_train.source.merge import Merger, MergeRules, drop_entries, find_changed_orders, whole
from declarative_train.source.node import Mapping, Scalar, Sequence
from declarative_train.source.reader import explain_os_error, find_siblings, find_tree, read_file, read_text
from declarative_train.source.setting import PREFIX, as_option, read_setting

MAX_FILES = 100


def load(
    path: str,
    *,
    text: str | None = None,
    texts: MappingABC[str, str] | None = None,
    with_: SequenceABC[str] = (),
    set_: SequenceABC[str] = (),
    over: SequenceABC[Mapping] = (),
    rules: MergeRules,
) -> tuple[Document | None, list[Diagnostic]]:
    """Read a recipe and merge its parts. Return the merged document, or None if there is no text, and all diagnostics.
    If the text is not YAML, the document is empty and not `complete`.

    `text`   instead of the content of the file at `path`
    `texts`  {path: text} instead of the content of any files
    `over`   mappings that are merged last, such as the settings of one run of a sweep"""
    given = {} if text is None else {path: text}
    return _Loading(path, {**(texts or {}), **given}, rules).load(with_, set_, over)


class _FileTree(NamedTuple):
    """Content of one file (`own`), and the merged content of the files that it extends (`base`)."""

    own: Mapping | None
    base: Mapping | None


class _Loading:
    def __init__(self, path: str, texts: MappingABC[str, str], rules: MergeRules) -> None:
        self.path, self.texts, self.rules = path, texts, rules
        self.files: dict[str, SourceFile] = {}
        self.diagnostics: list[Diagnostic] = []
        self.merger = Merger(rules)
        self.complete = True
        self._num_read = 0
        self._outside: set[str] = set()

    def load(
        self, with_: SequenceABC[str], set_: SequenceABC[str], over: SequenceABC[Mapping]
    ) -> tuple[Document | None, list[Diagnostic]]:
        read = self._recipe()
        if read.own is None:
            files = tuple(self.files.values())
            empty = Document(self.path, Mapping((), whole(self.path)), files, complete=False)
            return empty if files else None, self._list_diagnostics()
        first = root = self.merger.merge(None, drop_entries(read.own, "extends")) if read.base is None else read.base
        if read.base is not None:
            root = self.merger.merge(read.base, drop_entries(read.own, "extends"))
        for path in with_:
            root = self._with(root, path)
        options = []
        for option in set_:
            options.append(PREFIX + option)
            setting, found = read_setting(option)
            self.diagnostics += found
            if setting is not None:
                root = self._merge(root, setting)
        for point in over:
            options.append(PREFIX + as_option(point))
            root = self._merge(root, point)
        document = Document(
            self.path,
            root,
            tuple(self.files.values()),
            tuple(options),
            tuple(self.merger.dropped),
            find_changed_orders(first, root),
            self.complete,
        )
        return document, self._list_diagnostics()

    def _list_diagnostics(self) -> list[Diagnostic]:
        """Return all diagnostics. If a file could not be read, leave out those that may be wrong because of this. For
        example, the missing file may have the key that a null removes."""
        merging = [d for d in self.merger.diagnostics if self.complete or d.rests_on != "all files"]
        return list(dict.fromkeys([*self.diagnostics, *merging]))

    def _merge(self, root: Mapping, over: Mapping) -> Mapping:
        expanded = self.rules.expand(over)
        assert isinstance(expanded, Mapping)
        return self.merger.merge(root, expanded)

    def _read(self, path: str, role: str) -> tuple[SourceFile | None, list[Diagnostic]]:
        return (SourceFile(path, self.texts[path], role), []) if path in self.texts else read_file(path, role)

    def _recipe(self) -> _FileTree:
        try:
            file, found = self._read(self.path, "recipe")
        except (OSError, ValueError) as problem:
            reason = explain_os_error(problem) if isinstance(problem, OSError) else "is not a path"
            self.diagnostics.append(unreadable_file(whole(self.path), self.path, reason))
            return _FileTree(None, None)
        self.diagnostics += found
        return _FileTree(None, None) if file is None else self._tree(file, ())

    def _with(self, root: Mapping, path: str) -> Mapping:
        option = f"--with {path}"
        span = Span(option, 1, len("--with ") + 1, 1, len(option) + 1)
        read = self._file(path, path, span, "with", ())
        if read is None or read.own is None:
            self.complete = False
            return root
        if read.base is not None:
            root = self.merger.merge(root, read.base)
        return self.merger.merge(root, drop_entries(read.own, "extends", "fragment"))

    def _tree(self, file: SourceFile, stack: tuple[str, ...]) -> _FileTree:
        """Parse a file, and read the files that it extends. `stack`: real paths of the files from the recipe to the
        file that extends this one."""
        self.files.setdefault(file.path, file)
        root, found = read_text(file.path, file.text)
        self.diagnostics += found
        if root is None:
            return _FileTree(None, None)
        if (foreign := self.rules.foreign(root)) is not None:
            self.diagnostics.append(foreign)
            return _FileTree(None, None)
        expanded = self.rules.expand(root)
        assert isinstance(expanded, Mapping)
        return _FileTree(expanded, self._bases(expanded, file.path, (*stack, os.path.realpath(file.path))))

    def _bases(self, root: Mapping, path: str, stack: tuple[str, ...]) -> Mapping | None:
        """Merge the files that the key `extends` of a file names, from left to right, and return the result. Return
        None if none of them can be read. `root`: the keys of the file. `path`: its path. `stack`: real paths from the
        recipe to this file; each file extends the next."""
        merged: Mapping | None = None
        for name in self._names(root):
            typed = str(name.value)
            base = os.path.normpath(os.path.join(os.path.dirname(path), os.path.expanduser(typed)))
            real = os.path.realpath(base)
            if real in stack:
                chain = [*stack[stack.index(real) :], real]
                self.diagnostics.append(circular_extends(name.span, [os.path.relpath(each) for each in chain]))
                self.complete = False
                continue
            num_found = len(self.diagnostics)
            read = self._file(base, typed, name.span, "base", stack)
            is_outside = self._is_outside(real, stack[0])
            if read is None or read.own is None:
                self.complete = False
                if read is not None and is_outside:  # it may be a private file, so no message may quote it
                    del self.diagnostics[num_found:]
                    self.diagnostics.append(missing_base(name.span, typed, base, "is not a recipe", ()))
                continue
            if is_outside and real not in self._outside:
                self._outside.add(real)
                self.diagnostics.append(base_outside_tree(name.span, base, find_tree(stack[0])))
            if read.base is not None:
                merged = read.base if merged is None else self.merger.merge(merged, read.base)
            merged = self.merger.merge(merged, drop_entries(read.own, "extends", "fragment"))
        return merged

    def _file(self, path: str, typed: str, span: Span, role: str, stack: tuple[str, ...]) -> _FileTree | None:
        self._num_read += 1
        if self._num_read > MAX_FILES:
            self.diagnostics.append(extends_too_long(span, MAX_FILES))
            return None
        try:
            file, found = self._read(path, role)
        except (OSError, ValueError) as problem:
            reason = explain_os_error(problem) if isinstance(problem, OSError) else "is not a path"
            self.diagnostics.append(missing_base(span, typed, path, reason, find_siblings(path, typed)))
            return None
        self.diagnostics += found
        return _FileTree(None, None) if file is None else self._tree(file, stack)

    def _names(self, root: Mapping) -> list[Scalar]:
        """Return the paths that the key `extends` of `root` lists. Report each of its values that is not a path."""
        node = root.get("extends")
        if node is None or (isinstance(node, Scalar) and node.is_empty):
            return []
        names: list[Scalar] = []
        for item in node.items if isinstance(node, Sequence) else (node,):
            text = item.value if isinstance(item, Scalar) and isinstance(item.value, str) else ""
            if not isinstance(item, Scalar) or not text.strip() or "\0" in text:
                found = "a mapping" if isinstance(item, Mapping) else "a list in a list"
                found = f"`{item.text}`" if isinstance(item, Scalar) else found
                if not (isinstance(item, Scalar) and item.is_empty):
                    self.diagnostics.append(wrong_extends(item.span, found))
            elif "{{" in text or "{%" in text:
                self.diagnostics.append(template_in_extends(item.span))
            else:
                names.append(item)
                continue
            self.complete = False
        return names

    def _is_outside(self, real: str, recipe: str) -> bool:
        """Return whether a file is outside the folder tree of the recipe. `real`: the file's path without
        symbolic links. `recipe`: path of the recipe."""
        root = find_tree(recipe)
        return os.path.commonpath([root, real]) != root
