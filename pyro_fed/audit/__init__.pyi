# The audit: one function a check, each from `Evidence` to sentences.
from .asked import asked as asked
from .audit import CHECKS as CHECKS
from .audit import audit as audit
from .evidence import Evidence as Evidence
from .kept import audit_draws as audit_draws
from .motion import Moments as Moments
from .size import not_audited as not_audited
from .stillness import close_call as close_call
