"""Measures of predictions, of draws and of runs: `pf.metrics`."""

from pyro_fed.analysis.criticism.loo import waic
from pyro_fed.analysis.judging.calibration import calibration_table
from pyro_fed.analysis.judging.findings import steps
from pyro_fed.analysis.judging.ksd import ksd
from pyro_fed.analysis.judging.metrics import accuracy, log_predictive_density, multilabel, rmse, test_metrics
from pyro_fed.conventions.doors import public_dir

__all__ = [
    "accuracy",
    "calibration_table",
    "ksd",
    "log_predictive_density",
    "multilabel",
    "rmse",
    "steps",
    "test_metrics",
    "waic",
]
__dir__ = public_dir(__all__)
