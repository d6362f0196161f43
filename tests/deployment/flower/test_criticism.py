"""Leave-one-out of a deployment's result: sums over the clients' rows, the same as ArviZ's on the pooled ones."""

from importlib.util import find_spec

import numpy as np
import pytest
from algorithms import unequal_lines
from arviz_results import CRITERION, criterion
from late import late

import pyro_fed as pf
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.analysis.criticism.loo import Pointwise
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.errors import SettingError
from pyro_fed.recipes import library
from pyro_fed.runtime.executors.base import MAX_ASKED_DRAWS

az = late("arviz")
pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]

WEIGHED = '[settings]\nsurrogates = "laplace"'
QUIET = {"compile": "off", "progress": False, "audit": False, "log_likelihood": False}


@pytest.fixture
def over_grid(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, {"FedEP": "", "FedLaplace": "", "FedAIS": WEIGHED})

    def run(name="FedEP", **config):
        settings = flower.read_configuration({"num-clients": 3, "timeout": 0.05, "compile": "off", **config})
        return flower.serve(flower.grid(model, recipes, None), model, recipes[name], settings)

    return run


@pytest.fixture(scope="module")
def here():
    return pf.run(pf.FedEP(), unequal_lines(), executor="sequential", compile="off", progress=False, audit=False)


@pytest.mark.parametrize("asked", [True, "y"])
def test_it_is_that_of_arviz_on_all_rows(over_grid, here, asked):
    found, expected = over_grid(loo=asked)["loo"], az.loo(here)
    for name in CRITERION:
        sent = found.attrs[name if name in found.attrs else f"{name}_loo"]
        assert sent == pytest.approx(criterion(expected, name), abs=1e-6)
    assert float(found["elpd"].sum()) == pytest.approx(criterion(expected, "elpd"), abs=1e-6)
    np.testing.assert_array_equal(found["rows"].values, unequal_lines().row_counts.numpy())
    assert int(found["good"].sum() + found["bad"].sum() + found["very_bad"].sum()) == expected.n_data_points


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a short run, and of Pareto's k by ArviZ
@pytest.mark.parametrize("name", ["linear_regression", "zero_inflated"])
def test_it_is_that_of_arviz_for_models_of_the_gallery(flower, tmp_path, name):
    """For other models the same sums are compared in `analysis/test_loo.py`: over a grid they only travel."""
    module = library.load_model(name)
    args = tuple(a.double() if a.is_floating_point() else a for a in module.load_data()[0])
    fed = pf.Federation(module.model, args, plate=module.PLATE, num_clients=3)
    idata = pf.run(pf.FedEP(), fed, num_rounds=1, num_draws=100, **QUIET | {"log_likelihood": True})
    model, (_, recipes) = library.find_model(name), flower.write_case(tmp_path, {"FedEP": ""})
    settings = flower.read_configuration(
        {"num-clients": 3, "compile": "off", "rounds": 1, "num-draws": 100, "loo": True}
    )
    found = flower.serve(flower.grid(model, recipes, fed=fed), model, recipes["FedEP"], settings)["loo"].attrs
    expected = az.loo(idata)
    for name, attr in (("elpd", "elpd_loo"), ("se", "se"), ("p", "p_loo")):
        assert found[attr] == pytest.approx(criterion(expected, name), abs=1e-6)


def test_waic_comes_with_it(over_grid, here):
    found, expected = over_grid(loo=True)["loo"], pf.metrics.waic(here, unequal_lines())
    for name in ("elpd", "se", "p"):
        assert found.attrs[f"{name}_waic"] == pytest.approx(criterion(expected, name, "waic"), abs=1e-6)
    np.testing.assert_allclose(found["waic"].values, expected.by_client["elpd"].to_numpy(), atol=1e-6)


def test_influence_is_that_of_the_simulation(over_grid, here):
    """Of sites, and of draws alone: there where their weights are reliable."""
    found, expected = over_grid(influence=True)["influence"], pf.influence(here)
    np.testing.assert_allclose(found["shift"].values, expected["shift"].values, atol=1e-6)
    assert found.attrs["stands_apart"] == expected.attrs["stands_apart"]
    other = pf.run(pf.FedAIS(surrogates="laplace"), unequal_lines(), executor="sequential", **QUIET)
    asked, known = over_grid("FedAIS", influence=True)["influence"], pf.influence(other, unequal_lines())
    by_draws = asked["by"].values == "draws"
    assert by_draws.any()
    np.testing.assert_array_equal(by_draws, known["by"].values == "draws")
    for name in ("shift", "sd_ratio", "influence"):
        np.testing.assert_allclose(asked[name].values[by_draws], known[name].values[by_draws], atol=1e-6)
    assert np.isnan(asked["influence"].values[~by_draws]).all()


def test_how_the_others_predict_a_client_is_that_of_the_simulation_to_the_bit(over_grid, here):
    """At the same 4,000 points, or as many as divide by the mixture's parts; no row's own number leaves."""
    found = over_grid(**{"leave-one-client-out": True})["leave_one_client_out"].to_dataframe()
    expected = pf.leave_one_client_out(here, unequal_lines(), num_draws=4000, refit=False)
    assert found.index.tolist() == expected.index.tolist() and "elpd_rows" not in found
    for name in ("rows", "elpd", "se", "pareto_k", "by"):
        assert found[name].tolist() == expected[name].tolist()


