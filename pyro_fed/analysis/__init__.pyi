# What one does with results; `pyro_fed` offers these names too.
from .criticism.checks import check_clients as check_clients
from .criticism.contributions import contributions as contributions
from .criticism.influence import influence as influence
from .criticism.leave_out import leave_one_client_out as leave_one_client_out
from .criticism.loo import loo as loo
from .criticism.loo import waic as waic
from .criticism.power_scaling import power_scale as power_scale
from .criticism.sbc import sbc as sbc
from .judging import metrics as metrics
from .judging.compare import compare as compare
from .judging.findings import findings as findings
from .judging.ksd import ksd as ksd
from .judging.steps import steps as steps
from .plots import *
from .plots.model_graph import render_model as render_model
from .predicting.estimand import estimand as estimand
from .predicting.own_rows import own_effects as own_effects
from .predicting.predict import posterior_epred as posterior_epred
from .predicting.predict import predict as predict
from .predicting.prior import prior_predict as prior_predict
from .report.overview import Overview as Overview
from .report.page import write_report as write_report
