"""Secure aggregation over Flower: the answer of the simulation, and a server that sees sums alone."""

import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from algorithms import unequal_lines
from arviz_results import groups_of

import pyro_fed as pf
from pyro_fed.errors import QuorumError, SettingError
from pyro_fed.runtime.executors import Faulty

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]

RECIPES = {
    "FedSEP": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 3',
    "FedAvg": "[run]\nnum_rounds = 3",
    "FedLaplace": "",
    "FedEP": "[run]\nnum_rounds = 3",
    "FedSEP-laplace": "[run]\nnum_rounds = 3",
    "FedAIS": '[settings]\nsurrogates = "laplace"\nnum_proposals = 400',
    "FedAIS-auto": "",
    "FedHMC": '[settings]\nsurrogates = "laplace"\nnum_chains = 4\n[run]\nnum_rounds = 12',
    "SummedLangevin": "[settings]\nstep_size = 0.02\nburn_in = 2\n[run]\nnum_rounds = 6",
}
#: What the rounding of what is sent may move.
ROUNDED = 1e-3
ALGORITHMS = {
    "FedSEP": (pf.infer.FedSEP(start="prior"), {"num_rounds": 3}),
    "FedAvg": (pf.FedAvg(), {"num_rounds": 3}),
    "FedLaplace": (pf.FedLaplace(), {}),
    "FedSEP-laplace": (pf.infer.FedSEP(), {"num_rounds": 3}),
    "FedAIS": (pf.FedAIS(surrogates="laplace", num_proposals=400), {}),
    "FedHMC": (pf.infer.FedHMC(surrogates="laplace", num_chains=4), {"num_rounds": 12}),
    "SummedLangevin": (pf.infer.SummedLangevin(step_size=0.02, burn_in=2), {"num_rounds": 6}),
}


