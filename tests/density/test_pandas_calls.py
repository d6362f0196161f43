"""Methods of pandas that a model calls on its columns, which are tensors while it runs: the density is that by hand."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

FRAME = pd.DataFrame({"x": [0.5, np.nan, -1.0, 2.0], "n": [1, 2, 3, 4], "y": [0.1, 0.2, -0.3, 0.4]})
MISSING = torch.tensor([False, True, False, False])
X = torch.tensor([0.5, 0.0, -1.0, 2.0]).double()

CALLS = {
    "isna": (lambda x, n: x.isna(), MISSING),
    "isnull": (lambda x, n: x.isnull(), MISSING),
    "notna": (lambda x, n: x.notna(), ~MISSING),
    "notnull": (lambda x, n: x.notnull(), ~MISSING),
    "fillna": (lambda x, n: x.fillna(0.0), X),
    "values": (lambda x, n: torch.tensor(n.values), torch.tensor([1, 2, 3, 4])),
    "to_numpy": (lambda x, n: torch.from_numpy(n.to_numpy()), torch.tensor([1, 2, 3, 4])),
    "astype": (lambda x, n: n.astype("float64") / 2, torch.tensor([0.5, 1.0, 1.5, 2.0])),
    "comparison": (lambda x, n: (n == 3) | (n != 1), torch.tensor([False, True, True, True])),
}


@pytest.mark.filterwarnings("ignore:.*missing")
@pytest.mark.parametrize("name", CALLS)
def test_a_method_of_a_column_is_that_of_pandas(name):
    call, values = CALLS[name]

    def model(x, n, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w * call(x, n), 1.0), obs=y)

    columns = (FRAME["x"], FRAME["n"], FRAME["y"])
    problem = pf.Federation(model, columns, plate="data", num_clients=2, dtype=torch.float64).problem
    w = torch.tensor([0.7]).double()
    by_hand = dist.Normal(0.7 * values.double(), 1.0).log_prob(torch.tensor(FRAME["y"].values)).sum()
    assert float(problem.log_parts(w, problem.all_rows)[1].sum()) == pytest.approx(float(by_hand), rel=1e-6)
