"""The call that a finding advises for medians works with the installed ArviZ."""

from algorithms import unequal_lines
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.ops.arviz_versions import MEDIANS


def test_the_advised_call_gives_medians():
    import arviz as az

    table = eval(MEDIANS, {"az": az, "idata": quiet(pf.FedLaplace(), unequal_lines(), num_rounds=20)})
    assert "median" in table.columns
