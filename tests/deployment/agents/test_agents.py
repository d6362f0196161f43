"""Five agents in processes of their own, over mutual TLS on loopback, against the simulation."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from agents_case import CASES, NAMES, Rehearsal, counts, one_a_row, peers_file, simulated
from arviz_results import groups_of
from forks import together
from late import late

import pyro_fed as pf
from pyro_fed.deployment.agents.peers import load_peers
from pyro_fed.results.to_arviz import unconstrained_draws

az = late("arviz")
pytestmark = together


def wait_for(path, seconds=300):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.01)


def test_five_agents_one_killed_and_restarted_draw_what_the_simulation_draws(tmp_path):
    """Killed in the middle of Newton's method over the graph, which means nothing without it: to the last bit."""
    graph = load_peers(peers_file(tmp_path)).graph
    agents = Rehearsal(tmp_path, pf.P2PVI())
    folder = tmp_path / "state"
    for name in NAMES:
        agents.start(name, **({"checkpoint": folder} if name == "south" else {}))
    wait_for(folder / "round-00000001.safetensors")
    os.kill(agents.processes["south"].pid, signal.SIGKILL)
    agents.processes["south"].join()
    assert not (tmp_path / "south.nc").exists()
    agents.start("south", checkpoint=folder, resume=True)
    assert agents.join() == dict.fromkeys(["north", "east", "south", "west", "centre"], 0)
    expected = simulated(pf.P2PVI(), graph)
    for number, name in enumerate(NAMES):
        found = az.from_netcdf(str(agents.out(name)))
        assert found.posterior.sizes["chain"] == 1
        assert np.array_equal(found.posterior["w"].values[0], expected.posterior["w"].values[number])
        for figure in ("change", "disagreement"):
            np.testing.assert_array_equal(found.federation[figure].values, expected.federation[figure].values)
        assert found.attrs["num_rounds"] == expected.attrs["num_rounds"]
        assert found.attrs["converged"] == 1
        assert list(found.federation["client"].values) == list(NAMES)
        assert not {"observed_data", "constant_data", "log_likelihood"} & groups_of(found)


def test_agents_that_differ_end_at_once_and_so_do_those_that_they_are_needed_by(tmp_path):
    """Another seed at east: north and east see it; centre waits for west, which never starts, and hears it of north."""
    peers_file(tmp_path)
    agents = Rehearsal(tmp_path, pf.P2PVI())
    began = time.monotonic()
    agents.start("centre", seed=3)
    agents.listening("centre")  # whoever comes after the others have left cannot hear why
    for name, seed in (("north", 3), ("east", 4)):
        agents.start(name, seed=seed)
    assert agents.join() == dict.fromkeys(["centre", "north", "east"], 1)
    assert time.monotonic() - began < agents.waits["patience_all"] / 3
    for name in agents.processes:
        text = agents.log(name).read_text()
        assert "differ in seed" in text, text
    assert "DifferError: agent north has left: " in agents.log("centre").read_text()


@pytest.mark.parametrize("kind", [one_a_row, counts])
def test_effects_stay_with_their_agent_and_what_is_common_is_the_simulation_s(tmp_path, kind):
    """Two or three hospitals an agent, with a patient each or several, normal or not: to the last bit."""
    names = NAMES[:2]
    path = peers_file(tmp_path, names, 'graph = "complete"')
    agents = Rehearsal(tmp_path, pf.P2PVI(), kind=kind, num_rounds=3, num_draws=400)
    for name in names:
        agents.start(name, checkpoint=tmp_path / f"state-{name}")
    assert agents.join() == dict.fromkeys(names, 0)
    expected = simulated(pf.P2PVI(), load_peers(path).graph, names, kind, num_rounds=3, num_draws=400)
    plate, rows, own = CASES[kind]
    for number, name in enumerate(names):
        found = az.from_netcdf(str(agents.out(name)))
        for site in ("mu", "tau"):
            assert np.array_equal(found.posterior[site].values[0], expected.posterior[site].values[number])
        assert "a" not in found.posterior  # the agent draws its own, and nobody else can
        assert found.attrs["audited"] == 1, found.attrs[
            "warnings"
        ]  # by the log-likelihoods that both agents tell at its draws
        problem = pf.Federation.from_clients(
            kind, {other: own(i) for i, other in enumerate(names)}, plate=plate, rows=rows
        ).problem
        z = unconstrained_draws(found, problem).to(problem.dtype)
        density = torch.stack([problem.log_prior(one) for one in z]) + problem.log_lik(z)
        np.testing.assert_allclose(found.sample_stats["lp"].values[0], density.numpy(), rtol=1e-3, atol=1e-3)
        alone = pf.Federation.from_clients(kind, {name: own(number)}, plate=plate, rows=rows)
        again = pf.predict(found, alone)  # its effects, given its own draws of what is common
        assert again.posterior_predictive["y"].shape == (1, 400, len(own(number)[1]))


def test_agents_fit_a_guide_together_and_wait_for_each_other(tmp_path):
    """A step means nothing without an agent's scores, so that none goes on alone: the simulation to the last bit."""
    names = NAMES[:2]
    path = peers_file(tmp_path, names, 'graph = "complete"')
    algorithm = pf.infer.P2PSFVI(num_steps=4, num_particles=2, num_guide_draws=50)
    agents = Rehearsal(tmp_path, algorithm)
    for name in names:
        agents.start(name)
    assert agents.join() == dict.fromkeys(names, 0)
    expected = simulated(algorithm, load_peers(path).graph, names)
    for number, name in enumerate(names):
        found = az.from_netcdf(str(agents.out(name)))
        assert np.array_equal(found.posterior["w"].values[0], expected.posterior["w"].values[number])
