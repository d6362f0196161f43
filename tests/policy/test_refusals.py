"""Models that an algorithm cannot be run on are refused before a run, in one place, with the cure."""

from dataclasses import replace

import pytest
import torch
from test_resolve import flat, over, regression

import pyro_fed as pf
from pyro_fed.policy import resolve


@pytest.mark.parametrize(
    ("algorithm", "cure"),
    [
        (pf.infer.BCM(), "use FedEP or FedPA"),
        (pf.FedEP(start="prior"), "start='laplace'"),
        (pf.infer.FedLapCov(), "start='laplace'"),
        (pf.papers.GVI(), "use FedEP or FedLaplace"),
        (pf.papers.P2PFinite(), "give candidates"),
        (pf.papers.PMD(), "use DSVGD"),
        (pf.infer.StreamingVB(), "use FedEP or FedLaplace"),
    ],
)
def test_what_draws_from_the_prior_or_begins_there_refuses_an_improper_one(algorithm, cure):
    name = type(algorithm).__name__
    with pytest.raises(pf.errors.ModelError, match=rf"{name}: .*the priors of sites \['w'\] are improper.*{cure}"):
        resolve(algorithm, over(flat).problem.traits)
    resolve(algorithm, over(regression).problem.traits)


@pytest.mark.parametrize(
    "algorithm", [pf.FedEP(), pf.infer.FedPA(), pf.papers.P2PFinite(candidates={"w": [[0.0] * 3, [1.0] * 3]})]
)
def test_what_does_not_takes_one(algorithm):
    resolve(algorithm, over(flat).problem.traits)


def test_svi_tempers_no_joint_density_of_rows_with_latents_of_their_own():
    traits, tempered = over(regression).problem.traits, pf.infer.SVI(temperature=2.0)
    resolve(tempered, traits)
    with pytest.raises(pf.errors.SettingError, match=r"SVI: temperature=2 raises .* not a factor of the joint density"):
        resolve(tempered, replace(traits, row_latents=("shift",)))


@pytest.mark.parametrize(
    "kind", [pf.FedAIS, pf.FSGLD, pf.infer.FedHMC, pf.infer.SAGALD, pf.infer.VRFALD, pf.infer.SFVI]
)
def test_surrogates_of_another_dimension_are_refused(kind):
    given = pf.infer.Given(torch.eye(2).repeat(3, 1, 1), torch.zeros(3, 2))
    with pytest.raises(pf.errors.SettingError, match="expected surrogates of the model's dimension 3, received 2"):
        resolve(kind(surrogates=given), over(regression).problem.traits)
