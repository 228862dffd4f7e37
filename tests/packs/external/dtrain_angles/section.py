"""Section `angles`: notes on the angles of a recipe."""

from declarative_train.recipe.sections.section import Section


class Angles(Section):
    """Angles of the recipe."""

    zero: str = "north"
    """The direction of 0 degrees."""
