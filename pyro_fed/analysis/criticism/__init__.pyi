# Model criticism, one module a question.
from . import checks as checks
from . import influence as influence
from . import leave_out as leave_out
from . import loo as loo
from . import power_scaling as power_scaling
from . import sbc as sbc