def served(flower, grid, model, recipe, secure="{largest = 1e5}", **config):
    given = {"num_clients": 3, "timeout": 0.05, "compile": "off", "audit": False, **config}
    settings = flower.read_configuration(
        {key.replace("_", "-"): value for key, value in given.items()} | {"secure-aggregation": secure}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return flower.serve(grid, model, recipe, settings)


def simulated(name, executor="sequential"):
    algorithm, options = ALGORITHMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(
            algorithm,
            unequal_lines(),
            executor=executor,
            compile="off",
            progress=False,
            log_likelihood=False,
            audit=False,
            **options,
        )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_answer_is_that_of_the_simulation(flower, name, tmp_path):
    """Clients have 3, 7 and 13 rows; numbers are rounded to 2^18 / 2^30 = 0.00024.

    FedAIS resamples draws: weights that differ by that shift a draw to one of its neighbours in order, two at most.
    """
    model, recipes = flower.write_case(tmp_path, RECIPES)
    found = served(flower, flower.grid(model, recipes), model, recipes[name])
    values, right = (one.posterior["w"].values for one in (found, simulated(name)))
    if name == "FedAIS":
        values, right = (np.sort(one, 1) for one in (values, right))
        assert (values[:, 2:] >= right[:, :-2] - ROUNDED).all() and (values[:, :-2] <= right[:, 2:] + ROUNDED).all()
    else:
        np.testing.assert_allclose(values, right, atol=ROUNDED)
    assert not {"log_likelihood", "observed_data", "constant_data", "sites"} & groups_of(found)
    assert "moved" not in found.federation


def test_the_bytes_are_those_of_the_protocol(flower, tmp_path):
    """Four exchanges, of which the masked numbers, two of each and eight bytes, are a part."""
    model, recipes = flower.write_case(tmp_path, RECIPES)
    plain = simulated("FedSEP").federation["bytes_up"].values
    found = served(flower, flower.grid(model, recipes), model, recipes["FedSEP"]).federation
    numbers = 2 * (2 * 2 + 2 + 1)  # precision, eta and a flag, twice
    assert (found["bytes_up"].values > numbers * 8).all()
    assert (found["bytes_up"].values > plain).all()
    assert (found["bytes_down"].values > simulated("FedSEP").federation["bytes_down"].values).all()


def test_float32_and_a_checkpoint_serve(flower, tmp_path):
    """FedLaplace's clients keep what the server has the sum of alone; a checkpoint has stand-ins with that sum."""
    model, recipes = flower.write_case(tmp_path, RECIPES)
    app = flower.make_client(model, recipes.values(), dtype=torch.float32)
    found = served(flower, flower.LocalGrid(app), model, recipes["FedLaplace"], checkpoint=str(tmp_path / "state"))
    mean = simulated("FedLaplace").posterior["w"].mean(("chain", "draw"))
    np.testing.assert_allclose(found.posterior["w"].mean(("chain", "draw")), mean, atol=2e-3)
    assert (tmp_path / "state").is_dir()


def test_the_server_sees_masked_numbers_and_the_sum(flower, tmp_path):
    """The same numbers under other masks in every run, all over the modulus; sums are the same to the bit."""
    from flwr.common import bytes_to_ndarray

    model, recipes = flower.write_case(tmp_path, RECIPES)
    runs = []
    for _ in range(2):
        grid = flower.Watching(flower.make_client(model, recipes.values()))
        runs.append((served(flower, grid, model, recipes["FedSEP"]), grid.seen))
    assert np.array_equal(runs[0][0].posterior["w"].values, runs[1][0].posterior["w"].values)
    masked = [{} for _ in runs]
    for number, (_, seen) in enumerate(runs):
        assert {client for (_, client), _ in seen} == {0, 1, 2}
        for at, reply in seen:
            assert "message" not in reply.content  # the client's own, which it sends without secure aggregation
            assert all(not record for record in reply.content.array_records.values())
            parts = reply.content["secaggplus_configs"]["masked_params"]
            masked[number][at] = np.concatenate([bytes_to_ndarray(part).ravel() for part in parts])
    for at in masked[0]:
        assert (masked[0][at] != masked[1][at]).all()
    everything = np.concatenate(list(masked[0].values())) / 2**32
    assert everything.min() >= 0
    assert everything.max() < 1
    assert 0.4 < everything.mean() < 0.6  # of about 100 uniform numbers: SD 0.03
    assert 0.24 < everything.std() < 0.34


def test_a_client_that_drops_out_is_not_in_the_sum(flower, tmp_path):
    """It has shared its keys and sends nothing: the answer is that of a run in which it is away in that round."""

    class Losing(Faulty):
        def _fault(self, round, client):
            return "dies" if (round, client) == (1, 2) else ""

    model, recipes = flower.write_case(tmp_path, RECIPES)
    grid = flower.Watching(flower.make_client(model, recipes.values()), [(1, 2)])
    found = served(flower, grid, model, recipes["FedSEP"], timeout=0.05)
    expected = simulated("FedSEP", Losing("sequential"))
    assert (1, 2) not in dict(grid.seen)
    np.testing.assert_allclose(found.posterior["w"].values, expected.posterior["w"].values, atol=1e-3)
    assert np.array_equal(found.federation["participated"].values, expected.federation["participated"].values)


def test_where_too_few_stay_there_is_no_sum(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, RECIPES)
    grid = flower.Watching(flower.make_client(model, recipes.values()), [(1, 2), (1, 1)])
    with pytest.raises(QuorumError, match=r"ended without a sum: too few clients stayed|did not reply"):
        served(flower, grid, model, recipes["FedSEP"], timeout=0.05, min_clients=2)


def test_a_client_takes_part_in_sums_alone(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, RECIPES)
    grid = flower.LocalGrid(flower.make_client(model, recipes.values(), secure=True))
    found = served(flower, grid, model, recipes["FedSEP"])
    assert found.posterior.sizes["draw"] > 1
    with pytest.raises(pf.errors.PyroFedError, match="takes part only in secure aggregation"):
        served(flower, grid, model, recipes["FedSEP"], secure=False, min_clients=1)


def test_numbers_beyond_the_range_fail_the_client(flower, tmp_path):
    """And are not cut to it in silence."""
    model, recipes = flower.write_case(tmp_path, RECIPES)
    with pytest.raises(pf.errors.PyroFedError, match=r"beyond what secure aggregation was set up for, 0\.125: raise"):
        served(flower, flower.grid(model, recipes), model, recipes["FedSEP"], secure="{largest = 0.1}", min_clients=1)


def test_what_needs_more_than_sums_is_refused_before_any_round(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, RECIPES)
    for name, words in (("FedEP", "gives it only sums"), ("FedAIS-auto", "FedAIS.surrogates='laplace'")):
        with pytest.raises(SettingError, match=words):
            served(flower, flower.grid(model, recipes), model, recipes[name])
    with pytest.raises(SettingError, match="choose one of the two"):
        served(flower, flower.grid(model, recipes), model, recipes["FedSEP"], combination="median")


@pytest.mark.parametrize(
    ("value", "words"),
    [("{largest = -1}", "largest"), ("yes", "true, false or a table"), ("{larges = 1.0}", "largest"), (3, "a table")],
)
def test_settings_are_checked(flower, value, words):
    with pytest.raises(SettingError, match=words):
        flower.read_configuration({"num-clients": 3, "secure-aggregation": value})


def test_stand_ins_have_both_sums():
    from pyro_fed.deployment.flower.secure import SecAgg, flat, stand_ins
    from pyro_fed.runtime.safetensors_header import Entry

    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([3, 5, 7])
    messages = [{"a": torch.randn(1, 2, 2, generator=generator), "ok": torch.tensor([True])} for _ in rows]
    total = torch.stack([flat(one, int(n) / 7) for one, n in zip(messages, rows, strict=True)]).sum(0)
    spec = {"a": Entry((2, 2), torch.float32), "ok": Entry((), torch.bool)}
    found = stand_ins(total, spec, rows, 7)
    for weights in (torch.ones(3), rows / rows.sum()):
        sums = [sum(float(w) * one["a"] for w, one in zip(weights, kind, strict=True)) for kind in (messages, found)]
        torch.testing.assert_close(sums[0], sums[1])
    assert all(bool(one["ok"]) for one in found)
    assert SecAgg(largest=1e5).resolution(3) == 2**18 / 2**30
    assert [SecAgg(threshold=0.5).stay(n) for n in (3, 4, 10)] == [2, 3, 6]
