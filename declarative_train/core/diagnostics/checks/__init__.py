"""Table of the diagnostic codes of this package. Each value names a function in this folder, as `module.function`. The
function makes the message; its docstring is the manual page of the code."""

RULES: dict[str, str] = {
    "I001": "ignores.unused_ignore",
    "I002": "ignores.ignored_error",
    "I003": "ignores.ignore_without_code",
}
