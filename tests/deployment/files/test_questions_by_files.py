"""Questions about a result by files: the simulation's figures, and nothing of a row or a small group leaves."""

import re
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from files_case import SITES, Case, recipe_text

import pyro_fed as pf
from pyro_fed.analysis.criticism.influence import influence_by_weights
from pyro_fed.audit.client_sites import client_log_likelihoods
from pyro_fed.deployment.files import ask_sites
from pyro_fed.deployment.remote.questions import check_questions
from pyro_fed.errors import PolicyError, ProtocolError, SettingError
from pyro_fed.recipes.library import load_model
from pyro_fed.results.to_arviz import unconstrained_draws

pytestmark = [
    pytest.mark.skipif(find_spec("cryptography") is None, reason="needs cryptography"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of so short a run, and of withheld groups
]
MODEL = """
import pyro
import pyro.distributions as dist
import torch

PLATE = "patients"


def model(age, sex, treated, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    odds = pyro.deterministic("odds", w[2].exp())
    with pyro.plate("patients", len(age)):
        pyro.sample("y", dist.Bernoulli(logits=w[0] + w[1] * age + torch.log(odds) * treated), obs=y)


def older(draw, rows):
    return torch.sigmoid(draw["w"][0] + draw["w"][1] * (rows["age"] + 1) + draw["odds"].log() * rows["treated"])


ESTIMANDS = {
    "risk": {"do": {"treated": [0, 1]}, "by": {"sex": [0, 1, 2]}},
    "hospital": {"by": "client"},
    "older": {"f": older},
    "last": {"f": older},
    "calibration": {"by": {"predicted": [0.4, 0.5, 0.6, 1.0]}},
    "check": {"replicated": True, "by": "client"},
}
"""
#: A value that no other number of a study contains: as float64 it is eight known bytes.
MARKED = 0.7306140312846521
RNG = np.random.default_rng(0)
ROWS = [
    (
        np.append(RNG.normal(size=n - 1), MARKED + k),
        sex,
        RNG.integers(0, 2, n),
        RNG.integers(0, 2, n).astype(float),
    )
    for k, (n, sex) in enumerate(
        [
            (30, np.repeat([0, 1, 2], [14, 10, 6])),
            (24, np.repeat([0, 1, 2], [10, 2, 12])),  # two rows of the group 1
            (20, np.repeat([0, 1], [10, 10])),  # none of the group 2
        ]
    )
]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A study with a result; south has a policy."""
    case = Case(tmp_path_factory.mktemp("study"), recipe_text("FedLaplace", "num_draws = 40"), ROWS, MODEL)
    (case.folder / "south" / "study").mkdir()
    (case.folder / "south" / "study" / "policy.toml").write_text("min_cell = 5\n")
    case.finish()
    return case


def asked(case, name):
    return case.finish(ask_sites(case.study, name))[0]


def simulation(case):
    module = load_model(case.study / "model.py", with_data=False)
    fed = pf.Federation.from_clients(
        module.model, dict(zip(("north", "south", "west"), ROWS, strict=True)), plate=module.PLATE
    )
    return fed, module.ESTIMANDS


@pytest.mark.parametrize("name", ["hospital", "older", "check"])
def test_the_simulations_estimand_to_the_bit(case, name):
    found = asked(case, name)
    fed, estimands = simulation(case)
    expected = pf.estimand(found, fed, **estimands[name]).posterior
    np.testing.assert_array_equal(found[f"estimand_{name}"]["estimand"].values, expected["estimand"].values)
    np.testing.assert_array_equal(found[f"estimand_{name}"]["rows"].values, expected["rows"].values)
    assert found[f"estimand_{name}"]["estimand"].dims == expected["estimand"].dims


def test_calibration_by_files_is_that_of_the_simulation(case):
    """To the last bit; south's rule leaves out its bins of fewer than five ones or zeros."""
    found = asked(case, "calibration")
    fed, estimands = simulation(case)
    group = found["estimand_calibration"]
    expected = pf.estimand(found, fed, **estimands["calibration"]).posterior
    for name in ("estimand", "observed", "rows"):
        whole = {"client": ["north", "west"]}
        np.testing.assert_array_equal(group[name].sel(whole), expected[name].sel(whole))
    south = expected.sel(client="south")
    ones, rows = (south["observed"] * south["rows"]).fillna(0).round().values, south["rows"].values
    small = (((ones > 0) & (ones < 5)) | ((rows > ones) & (rows - ones < 5))).any()
    assert small and (group["rows"].sel(client="south") == 0).any() and "south predicted=" in group.attrs["withheld"]
    table = pf.metrics.calibration_table(found, "calibration")
    assert table["rows"][table["client"] == "overall"].sum() == group["rows"].values.sum() < 74


def test_a_group_below_the_sites_minimum_is_withheld_by_name(case):
    """With the smallest other group, since south's number of rows is known: the sums are those of the others."""
    found = asked(case, "risk")["estimand_risk"]
    assert found.attrs["withheld"] == "south sex=0; south sex=1"
    rows = {0: 14 + 10, 1: 10 + 10, 2: 6 + 12}
    assert dict(zip(found["sex"].values.tolist(), found["rows"].values.tolist(), strict=True)) == rows
    w = asked(case, "risk").posterior["w"].values[0]
    for group, sites in {0: (0, 2), 1: (0, 2), 2: (0, 1)}.items():
        age = np.concatenate([ROWS[k][0][ROWS[k][1] == group] for k in sites])
        for treated in (0, 1):
            logits = w[:, :1] + w[:, 1:2] * age + w[:, 2:] * treated
            risk = (1 / (1 + np.exp(-logits))).mean(1)
            values = found["estimand"].sel(sex=group, treated=treated).values[0]
            np.testing.assert_allclose(values, risk, rtol=1e-6)


def test_what_leaves_has_no_row_and_is_in_the_ledger(case):
    """The marked values are in none of the files that sites have mailed, in no precision."""
    from pyro_fed.deployment.policy import verify

    asked(case, "older")
    marks = [np.array(MARKED + k, dtype).tobytes() for k in range(3) for dtype in ("f8", "f4")]
    mailed = [path.read_bytes() for path in case.mail.glob("*.study")]
    assert len(mailed) > 6 and not [data for data in mailed for mark in marks if mark in data or b"0.730614" in data]
    lines = verify(case.folder / "south" / "study" / "what_left.jsonl")
    assert [line["kind"] for line in lines if line["left"]][-1] == "estimate"
    assert any(mark in (case.folder / "north" / "rows.npz").read_bytes() for mark in marks)


def test_leave_one_out_by_files_is_that_of_the_simulation(case):
    found = asked(case, "loo")
    expected = pf.loo(found, simulation(case)[0])
    assert found["loo"].attrs["elpd_loo"] == pytest.approx(expected["elpd_loo"], abs=1e-9)
    assert found["loo"].attrs["se"] == pytest.approx(expected["se"], abs=1e-9)
    assert "estimand_older" in asked(case, "older")


def test_the_others_predict_a_site_as_in_the_simulation(case):
    """Log-likelihoods at 4,000 points leave, all rows of a site together, through its gate; influence needs none."""
    from pyro_fed.deployment.policy import verify

    found = asked(case, "leave_one_client_out")
    expected = pf.leave_one_client_out(found, simulation(case)[0], num_draws=4000, refit=False)
    group = found["leave_one_client_out"].to_dataframe()
    assert group.index.tolist() == expected.index.tolist() and "elpd_rows" not in group
    assert group["by"].tolist() == expected["by"].tolist() and group["rows"].tolist() == [30, 24, 20]
    for name in ("elpd", "se", "pareto_k"):
        np.testing.assert_array_equal(group[name], expected[name])
    ledger = verify(case.folder / "south" / "study" / "what_left.jsonl")
    kinds = [line["kind"] for line in ledger]
    line = ledger[len(kinds) - 1 - kinds[::-1].index("log_likelihood")]
    assert line["numbers"] == 4000 and line["left"]
    marks = [np.array(MARKED + k, dtype).tobytes() for k in range(3) for dtype in ("f8", "f4")]
    assert not [path for path in case.mail.glob("*.study") for mark in marks if mark in path.read_bytes()]
    with pytest.raises(SettingError, match="needs no exchange for the influence"):
        ask_sites(case.study, "influence")
    assert pf.influence(found)["influence"].sizes["client"] == 3


def test_a_recipe_without_sites_asks_for_their_influence(tmp_path):
    """By weights of its particles, as in one place; how well the others predict a site needs what it has not left."""
    settings = {"num_particles": 120, "local_steps": 5, "distill_steps": 5}
    published = Case(tmp_path, recipe_text("PaperDSVGD", "num_rounds = 2", **settings), ROWS, MODEL)
    assert "sites" not in published.finish()[0]
    with pytest.raises(SettingError, match="this recipe leaves none"):
        ask_sites(published.study, "leave_one_client_out")
    found = asked(published, "influence")
    fed = simulation(published)[0]
    draws = unconstrained_draws(found, fed.problem)
    expected = influence_by_weights(draws, client_log_likelihoods(fed, draws), list(SITES), ["w"] * 3)
    for name in ("shift", "sd_ratio", "influence", "pareto_k"):
        np.testing.assert_allclose(found["influence"][name], expected[name], rtol=1e-9)
    assert found["influence"]["client"].values.tolist() == list(SITES)
    assert found["influence"]["pareto_k"].notnull().all()


@pytest.mark.parametrize("name", ["loo", "influence", "leave_one_client_out"])
def test_an_estimand_cannot_have_the_name_of_another_question(case, name):
    """Its sums over rows were asked for, and the sites' log-likelihoods would leave."""
    named = SimpleNamespace(ESTIMANDS={name: {}})
    with pytest.raises(SettingError, match=f"'{name}', the name of another question"):
        check_questions(simulation(case)[0], named, [], None)


def test_a_reviewer_finds_versions_hashes_rules_and_all_that_was_mailed(case):
    import hashlib
    import json
    from importlib.metadata import version

    from pyro_fed.deployment.policy import Policy

    asked(case, "loo")
    found = json.loads((case.study / "review.json").read_text())
    assert found["versions"]["numpy"] == version("numpy") and found["options"]["seed"] == 0
    assert hashlib.sha256((case.study / "model.py").read_bytes()).hexdigest() in found["model"]
    assert found["sites"]["south"]["policy"] == [Policy(min_cell=5).digest] != found["sites"]["north"]["policy"]
    assert {site: one["rows"] for site, one in found["sites"].items()} == {"north": 30, "south": 24, "west": 20}
    mailed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in case.mail.glob("answer-*.study")}
    assert {name: one["sha256"] for name, one in found["answers"].items()} == mailed
    assert found["result"] == hashlib.sha256((case.study / "result.nc").read_bytes()).hexdigest()


