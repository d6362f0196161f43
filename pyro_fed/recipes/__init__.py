"""Models and recipes by name or path: an algorithm and its settings as data, in one TOML file."""

from pyro_fed.recipes.library import find_model, find_recipe, list_models, list_recipes, load_model
from pyro_fed.recipes.recipe import Recipe, load

__all__ = ["Recipe", "find_model", "find_recipe", "list_models", "list_recipes", "load", "load_model"]
