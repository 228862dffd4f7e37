"""Recipes: YAML documents are converted into checked, frozen objects."""

from declarative_train.recipe.load import Loaded, load
from declarative_train.recipe.recipe import Recipe

__all__ = ["Loaded", "Recipe", "load"]
