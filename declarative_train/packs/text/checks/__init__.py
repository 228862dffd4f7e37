"""Checks of the pack `text`: code -> `family.function`, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "R109": "samples.cannot_write",
}
