"""Labels of groups are the clients' names, and travel to the result."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from test_groups import COUNTY, FLOOR, URANIUM, J, Y, houses

import pyro_fed as pf
from pyro_fed.recipes import library

QUIET = {"progress": False, "compile": "off", "audit": False, "num_draws": 20}


def logistic():
    module = library.load_model("linear_regression")
    return module, module.load_data()[0]


def test_clients_are_called_by_their_groups():
    module, args = logistic()
    count = len(args[0])
    labels = np.array(["Dresden", "Aachen", "Celle"])[np.arange(count) % 3]
    fed = pf.Federation(module.model, args, plate=module.PLATE, partition=pf.partition.ByGroup(by=labels))
    assert fed.client_names == ["Aachen", "Celle", "Dresden"]
    assert list(fed.summary().index) == fed.client_names
    rest = fed.without("Celle")
    assert rest.client_names == ["Aachen", "Dresden"]
    assert rest.num_rows == int((labels != "Celle").sum())
    fewer = pf.Federation(
        module.model, args, plate=module.PLATE, num_clients=2, partition=pf.partition.ByGroup(by=labels)
    )
    assert fewer.client_names == ["0", "1"]


NAMES = ["Anoka", "Becker", "Cass", "Dodge", "Fillmore", "Goodhue"]
ARGS = (FLOOR, COUNTY, URANIUM, Y, J)


def counties(**options):
    options = {"partition": pf.partition.ByGroup(by=NAMES)} | options
    return pf.Federation(houses, ARGS, plate="county", rows={"obs": "county_idx"}, **options)


def test_groups_have_their_rows_counted_and_their_names_in_the_result():
    fed = counties()
    counts = torch.bincount(COUNTY, minlength=J).tolist()
    table = fed.summary()
    assert table["rows"].tolist() == counts
    assert table["county"].tolist() == [1] * J
    assert table["share"].sum() == pytest.approx(1.0)
    idata = pf.run(pf.FedEP(), fed, **QUIET)
    assert idata["posterior"]["a"]["county"].values.tolist() == NAMES
    constant = idata["constant_data"]
    assert constant["county_idx"].values.tolist() == COUNTY.tolist()
    assert constant["county_idx_label"].values.tolist() == [NAMES[i] for i in COUNTY]
    assert float(idata["posterior"]["a"].sel(county="Cass").mean()) == pytest.approx(
        float(idata["posterior"]["a"].isel(county=2).mean())
    )


def test_a_dimension_that_has_its_plates_name_already_is_said():
    with pytest.raises(
        pf.errors.SettingError, match=r"has 0 dimension\(s\) to be named: the others .* plates, \['county'\]"
    ):
        counties(dims={"a": ["county"]})


def test_the_users_labels_count():
    fed = counties(coords={"county": list("abcdef")})
    assert fed.coords["county"] == list("abcdef")
    assert fed.client_names == NAMES
    pairs = counties(partition=None, num_clients=2)
    assert pairs.client_names == ["0", "1"]
    assert "county" not in pairs.coords


def test_clients_of_one_group_each_name_it():
    mine = {
        name: (FLOOR[j == COUNTY], COUNTY[j == COUNTY] * 0, URANIUM[j : j + 1], Y[j == COUNTY], 1)
        for j, name in enumerate(NAMES)
        if j != 3
    }
    fed = pf.Federation.from_clients(houses, mine, plate="county", rows={"obs": "county_idx"})
    assert fed.coords["county"] == [name for name in NAMES if name != "Dodge"]


def test_a_group_leaves_with_its_rows():
    """The density of those that are left, also where the number of groups is an argument."""
    fed = counties()
    rest = fed.without("Cass", "Goodhue")
    kept = [j for j in range(J) if NAMES[j] not in ("Cass", "Goodhue")]
    assert rest.client_names == [NAMES[j] for j in kept] == rest.coords["county"]
    assert rest.summary()["rows"].tolist() == [int((j == COUNTY).sum()) for j in kept]
    z = 0.3 * torch.randn(4, fed.problem.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = fed.problem.pointwise_log_lik(z)[:, kept]
    torch.testing.assert_close(rest.problem.pointwise_log_lik(z), expected)


def test_a_number_of_groups_that_is_no_argument_cannot_change():
    def fixed(floor, county_idx, uranium, y):
        return houses(floor, county_idx, uranium, y, J)

    fed = pf.Federation(fixed, (FLOOR, COUNTY, URANIUM, Y), plate="county", rows={"obs": "county_idx"}, num_clients=3)
    with pytest.raises(pf.errors.DataError, match="plate 'county' has 6 elements whatever its arguments are"):
        fed.without("1")


LEVELS = {"Zell": 10.0, "Aue": -10.0, "Bonn": 3.0, "Celle": -3.0}


def groups_of(hospital, y, count):
    """A mean of each hospital, about a common one."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("hospitals", count):
        a = pyro.sample("a", dist.Normal(mu, 10.0))
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.Normal(a[hospital], 1.0), obs=y)