def test_a_result_is_written_and_read_with_it(over_grid, tmp_path):
    over_grid(loo=True).to_netcdf(str(tmp_path / "result.nc"))
    again = az.from_netcdf(str(tmp_path / "result.nc"))
    assert again["loo"].attrs["elpd_loo"] < 0 and "doubts" in again.attrs


ESTIMANDS = """

def second(draw, rows):
    return draw["w"][1] * rows["x"][:, 1]


ESTIMANDS = {"expected": {}, "by_hospital": {"f": second, "by": "client"}}
"""


def test_estimands_are_those_of_the_simulation(flower, tmp_path):
    """To the bit; and a small hospital, whose policy has a minimum, withholds its average."""
    model, recipes = flower.write_case(tmp_path, {"FedLaplace": ""})
    model.write_text(model.read_text() + ESTIMANDS)
    grid = flower.grid(model, recipes)
    config = {"num-clients": 3, "compile": "off", "audit": False, "estimands": "expected, by_hospital"}
    found = flower.serve(grid, model, recipes["FedLaplace"], flower.read_configuration(config))
    fed, estimands = unequal_lines(), library.load_model(model, with_data=False).ESTIMANDS
    for name, given in estimands.items():
        expected = pf.estimand(found, fed, **given).posterior["estimand"]
        np.testing.assert_array_equal(found[f"estimand_{name}"]["estimand"].values, expected.values)
    with pytest.raises(SettingError, match="no estimand 'expectd'; did you mean 'expected'"):
        flower.serve(grid, model, recipes["FedLaplace"], flower.read_configuration({**config, "estimands": "expectd"}))
    counts = fed.row_counts.tolist()
    for node, part in ((100, 0), (101, 1), (102, 2)):
        place = tmp_path / f"site-{part}"
        place.mkdir()
        (place / "policy.toml").write_text(f"min_cell = {sorted(counts)[1]}\n")
        grid.contexts[node].node_config["policy"] = str(place / "policy.toml")
    with pytest.warns(UserWarning, match="withheld"):
        found = flower.serve(grid, model, recipes["FedLaplace"], flower.read_configuration(config))
    smallest = str(int(np.argmin(counts)))
    assert found["estimand_by_hospital"].attrs["withheld"] == smallest
    assert smallest not in found["estimand_by_hospital"]["client"].values.tolist()


def test_nothing_is_asked_unless_it_is_told_to(over_grid):
    assert "loo" not in over_grid()


def test_a_client_that_does_not_answer_costs_the_numbers_and_not_the_run(flower, tmp_path, monkeypatch):
    from pyro_fed.deployment.flower import server

    model, recipes = flower.write_case(tmp_path, {"FedEP": ""})
    grid, ask = flower.grid(model, recipes, None), server.with_loo

    def gone(*given):
        del grid.contexts[102]
        return ask(*given)

    monkeypatch.setattr(server, "with_loo", gone)
    settings = flower.read_configuration({"num-clients": 3, "timeout": 0.05, "compile": "off", "loo": True})
    found = flower.serve(grid, model, recipes["FedEP"], settings)
    assert "loo" not in found and found.posterior.sizes["draw"] == 1000
    assert "2 of 3 replied" in found.attrs["no_loo"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"combination": '{name = "private", norm = 1.0, noise_multiplier = 1.0, delta = 1e-3}'}, "without noise"),
        ({"name": "FedLaplace", "secure-aggregation": True}, "secure aggregation hides"),
        (
            {"loo": "none", "influence": True, "name": "FedLaplace", "secure-aggregation": True},
            "influence shows the server",
        ),
        (
            {"loo": "none", "leave-one-client-out": True, "name": "FedLaplace", "secure-aggregation": True},
            "leave_one_client_out shows the server",
        ),
        ({"loo": 3}, "expects true, false or the name"),
        ({"loo": "nothing"}, "no observed site 'nothing'"),
    ],
)
def test_what_it_does_not_go_with_is_refused(over_grid, config, words):
    with pytest.raises((SettingError, pf.errors.DataError), match=words):
        over_grid(**{"loo": True, **config})


def test_a_client_never_sends_a_rows_own_numbers(flower, tmp_path, monkeypatch):
    model, recipes = flower.write_case(tmp_path, {"FedEP": ""})
    asked = Pointwise(pointwise=True)
    assert isinstance(asked, Algorithm) and settings_line(asked) != settings_line(Pointwise())
    monkeypatch.setattr("pyro_fed.analysis.criticism.loo.Pointwise", lambda **settings: asked)
    settings = flower.read_configuration({"num-clients": 3, "timeout": 0.05, "compile": "off", "loo": True})
    found = flower.serve(flower.grid(model, recipes, None), model, recipes["FedEP"], settings)
    assert "loo" not in found and found.attrs["no_loo"]


