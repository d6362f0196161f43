"""Agents answer each other's questions about their results: the simulation's figures, and sums alone leave."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from agents_case import NAMES, Rehearsal, peers_file, rows_of
from conjugate import model
from forks import together
from late import late

import pyro_fed as pf
from pyro_fed.analysis.predicting.estimand import estimand_by_rounds
from pyro_fed.analysis.predicting.row_sums import named_questions
from pyro_fed.deployment.policy import verify
from pyro_fed.errors import SettingError
from pyro_fed.recipes.library import load_model
from pyro_fed.results.to_arviz import make_inference_data

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
QUESTIONS = ("squared", "loo", "shifted", "influence", "leave_one_client_out")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Three agents on a path, of which two have policies."""
    folder = tmp_path_factory.mktemp("agents")
    names = NAMES[:3]
    peers_file(folder, names, 'graph = "star"')
    (folder / "model.py").write_text(MODEL)
    module = load_model(folder / "model.py", with_data=False)
    options = {"num_rounds": 3, "num_draws": 400, "questions": QUESTIONS, "file": folder / "model.py"}
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


def test_how_the_others_predict_an_agent_is_that_of_the_simulation_to_the_bit(rehearsal):
    """At an agent's own draws, around the sites that all send it; no row's own number leaves."""
    agents, fed, _ = rehearsal
    for name in NAMES[:3]:
        idata = az.from_netcdf(str(agents.out(name)))
        found = idata["leave_one_client_out"].to_dataframe()
        expected = pf.leave_one_client_out(idata, fed, num_draws=4000, refit=False)
        assert found.index.tolist() == expected.index.tolist() and "elpd_rows" not in found
        for column in ("rows", "elpd", "se", "pareto_k", "by"):
            assert found[column].tolist() == expected[column].tolist(), column


def test_influence_is_that_of_the_simulation(rehearsal):
    agents, fed, _ = rehearsal
    for name in NAMES[:3]:
        idata = az.from_netcdf(str(agents.out(name)))
        found, expected = idata["influence"], pf.influence(idata, fed)
        by_draws = found["by"].values == "draws"
        np.testing.assert_array_equal(by_draws, expected["by"].values == "draws")
        assert by_draws.any()
        for figure in ("shift", "sd_ratio", "influence"):
            np.testing.assert_allclose(found[figure].values[by_draws], expected[figure].values[by_draws], atol=1e-12)


def test_the_ledger_has_the_answers(rehearsal):
    agents, _, _ = rehearsal
    for name in NAMES[:3]:
        lines = verify(agents.folder / f"site-{name}" / "what_left.jsonl")
        answers = [line for line in lines if line["kind"] in ("estimate", "loo", "log_likelihood", "state")]
        kinds = ["estimate", "loo", "estimate", "log_likelihood", "state", "log_likelihood"]
        assert [line["kind"] for line in answers] == ["log_likelihood", *kinds]  # the first is the audit's
        assert all(line["left"] and line["to"] == "neighbours" for line in answers)
        orders = [line["rounds"] for line in answers]  # each answer is an order of its own, for `max_rounds`
        assert orders == list(range(orders[0], orders[0] + len(orders)))


def test_agents_must_ask_the_same_of_the_same_file(rehearsal, tmp_path):
    """Names alone are not enough: a function of the rows may differ. Without estimands the file does not matter."""
    from pyro_fed.deployment.agents.agent import _questions_text

    def said(text, *questions, draws=50):
        (tmp_path / "model.py").write_text(text)
        module = load_model(tmp_path / "model.py", with_data=False)
        return _questions_text(SimpleNamespace(permitted_questions=list(questions), module=module, num_draws=draws))

    other = MODEL.replace("** 2", "** 3")
    assert said(MODEL, "squared") == said(MODEL, "squared") != said(other, "squared") != said(other, "shifted")
    assert said(MODEL, "loo") == said(other, "loo") != said(MODEL)
    assert said(MODEL, "squared") != said(MODEL, "squared", draws=60) and said(MODEL) == said(MODEL, draws=60) == "none"


def test_calibration_is_refused_before_the_run(tmp_path):
    """Its bins are by the draws: an agent would tell bins at each agent's draws, which differ by single rows."""
    from pyro_fed.deployment.agents.agent import Agent, run_agent
    from pyro_fed.deployment.agents.certificates import Identity
    from pyro_fed.deployment.agents.peers import load_peers

    peers = load_peers(peers_file(tmp_path, NAMES[:2], 'graph = "complete"'))
    (tmp_path / "model.py").write_text(MODEL + 'ESTIMANDS["calibration"] = {"by": {"predicted": [0.5, 1.0]}}\n')
    agent = Agent(
        model=model,
        plate="data",
        rows=rows_of(0),
        identity=Identity.load(tmp_path / "certificates", NAMES[0]),
        peers=peers,
        algorithm=pf.P2PVI(),
        questions=("squared", "calibration"),
        module=load_model(tmp_path / "model.py", with_data=False),
    )
    with pytest.raises(SettingError, match="do not answer the estimand 'calibration'"):
        run_agent(agent)


def test_shares_are_those_at_the_draws_of_all_agents(tmp_path):
    """At the agent's own draws all rows are alike; at its neighbour's one has most of the sum."""
    from pyro_fed.deployment.agents.agent_federation import AskedAgents
    from pyro_fed.deployment.agents.links import Links
    from pyro_fed.deployment.agents.peers import LinkSettings

    (tmp_path / "model.py").write_text(MODEL)
    module, told = load_model(tmp_path / "model.py", with_data=False), {}
    x = torch.ones(12, 2)
    x[5, 1] = 101.0
    clients = {"north": (x, torch.zeros(12)), "south": (2 * x, torch.zeros(12))}
    fed = pf.Federation.from_clients(model, clients, plate="data")
    own, other = (np.tile(one, (1, 4, 1)) for one in ([1.0, 0.0], [0.0, 1.0]))
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw", "w_dim_0"], own)})}, {})

    class FakeLinks(Links):
        names = "north", "south"

        def __init__(self):
            self.me, self.settings, self.peers = 0, LinkSettings(), SimpleNamespace(diameter=1)

        def spread(self, at, sent, wait, whole, kind="statement", share=None, cells=None):
            if share is not None:
                told.update(share=share(), cells=cells)
            (name, value), *rest = sent.items()
            value = torch.cat([value, value if share else torch.as_tensor(other, dtype=value.dtype)])
            return {name: value, **{key: torch.cat([one, one]) for key, one in rest}}, torch.ones(2, dtype=bool)

    asked = named_questions(module, fed.problem)["squared"]
    found = estimand_by_rounds(idata, fed, asked, {}, AskedAgents(FakeLinks(), 0))
    assert told["share"] == pytest.approx(101**2 / (11 + 101**2)) and told["cells"] == {"all": 12}
    np.testing.assert_allclose(found.posterior["estimand"], 1.0)
