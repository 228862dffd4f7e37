"""Checks of the pack `images`: {code: `file.function`}. The function's docstring is the manual page of the code."""

RULES: dict[str, str] = {
    "D043": "moved.target_stays",
    "D044": "moved.scaled_twice",
}
