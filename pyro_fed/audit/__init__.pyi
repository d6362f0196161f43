# The audit: one function a check, each from `Evidence` to sentences.
from .audit import CHECKS as CHECKS
from .audit import audit_draws as audit_draws
from .audit import found_right as found_right
from .audit import not_audited as not_audited
from .audit import of_density as of_density
from .audit import of_draws as of_draws
from .audit import settings_findings as settings_findings
from .evidence import Evidence as Evidence
from .modes.angles import as_numbers as as_numbers
from .moment_findings import at_limit as at_limit
from .moment_findings import close_call as close_call
from .moment_findings import missed_aim as missed_aim
from .moment_findings import off_aim as off_aim
from .moment_findings import perhaps_wrong as perhaps_wrong
from .moments import Moments as Moments
from .weighted_points import few_draws_tell as few_draws_tell
from .weighted_points import reported_without_variance as reported_without_variance
