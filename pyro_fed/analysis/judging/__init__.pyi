# What judges results, one module a question.
from . import calibration as calibration
from . import compare as compare
from . import density as density
from . import distances as distances
from . import doubts as doubts
from . import draws as draws
from . import findings as findings
from . import ksd as ksd
from . import metrics as metrics
from . import moments as moments
