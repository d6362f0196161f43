# What judges results, one module a question.
from . import calibration as calibration
from . import compare as compare
from . import distances as distances
from . import doubts as doubts
from . import ksd as ksd
from . import laplace_sds as laplace_sds
from . import metrics as metrics
from . import predict as predict
from . import steps as steps
