"""Clients that bring their own groups, with the groups' rows, against the same data pooled."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

GENERATOR = torch.Generator().manual_seed(5)
GROUPS, ROWS = (2, 1, 3), (5, 1, 3)  # at the second and third clients lengths do not tell groups and rows apart
INDEX = [torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0]), torch.tensor([2, 0, 2])]


def houses(floor, county_idx, uranium, y, scale, counties):
    g = pyro.sample("g", dist.Normal(torch.zeros(3), scale).to_event(1))
    with pyro.plate("county", counties):
        a = pyro.sample("a", dist.Normal(g[0] + g[1] * uranium, 0.5))
    with pyro.plate("obs", len(floor)):
        pyro.sample("y", dist.Normal(a[county_idx] + g[2] * floor, 0.7), obs=y)


def normal(count):
    return torch.randn(count, generator=GENERATOR, dtype=torch.float64)


SCALE = torch.ones(3, dtype=torch.float64)
CLIENTS = [
    (normal(rows), index, normal(groups), normal(rows), SCALE, groups)
    for groups, rows, index in zip(GROUPS, ROWS, INDEX, strict=True)
]
POOLED = (
    *(torch.cat([client[i] for client in CLIENTS]) for i in (0,)),
    torch.cat([INDEX[0], INDEX[1] + 2, INDEX[2] + 3]),
    *(torch.cat([client[i] for client in CLIENTS]) for i in (2, 3)),
    SCALE,
    6,
)
OPTIONS = {"plate": "county", "rows": {"obs": "county_idx"}}


def test_data_apart_and_data_pooled_are_the_same():
    apart = pf.Federation.from_clients(houses, {"north": CLIENTS[0], "mid": CLIENTS[1], "south": CLIENTS[2]}, **OPTIONS)
    parts = pf.partition.Explicit([[0, 1], [2], [3, 4, 5]])
    pooled = pf.Federation(houses, POOLED, partition=parts, **OPTIONS)
    assert apart.client_names == ["north", "mid", "south"]
    for one, other in zip(apart.client_rows, pooled.client_rows, strict=True):
        assert torch.equal(one, other)
    z = 0.3 * normal(apart.problem.dim)
    assert torch.equal(apart.problem.pointwise_log_lik(z), pooled.problem.pointwise_log_lik(z))
    for k, (floor, index, uranium, y, *_) in enumerate(CLIENTS):
        mine = apart.client_args(k)[0]
        order = index.argsort(stable=True)  # a client's rows stand group by group
        for value, expected in zip(mine[:4], (floor[order], index[order], uranium, y[order]), strict=True):
            assert torch.equal(value, expected)


def test_a_run_gives_the_same_posterior():
    quiet = {"progress": False, "num_draws": 5, "compile": "off", "audit": False}
    first = pf.run(pf.FedEP(), pf.Federation.from_clients(houses, CLIENTS, **OPTIONS), **quiet)
    parts = pf.partition.Explicit([[0, 1], [2], [3, 4, 5]])
    second = pf.run(pf.FedEP(), pf.Federation(houses, POOLED, partition=parts, **OPTIONS), **quiet)
    for group in ("posterior", "log_likelihood", "observed_data"):
        for name, values in first[group].items():
            assert (values.values == second[group][name].values).all()


def changed(k, i, value):
    clients = [list(client) for client in CLIENTS]
    clients[k][i] = value
    return [tuple(client) for client in clients]


@pytest.mark.parametrize(
    ("clients", "error", "message"),
    [
        (
            changed(2, 1, torch.tensor([3, 0, 2])),
            pf.errors.DataError,
            "'county_idx' at client 2 must .* received 0 to 3",
        ),
        (changed(1, 1, torch.tensor([0.5])), pf.errors.DataError, "at client 1 says to which element.*whole numbers"),
        (
            changed(1, 4, 2 * SCALE),
            pf.errors.DataError,
            "argument 'scale' is not split by rows.*clients 0 and 1 differ",
        ),
        (
            changed(2, 3, torch.full((3,), torch.nan)),
            pf.errors.DataError,
            r"client 2, argument 'y'\[0\] is NaN \(3 of 3",
        ),
        (
            changed(1, 0, CLIENTS[1][0][:0]),
            pf.errors.DataError,
            "'floor' at client 1 has no rows: leave the client out",
        ),
        (CLIENTS[1:2], pf.errors.ModelError, "plates 'obs' and 'county' have the same size 1.*list them"),
    ],
)
def test_what_is_wrong_names_the_client(clients, error, message):
    with pytest.raises(error, match=message):
        pf.Federation.from_clients(houses, clients, **OPTIONS)


def test_the_same_client_twice_is_reported():
    with pytest.warns(UserWarning, match="clients a and b have identical data"):
        pf.Federation.from_clients(houses, {"a": CLIENTS[0], "b": CLIENTS[0]}, **OPTIONS)
