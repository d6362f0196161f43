# Models and recipes by name or path.
from .library import find_model as find_model
from .library import find_recipe as find_recipe
from .library import list_models as list_models
from .library import list_recipes as list_recipes
from .library import load_model as load_model
from .recipe import Recipe as Recipe
from .recipe import load as load
