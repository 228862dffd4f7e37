"""Rules of this package: code -> `family.function`, or a file of one rule, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "I001": "ignores.unused_ignore",
    "I002": "ignores.ignored_error",
    "I003": "ignores.ignore_without_code",
}
