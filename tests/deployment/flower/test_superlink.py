"""A SuperLink and two SuperNodes on loopback, as an app from `pyro-fed flower new` runs in earnest.

Its processes wait for one another most of the time, so that the group's other tests run meanwhile: see `deployed`.
"""

import numpy as np
import pytest
from arviz_results import groups_of
from late import late

import pyro_fed as pf
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.experiment import build_federation

az = late("arviz")

pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("flower")]


def test_a_deployment_gives_the_sequential_answer(deployed):
    recipe_file, out, said = deployed.result()
    assert out.exists(), said
    idata = az.from_netcdf(str(out))
    fed, _ = build_federation(library.load_model("linear_regression"), 2, "iid", 0)
    algorithm, same = recipe.load(recipe_file).build(), {"executor": "sequential", "compile": "trace"}
    here = pf.run(algorithm, fed, num_rounds=2, progress=False, audit=False, **same)
    assert np.array_equal(idata.posterior["w"].values, here.posterior["w"].values)
    assert idata.federation["participated"].values.all()
    assert not {"observed_data", "constant_data", "log_likelihood"} & groups_of(idata)
