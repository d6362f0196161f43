"""The posteriors, by kind of failure."""

from __future__ import annotations

from benchmarks.trust.posterior import Posterior
from benchmarks.trust.posteriors.curves import CURVES
from benchmarks.trust.posteriors.everyday import EVERYDAY
from benchmarks.trust.posteriors.modes import MODES
from benchmarks.trust.posteriors.regressions import REGRESSIONS
from benchmarks.trust.posteriors.scales import SCALES
from benchmarks.trust.posteriors.supports import SUPPORTS
from benchmarks.trust.posteriors.unsplittable import UNSPLITTABLE

POSTERIORS: dict[str, Posterior] = {
    posterior.name: posterior
    for posterior in (*REGRESSIONS, *SCALES, *MODES, *CURVES, *SUPPORTS, *EVERYDAY, *UNSPLITTABLE)
}
