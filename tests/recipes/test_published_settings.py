"""Recipes of published forms have the numbers that the papers' tables print."""

import tomllib

import pytest

from pyro_fed.recipes.library import find_recipe

#: Kassab and Simeone: Section 7; captions of Fig. 3 to 8 and 15; Table 2 and 3, binary classification; Table 4.
STEIN = {"local_steps": 200, "step_size": 0.05, "momentum": 0.9, "fudge": 1e-9, "batch_size": 10, "temperature": 1.0}
KDE = {"kde_bandwidth": 0.55, "kde_floor": 0.0}
ANNEALED = {"batch_size": 10, "step.decay": 0.55, "step.decay_offset": 0.5, "step.size": 0.01 * 0.5**-0.55}
#: Guo et al., Table 7, CIFAR-100.
BURN_IN = {"start.rounds": 400, "start.chain_steps": 10, "start.unit": "epochs", "start.step_size": 0.01}
BURN_IN |= {"start.momentum": 0.9, "start.damping": 0.5, "start.server_optimiser.momentum": 0.9, "start.scale": 0.05}
CHAIN = {"client.steps": 10, "client.unit": "epochs", "client.step_size": 0.01, "client.momentum": 0.9}
SERVER = {"damping": 0.5, "optimisers.server.momentum": 0.9}
STATES = {**BURN_IN, **CHAIN, **SERVER, "optimisers.client.momentum": 0.9}
NGVI = {"client.fisher_steps": 5, "client.fisher_decay": 0.99}

PUBLISHED = {
    "dsvgd_paper": {**STEIN, **KDE, "distill_steps": 200},
    "udsvgd": {**STEIN, **KDE},
    "pdsvgd_paper": {**STEIN, **KDE, "distill_steps": 200, "server_steps": 200, "share": 0.2},
    "svgd_paper": STEIN,
    "sgld_paper": ANNEALED,
    "dsgld_annealed": {**ANNEALED, "local_steps": 200},
    "fedep_i": {**STATES, "client.scale": 0.05},
    "fedep_m": {**BURN_IN, **CHAIN, "client.weight": 1e-4, "client.scale": 0.05},
    "fedep_l": {**STATES, "client.fisher_scale": 1.0},
    "fedep_v": {**STATES, **NGVI},
    "fedsep": {**BURN_IN, **CHAIN, **SERVER, **NGVI},
    # El Mekkaoui et al., Section 5.3.
    "fsgld_paper": {"local_steps": 40, "batch_size": 50, "burn_in": 20_000, "thin": 2, "step.size": 1e-4},
    # Wang et al., Table II, N = 25.
    "p2p_vi_paper": {
        **{"gossip_steps": 1, "update.steps": 47, "update.batch_size": 50, "update.step_size": 0.001},
        "update.round_decay": 0.99,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_papers_numbers(name):
    settings = tomllib.loads(find_recipe(name).read_text())["settings"]
    for path, expected in PUBLISHED[name].items():
        found = settings
        for part in path.split("."):
            found = found[part]
        assert found == (pytest.approx(expected, rel=1e-3) if isinstance(expected, float) else expected), path
