# The audit: one function a check, each from `Evidence` to sentences.
from .audit import CHECKS as CHECKS
from .audit import audit_draws as audit_draws
from .audit import density_findings as density_findings
from .audit import draw_findings as draw_findings
from .audit import is_confirmed_right as is_confirmed_right
from .audit import not_audited as not_audited
from .audit import settings_findings as settings_findings
from .evidence import Evidence as Evidence
from .modes.angles import angle_notes as angle_notes
from .moment_findings import aim_error as aim_error
from .moment_findings import missed_aim_findings as missed_aim_findings
from .moment_findings import near_limit_findings as near_limit_findings
from .moment_findings import possibly_wrong_findings as possibly_wrong_findings
from .moment_findings import sd_at_limit_findings as sd_at_limit_findings
from .moments import Moments as Moments
from .weighted_points import infinite_variance_findings as infinite_variance_findings
from .weighted_points import undetermined_sd_findings as undetermined_sd_findings
