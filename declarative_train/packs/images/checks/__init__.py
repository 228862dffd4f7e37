"""Checks of the pack `images`: code -> `family.function`, whose docstring is its manual page."""

RULES: dict[str, str] = {
    "D043": "moved.target_stays",
    "D044": "moved.scaled_twice",
}