@pytest.mark.filterwarnings("ignore:clients Bonn have no rows")
@pytest.mark.parametrize(
    ("by", "without", "kind"),
    [
        ("partition", None, str),
        ("partition", "Bonn", "category"),
        ("coords", None, "category"),
        ("coords", "Bonn", str),
    ],
)
def test_each_group_keeps_its_own_name(by, without, kind):
    """In whatever order the names are given, and though a hospital has no rows: its effect is then the prior's."""
    hospital = pd.Series([name for name in [*LEVELS] * 15 if name != without])
    y = torch.tensor([LEVELS[name] for name in hospital], dtype=torch.float64)
    names = {"coords": {"hospitals": [*LEVELS]}, "num_clients": 2}
    if by == "partition":
        names = {"partition": pf.partition.ByGroup([*LEVELS])}
    fed = pf.Federation(
        groups_of, (hospital.astype(kind), y, 4), plate="hospitals", rows={"patients": "hospital"}, **names
    )
    means = pf.run(pf.FedEP(), fed, **QUIET | {"num_draws": 400}).posterior["a"].mean(("chain", "draw")).to_series()
    for name, level in LEVELS.items():
        # Six standard errors of 400 draws of the prior's SD of 10, and of 15 rows of SD 1.
        assert abs(means[name] - level) < 2 if name != without else abs(means[name]) < 3
    if by == "partition":
        rows = fed.summary()["rows"]
        assert all(rows[name] == (hospital == name).sum() for name in LEVELS)


def test_names_in_two_orders_are_refused():
    hospital, y = pd.Series([*LEVELS] * 3), torch.zeros(12)
    nested = {"plate": "hospitals", "rows": {"patients": "hospital"}}
    with pytest.raises(pf.errors.SettingError, match="the same names in another order"):
        by, coords = pf.partition.ByGroup([*LEVELS]), {"hospitals": sorted(LEVELS)}
        pf.Federation(groups_of, (hospital, y, 4), partition=by, coords=coords, **nested)
    with pytest.raises(pf.errors.DataError, match="argument 'hospital' has the labels Zell, which are not among"):
        pf.Federation(
            groups_of, (hospital, y, 4), partition=pf.partition.ByGroup(["Aue", "Bonn", "Celle", "Z"]), **nested
        )


def test_coordinates_name_what_a_column_of_text_numbers():
    """Effects outside of the partitioned plate: their names are the user's, in the user's order."""
    hospital = pd.Series([*LEVELS] * 15)
    y = torch.tensor([LEVELS[name] for name in hospital], dtype=torch.float64)
    fed = pf.Federation(groups_of, (hospital, y, 4), plate="patients", num_clients=2, coords={"hospitals": [*LEVELS]})
    means = pf.run(pf.FedEP(), fed, **QUIET).posterior["a"].mean(("chain", "draw")).to_series()
    assert all(abs(means[name] - level) < 2 for name, level in LEVELS.items())
    ordered = pd.Categorical(hospital, categories=["Celle", "Bonn", "Aue", "Zell"])
    with pytest.raises(pf.errors.SettingError, match="give all in the order of the codes"):
        pf.Federation(groups_of, (ordered, y, 4), plate="patients", num_clients=2, coords={"hospitals": [*LEVELS]})


def test_a_plate_of_groups_by_group_has_a_client_each():
    fed = counties(partition=pf.partition.ByGroup())
    assert fed.num_clients == J
    assert fed.summary()["county"].tolist() == [1] * J
