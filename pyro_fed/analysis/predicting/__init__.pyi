# Predictions, one module a question.
from . import groups as groups
from . import predict as predict
from . import prior as prior
