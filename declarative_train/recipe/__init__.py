"""Recipes: what the user asked for; YAML documents read into checked recipes."""

from declarative_train.recipe.load import Loaded, load
from declarative_train.recipe.recipe import Recipe

__all__ = ["Loaded", "Recipe", "load"]
