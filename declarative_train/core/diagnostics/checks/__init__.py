"""Table of the diagnostic codes of this package: code -> `module.function` in this folder, or a module with one check.
The docstring of the function or module is the manual page of the code."""

RULES: dict[str, str] = {
    "I001": "ignores.unused_ignore",
    "I002": "ignores.ignored_error",
    "I003": "ignores.ignore_without_code",
}
