# What one does with results; `pyro_fed` offers these names too.
from .judging import metrics as metrics
from .judging.compare import compare as compare
from .judging.ksd import ksd as ksd
from .judging.predict import predict as predict
from .judging.steps import steps as steps
from .plots import *
from .report.overview import Overview as Overview
