"""Agents answer each other's questions about their results: the simulation's figures, and sums alone leave."""

from types import SimpleNamespace

import numpy as np
import pytest
from agents_case import NAMES, Rehearsal, peers_file, rows_of
from conjugate import model
from forks import together
from late import late

import pyro_fed as pf
from pyro_fed.deployment.policy import verify
from pyro_fed.recipes.library import load_model

az = late("arviz")
pytestmark = together
#: The model of `conjugate`, with estimands.
MODEL = """
import torch
from conjugate import model

PLATE = "data"


def squared(draw, rows):
    return (rows["x"] @ draw["w"]) ** 2


ESTIMANDS = {"squared": {"f": squared}, "shifted": {"by": "client"}}
"""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Three agents on a path, of which two have policies."""
    folder = tmp_path_factory.mktemp("agents")
    names = NAMES[:3]
    peers_file(folder, names, 'graph = "star"')
    (folder / "model.py").write_text(MODEL)
    module = load_model(folder / "model.py", with_data=False)
    options = {"num_rounds": 3, "questions": ("squared", "loo", "shifted"), "file": folder / "model.py"}
    agents = Rehearsal(folder, pf.P2PVI(), **options)
    for name in names:
        site = folder / f"site-{name}"
        site.mkdir()
        if name == "east":
            (site / "policy.toml").write_text("min_cell = 14\nmax_share = 0.9\n")
        elif name == "south":
            (site / "policy.toml").write_text("min_cell = 13\n")  # of its twelve rows
        agents.start(name, site=site)
    assert agents.join() == dict.fromkeys(names, 0)
    fed = pf.Federation.from_clients(model, {name: rows_of(i) for i, name in enumerate(names)}, plate="data")
    return agents, fed, module


@pytest.mark.parametrize("name", NAMES[:2])
def test_an_agents_estimand_is_the_simulations_at_its_draws(rehearsal, name):
    """To the last bit, at the agent's own draws and over all others' rows, without those that a rule withholds."""
    agents, fed, module = rehearsal
    found = az.from_netcdf(str(agents.out(name)))
    assert not [attr for attr in found.attrs if attr.startswith("no_")], found.attrs
    holders = [k for k, client in enumerate(fed.client_names) if client != "south"]  # its twelve rows are too few
    some = pf.Federation.from_clients(model, {fed.client_names[k]: rows_of(k) for k in holders}, plate="data")
    for question in ("squared", "shifted"):
        expected = pf.estimand(found, some, **module.ESTIMANDS[question]).posterior
        group = found[f"estimand_{question}"]
        np.testing.assert_array_equal(group["estimand"].values, expected["estimand"].values)
        np.testing.assert_array_equal(group["rows"].values, expected["rows"].values)
        assert group.attrs["withheld"] == "south"


def test_leave_one_out_is_the_simulations(rehearsal):
    agents, fed, _ = rehearsal
    for name in NAMES[:3]:
        found = az.from_netcdf(str(agents.out(name)))
        expected = pf.loo(found, fed)
        assert found["loo"].attrs["elpd_loo"] == pytest.approx(expected["elpd_loo"], abs=1e-12)
        assert found["loo"].attrs["p_loo"] == pytest.approx(expected["p_loo"], abs=1e-12)
        assert found["loo"]["good"].values.sum() == expected["k_counts"]["good"]


def test_the_ledger_has_the_answers(rehearsal):
    agents, _, _ = rehearsal
    for name in NAMES[:3]:
        lines = verify(agents.folder / f"site-{name}" / "what_left.jsonl")
        answers = [line for line in lines if line["kind"] in ("estimate", "loo")]
        assert [line["kind"] for line in answers] == ["estimate", "loo", "estimate"]
        assert all(line["left"] and line["to"] == "neighbours" for line in answers)


def test_agents_must_ask_the_same_of_the_same_file(rehearsal, tmp_path):
    """Names alone are not enough: a function of the rows may differ. Without estimands the file does not matter."""
    from pyro_fed.deployment.agents.agent import _questions_text

    def said(text, *questions):
        (tmp_path / "model.py").write_text(text)
        module = load_model(tmp_path / "model.py", with_data=False)
        return _questions_text(SimpleNamespace(asked=list(questions), module=module))

    other = MODEL.replace("** 2", "** 3")
    assert said(MODEL, "squared") == said(MODEL, "squared") != said(other, "squared") != said(other, "shifted")
    assert said(MODEL, "loo") == said(other, "loo") != said(MODEL)
