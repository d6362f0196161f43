"""All forms."""

from data_forms import DATA
from model_forms import MODELS

FORMS = [*MODELS, *DATA]
