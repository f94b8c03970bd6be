"""Recipes: an experiment as YAML, where section = fluent method and key = keyword."""

from rllib_llm.recipes.names import shipped_recipes
from rllib_llm.recipes.recipe import Recipe, StagedRecipe, load_recipe, recipe_from_dict

__all__ = [
    "Recipe",
    "StagedRecipe",
    "load_recipe",
    "recipe_from_dict",
    "shipped_recipes",
]
