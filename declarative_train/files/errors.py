"""Errors of the files and sources that a recipe names."""

from __future__ import annotations


class SourceError(Exception):
    """A source that cannot be opened or read: its message, and data to find its place in the recipe.

    `problem`: not_found, no_match (a glob), no_file_system, unreadable, different_columns, plugin (its code). `known`
    are the existing names, where `name` was looked for. `below`: path in the recipe from the opened source to the
    failing one, if that is nested in it.
    """

    below: str = ""

    def __init__(
        self, problem: str, message: str, *, help: str | None = None, name: str = "", known: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.problem = problem
        self.help = help
        self.name = name
        self.known = known
