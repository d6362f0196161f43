"""What a peer-to-peer run reports: agents as chains, disagreement, bytes, and its figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conjugate import QUIET, federation
from late import late

import pyro_fed as pf
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.errors import SettingError
from pyro_fed.runtime.messages import encoded_size, spec_of_one

az, plt = late("arviz"), late("matplotlib.pyplot")


@pytest.fixture(scope="module")
def idata() -> object:
    algorithm = pf.P2PVI(num_points=16, gossip_steps=2, start="prior", trace=True)
    return pf.run(algorithm, federation(), graph=pf.graph.star(4, 0.3), **{**QUIET, "num_draws": 500})


def test_agents_are_the_chains(idata: object) -> None:
    assert idata["posterior"].sizes["chain"] == 4 and idata["posterior"].sizes["draw"] == 500
    # Independent draws of one Gaussian at each of four agents: R-hat's spread is about 1/sqrt(500).
    assert float(az.rhat(idata)["w"].max()) < 1.02


def test_disagreement_falls_and_the_gap_and_bytes_are_there(idata: object) -> None:
    group = idata["federation"]
    apart = group["disagreement"].values
    assert apart[-1] < 1e-4 < apart[0]
    np.testing.assert_allclose(group["spectral_gap"].values, pf.graph.star(4, 0.3).gap)
    triangle, eta = torch.zeros(1, 6, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)
    per_edge = encoded_size(spec_of_one({"precision": triangle, "eta": eta}))
    assert per_edge > 8 * (3 + 6)
    np.testing.assert_array_equal(group["bytes_per_edge"].values, per_edge)
    # Two steps a round: the centre hears three agents and each of these the centre.
    np.testing.assert_array_equal(group["bytes_down"].values[0], 2 * per_edge * np.array([3, 1, 1, 1]))
    np.testing.assert_array_equal(group["bytes_up"].values[0], 2 * per_edge * np.array([3, 1, 1, 1]))


def test_traces_hold_every_agent_s_belief(idata: object) -> None:
    group = idata["federation"]
    assert group["belief_mean"].dims == ("round", "client", "parameter")
    np.testing.assert_allclose(group["belief_mean"].values[0], 0, atol=1e-12)
    np.testing.assert_allclose(group["belief_sd"].values[0], 1.5)
    last = group["belief_mean"].values[-1]
    np.testing.assert_allclose(last, np.tile(last[:1], (4, 1)), atol=1e-3)


def test_plot_consensus_draws_every_agent(idata: object) -> None:
    top, bottom = pf.plots.plot_consensus(idata, parameter=1, reference=(0.0, 1.0))
    assert len(top.lines) == 5
    np.testing.assert_allclose(top.lines[2].get_ydata(), idata["federation"]["belief_mean"].values[:, 2, 1])
    np.testing.assert_allclose(bottom.lines[0].get_ydata(), idata["federation"]["disagreement"].values)
    plt.close(top.figure)
    with pytest.raises(SettingError, match=r"0\.\.2, received 3"):
        pf.plots.plot_consensus(idata, parameter=3)


def test_plot_consensus_needs_traces() -> None:
    untraced = pf.run(pf.P2PVI(num_points=16, start="prior"), federation(), graph=pf.graph.complete(4), **QUIET)
    with pytest.raises(SettingError, match="trace=True"):
        pf.plots.plot_consensus(untraced)


@pytest.mark.parametrize("recipe", ["p2p_vi", "p2p_vi_paper", "p2p_ep"])
def test_recipes_build_their_algorithm_and_graph(recipe: str) -> None:
    from pyro_fed.recipes import recipe as recipes

    loaded = recipes.load(recipe)
    algorithm, options = loaded.build(), loaded.run_options(4)
    assert isinstance(algorithm, OnGraph) and options["graph"].num_agents == 4
    assert algorithm.weighting == ("paper" if recipe.endswith("paper") else "exact") if "vi" in recipe else True
