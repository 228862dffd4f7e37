"""Errors of files and sources that a recipe names."""

from __future__ import annotations


class SourceError(Exception):
    """A source cannot be opened or read: the words for the user, and what the data room needs to place them.

    `problem`: not_found, no_match (a glob), no_file_system, unreadable, different_columns, plugin (its code). `known`
    are the names that exist where `name` was looked for. `below`: the source stands so much deeper in the recipe
    than the one that was opened.
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
