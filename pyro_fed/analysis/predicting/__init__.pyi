# Predictions, one module a question.
from . import estimand as estimand
from . import groups as groups
from . import one_round as one_round
from . import own_rows as own_rows
from . import predict as predict
from . import row_sums as row_sums
