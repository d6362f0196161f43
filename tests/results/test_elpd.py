"""Leave-one-out by sums of clients is that of the installed ArviZ, whose names and divisors change with its version."""

import conjugate
import numpy as np
import pytest
from arviz_results import CRITERION, criterion
from late import late

import pyro_fed as pf

az = late("arviz")
ARVIZ = pytest.mark.filterwarnings("ignore:The inplace keyword")  # ArviZ's calls of pandas
QUIET = {"progress": False, "num_draws": 300}


@pytest.fixture(scope="module")
def results():
    x, y = conjugate.data()
    feds = [pf.Federation(conjugate.model, (x[:, :d], y), plate="data", num_clients=3) for d in (3, 2)]
    return [(pf.run(pf.FedEP(), fed, **QUIET), fed) for fed in feds]


@ARVIZ
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the posterior, which lacks a column
def test_fields_and_comparison_are_those_of_the_installed_arviz(results):
    ours = {str(i): pf.loo(*each, pointwise=True) for i, each in enumerate(results)}
    theirs = {str(i): az.loo(idata, pointwise=True) for i, (idata, _) in enumerate(results)}
    for name, found in ours.items():
        assert type(found) is type(theirs[name])
        for field in (*CRITERION, "elpd_i", "pareto_k"):
            np.testing.assert_allclose(
                criterion(found, field), criterion(theirs[name], field), atol=1e-9, err_msg=field
            )
    compared, expected = az.compare(ours), az.compare(theirs)
    assert list(compared.index) == list(expected.index)
    for column in expected.select_dtypes("number"):
        np.testing.assert_allclose(compared[column], expected[column], atol=1e-6, err_msg=column)


@ARVIZ
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_waic_is_compared_too(results):
    found = {str(i): pf.metrics.waic(*each, pointwise=True) for i, each in enumerate(results)}
    assert list(az.compare(found).index) == ["0", "1"]
    assert "elpd" in str(found["0"])
