# What judges results, one module a question.
from . import calibration as calibration
from . import compare as compare
from . import density as density
from . import distances as distances
from . import doubts as doubts
from . import draws as draws
from . import findings as findings
from . import inputs as inputs
from . import ksd as ksd
from . import laplace_sds as laplace_sds
from . import loo as loo
from . import metrics as metrics
from . import moments as moments
from . import reference as reference
from . import steps as steps
