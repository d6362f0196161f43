"""`pf.explain` says what will be run and why, and that is what is run."""

import json
import warnings

import pytest
import torch
from algorithms import unequal_lines

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}


@pytest.fixture(scope="module")
def fed():
    return unequal_lines()


def test_it_lists_the_phases_with_their_settings_and_reasons(fed):
    said = str(pf.explain(pf.FedEP(damping=0.5), fed))
    lines = said.splitlines()
    assert lines[0] == "2 parameters, 23 rows, 3 clients"
    assert [line for line in lines if line[0].isdigit()][1:] == [
        "1. FedLaplace, at most 100 rounds",
        "2. FedEP, at most 50 rounds",
    ]
    assert any(line.split("  ")[-1] == "2 parameters, at most 100" for line in lines)
    assert any(line.split()[:1] == ["damping=0.5"] and line.endswith("as it is set") for line in lines)


def test_its_table_has_a_row_for_each_setting_and_how_to_set_it(fed):
    table = pf.explain(pf.FedEP(), fed).table
    assert list(table.columns) == ["stage", "algorithm", "setting", "value", "reason", "override"]
    own = table[table.algorithm == "FedEP"].set_index("setting")
    assert own.value["start"] == "laplace" and own.override["start"] == "start='laplace', 'mode', 'prior' or 'fedavg'"
    assert own.override["covariance"] == "covariance='full' or 'diag'"
    assert "<table>" in pf.explain(pf.FedEP(), fed)._repr_html_()


def test_what_it_says_is_what_is_run(fed):
    told = pf.explain(pf.DSVGD(num_particles=8), fed).table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three rounds are too few
        idata = pf.run(pf.DSVGD(num_particles=8), fed, num_rounds=3, **QUIET)
    ran = [(one["algorithm"], one["setting"], one["value"]) for one in json.loads(idata.attrs["choices"])]
    assert ran == [(row.algorithm, row.setting, repr(row.value)) for row in told.itertuples()]


def test_nothing_is_run(fed, monkeypatch):
    monkeypatch.setattr(pf.FedLaplace, "local_step", lambda *at: pytest.fail("a step"))
    pf.explain(pf.FedEP(), fed)


def test_a_plan_has_its_stages_and_what_an_earlier_one_has_run_is_not_said_again(fed):
    said = str(pf.explain(pf.Auto(), fed))
    assert said.count("stage ") == 7 + said.count("an earlier stage has")
    assert said.count("start='laplace'") == 1
    assert pf.explain(pf.Auto(), fed).table.stage.max() == 7


def test_a_stage_that_the_model_refuses_says_why():
    wide = torch.randn(20, 1200, generator=torch.Generator().manual_seed(0))
    from test_resolve import regression

    many = pf.Federation(regression, (wide, wide[:, 0]), plate="data", num_clients=2)
    with pytest.raises(pf.errors.SettingError, match="FedAIS cannot weight draws of 1,200 parameters"):
        pf.explain(pf.FedAIS(), many)


def test_a_graph_is_taken_into_account(fed):
    table = pf.explain(pf.P2PVI(), fed, graph=pf.graph.ring(3)).table
    assert table[(table.algorithm == "P2PVI") & (table.setting == "start")].value.tolist() == ["consensus"]


def test_what_is_no_algorithm_is_refused(fed):
    with pytest.raises(pf.errors.SettingError, match=r"explain.* algorithm"):
        pf.explain("FedEP", fed)
