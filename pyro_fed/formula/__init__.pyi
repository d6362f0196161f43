# Regressions by a formula.
from .regression import GLM as GLM
from .regression import glm as glm