def test_a_client_says_its_log_likelihood_at_no_more_draws_than_are_promised(flower, tmp_path, monkeypatch):
    """Whatever its server asks for: here one that asks about all draws, of which there are more."""
    model, recipes = flower.write_case(tmp_path, {"FedEP": ""})
    grid = flower.LocalGrid(flower.make_client(model, recipes.values()))
    config = {"num-clients": 3, "timeout": 0.05, "compile": "off", "num-draws": MAX_ASKED_DRAWS + 1}
    for place in ("pyro_fed.runtime.checks", "pyro_fed.deployment.remote.questions"):
        monkeypatch.setattr(f"{place}.MAX_ASKED_DRAWS", MAX_ASKED_DRAWS + 1)
    with pytest.warns(
        UserWarning, match=f"no more than {MAX_ASKED_DRAWS} draws in a message, received {MAX_ASKED_DRAWS + 1}"
    ):
        found = flower.serve(grid, model, recipes["FedEP"], flower.read_configuration(config))
    assert found.attrs["audited"] == 0 and found.posterior.sizes["draw"] == MAX_ASKED_DRAWS + 1
    monkeypatch.undo()
    found = flower.serve(grid, model, recipes["FedEP"], flower.read_configuration(config))
    assert found.attrs["audited"] == 1


@pytest.mark.filterwarnings("ignore:not audited")
def test_a_client_that_answers_no_questions_takes_part_in_the_recipe_alone(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, {"FedEP": "", "FedAIS": WEIGHED})
    for name in recipes:
        grid = flower.LocalGrid(flower.make_client(model, recipes.values(), questions=False))
        config = {"num-clients": 3, "timeout": 0.05, "compile": "off", "loo": True, "influence": name == "FedAIS"}
        found = flower.serve(grid, model, recipes[name], flower.read_configuration(config))
        assert found.posterior.sizes["draw"] == 1000 and "loo" not in found and "influence" not in found
        assert "client_app(questions=False)" in found.attrs["no_loo"]
        if name == "FedAIS":  # judged by its own messages, which the recipe asks for
            assert "client_app(questions=False)" in found.attrs["no_influence"]
        else:
            assert found.attrs["audited"] == 0 and "client_app(questions=False)" in found.attrs["warnings"]


def test_a_reviewer_finds_versions_hashes_and_what_left_beside_the_result(flower, tmp_path):
    """By the function that writes the review of a study by files."""
    import hashlib
    import json
    from importlib.metadata import version
    from types import SimpleNamespace

    from pyro_fed.deployment.flower.server import server_app
    from pyro_fed.deployment.policy import Policy
    from pyro_fed.deployment.policy.approval import approve

    model, recipes = flower.write_case(tmp_path, {"FedEP": ""})
    out, start, grid = tmp_path / "posterior.nc", tmp_path / "start.nc", flower.grid(model, recipes)
    config = {"num-clients": 3, "compile": "off", "audit": False, "seed": 5, "influence": True, "out": str(start)}
    server_app(model, recipes["FedEP"])(grid, SimpleNamespace(run_config=config))
    (tmp_path / "policy.toml").write_text("min_rows = 2\n")
    approve(tmp_path, model, [recipes["FedEP"]], Policy.read(tmp_path / "policy.toml"))
    grid.contexts[101].node_config["policy"] = str(tmp_path / "policy.toml")
    config |= {"out": str(out), "start": str(start)}
    server_app(model, recipes["FedEP"])(grid, SimpleNamespace(run_config=config))
    found = json.loads((tmp_path / "posterior.review.json").read_text())
    assert found["versions"]["numpy"] == version("numpy") and found["options"]["seed"] == 5
    assert found["questions"] == ["influence"]
    assert found["model"] == f"{model.name} {hashlib.sha256(model.read_bytes()).hexdigest()}"
    assert found["recipe"].endswith(hashlib.sha256(recipes["FedEP"].read_bytes()).hexdigest())
    assert found["result"] == hashlib.sha256(out.read_bytes()).hexdigest()
    sent = az.from_netcdf(str(out))["federation"]["bytes_up"].sum("round").astype(int)
    assert {name: one["bytes_left"] for name, one in found["sites"].items()} == dict(
        zip(sent["client"].values.tolist(), sent.values.tolist(), strict=True)
    )
    assert len(found["sites"]) == 3 and min(sent.values) > 0
    assert [one["rows"] for one in found["sites"].values()] == unequal_lines().row_counts.tolist()
    assert found["start"] == f"start.nc {hashlib.sha256(start.read_bytes()).hexdigest()}"
    rules = {name: (one["policy"], one["approval"]) for name, one in found["sites"].items()}
    approved = json.loads((tmp_path / "approved" / "approval.json").read_text())["hash"]
    assert rules["1"] == ([Policy(min_rows=2).digest], [approved]) and rules["0"] == rules["2"] == ([""], [""])
    before = json.loads((tmp_path / "start.review.json").read_text())
    assert before["start"] is None and before["sites"]["1"]["policy"] == [""]