def test_a_page_is_made_of_the_file_alone(case, tmp_path):
    pytest.importorskip("jinja2")
    for name in ("risk", "calibration"):
        asked(case, name)
    found = asked(case, "loo")
    pf.write_report(tmp_path / "page.html", results=found)
    text = (tmp_path / "page.html").read_text()
    assert ">Estimand risk</h2>" in text and ">Calibration calibration</h2>" in text and ">Leave-one-out</h2>" in text
    mean = float(found["estimand_risk"]["estimand"].sel(treated=1, sex=0).mean())
    row = re.search(r'<th scope="row">treated=1, sex=0</th>(.*?)</tr>', text, re.DOTALL).group(1)
    assert [float(value) for value in re.findall(r'data-value="(.*?)"', row)][:2] == [24, mean]
    assert "Withheld by the sites&#39; rules: south sex=0; south sex=1." in text
    assert "FedLaplace" in text and "without their rows" in text and "Who holds what" not in text
    with pytest.raises(SettingError, match="pass results="):
        pf.write_report(tmp_path / "page.html")


def test_what_cannot_be_asked_is_refused(case):
    with pytest.raises(SettingError, match="no estimand 'risks'; did you mean 'risk'"):
        ask_sites(case.study, "risks")


def test_a_site_answers_its_own_copy_alone(case):
    """A policy that does not let estimates out; and a coordinator whose model's file asks for something else."""
    north, south, _ = ask_sites(case.study, "last").requests  # the last test: the question stays open
    (case.folder / "north" / "study" / "policy.toml").write_text('kinds = ["description", "update"]\n')
    with pytest.raises(PolicyError, match="messages of the kind 'estimate' may not leave"):
        case.answer(north)
    own = case.folder / "south" / "study" / "model.py"
    own.write_text(own.read_text().replace('"last": {"f": older}', '"last": {}'))
    with pytest.raises(ProtocolError, match="the server runs RowSums"):
        case.answer(south)
    with pytest.raises(SettingError, match="waits for the answers to 'last'"):
        ask_sites(case.study, "risk")
