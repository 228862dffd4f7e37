"""The rules of this room: code -> module. A rule is one file, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "I001": "unused_ignore",
    "I002": "ignored_error",
    "I003": "ignore_without_code",
}
