"""Guides of a whole hierarchical model: the global part is federated, the local part is left aside, with a warning."""

import hierarchies
import pyro
import pyro.distributions as dist
import pytest
import torch
from hierarchies import number
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False, "audit": False}
MEAN, COVARIANCE = hierarchies.means_posterior(hierarchies.SD, hierarchies.Y)
SD = COVARIANCE.diagonal().sqrt()


def global_guide(sd, y=None):
    loc = pyro.param("loc", number(0.0))
    return pyro.sample("mu", dist.Normal(loc, pyro.param("scale", number(0.5), constraint=dist.constraints.positive)))


def whole_guide(sd, y=None):
    """q(mu) Π q(effect_k | mu): the posterior is of this form."""
    mu = global_guide(sd, y)
    slope = pyro.param("slope", torch.zeros_like(sd))
    shift, spread = pyro.param("shift", torch.zeros_like(sd)), pyro.param("spread", torch.ones_like(sd).log())
    with pyro.plate(hierarchies.PLATE, len(sd)):
        pyro.sample("effect", dist.Normal(shift + slope * mu, spread.exp()))


def extra_guide(sd, y=None):
    whole_guide(sd, y)
    pyro.sample("nuisance", dist.Normal(number(0.0), 1.0))


def effects_guide(sd, y=None):
    with pyro.plate(hierarchies.PLATE, len(sd)):
        pyro.sample("effect", dist.Normal(torch.zeros_like(sd), 1.0))


def upside_down_guide(sd, y=None):
    with pyro.plate(hierarchies.PLATE, len(sd)):
        effect = pyro.sample("effect", dist.Normal(torch.zeros_like(sd), 1.0))
    pyro.sample("mu", dist.Normal(effect.mean(), 1.0))


def errors(idata):
    """Of the means of (mu, effects) in SDs, and of the SDs."""
    mu, effect = (torch.as_tensor(idata["posterior"][name].values[0]) for name in ("mu", "effect"))
    draws = torch.cat([mu.unsqueeze(-1), effect], 1)
    return ((draws.mean(0) - MEAN) / SD).abs(), (draws.std(0) / SD - 1).abs()


@pytest.mark.parametrize(
    ("kind", "guide"),
    [
        (pf.FedEP, global_guide),
        (pf.FedEP, whole_guide),
        (pf.FedEP, AutoNormal),
        (pf.FedEP, AutoMultivariateNormal),
        (pf.FedEP, AutoNormal(hierarchies.means)),
        (pf.infer.PVI, whole_guide),
        (pf.infer.PVI, AutoNormal),
    ],
)
@pytest.mark.filterwarnings("ignore:.*sites .'effect'.*are not used:UserWarning")
def test_one_guide_for_the_whole_model_gives_the_exact_posterior(kind, guide):
    """8,000 draws: five standard errors of a mean and of an SD. The effects are drawn given mu, whatever the guide."""
    idata = pf.run(kind(guide=guide), hierarchies.CASES["means"].federation(), num_draws=4000, **QUIET)
    mean, sd = errors(idata)
    assert float(mean.max()) < 5 / 4000**0.5
    assert float(sd.max()) < 5 / 8000**0.5


def test_a_diagonal_guide_of_correlated_parameters_has_their_conditional_precisions():
    case = hierarchies.CASES["lines"]
    full, diag = (
        pf.run(pf.FedEP(guide=guide), case.federation(), num_draws=4000, **QUIET)["posterior"]["w"].values[0]
        for guide in (AutoMultivariateNormal, AutoNormal)
    )
    precision = torch.linalg.inv(torch.as_tensor(full).T.cov())
    torch.testing.assert_close(torch.as_tensor(diag).mean(0), torch.as_tensor(full).mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(torch.as_tensor(diag).var(0), 1 / precision.diagonal(), rtol=0.15, atol=0)


def test_the_local_part_is_left_aside_with_a_warning():
    with pytest.warns(UserWarning, match=r"guide whole_guide: its sites \['effect'\], inside plate 'group', are not"):
        whole = pf.run(pf.FedEP(guide=whole_guide), hierarchies.CASES["means"].federation(), **QUIET)
    alone = pf.run(pf.FedEP(guide=global_guide), hierarchies.CASES["means"].federation(), **QUIET)
    assert (whole["posterior"]["mu"].values == alone["posterior"]["mu"].values).all()
    assert (whole["posterior"]["effect"].values == alone["posterior"]["effect"].values).all()


def test_pooled_svi_fits_the_whole_guide():
    """The same function. Its family holds the posterior; 400 steps of Adam and 1,000 draws leave 0.2 SD."""
    algorithm = pf.infer.SVI(guide=whole_guide, num_steps=400, step_size=0.05, num_guide_draws=1000)
    mean, sd = errors(pf.run(algorithm, hierarchies.CASES["means"].federation(), **QUIET))
    assert float(mean.max()) < 0.2
    assert float(sd.max()) < 0.2


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (extra_guide, r"has \['nuisance'\] besides: the model's are \['mu'\] and, inside plate 'group', \['effect'\]"),
        (effects_guide, r"lacks the sites \['mu'\]"),
        (AutoDelta, "guide AutoDelta has no natural parameters"),
    ],
)
def test_guides_with_sites_of_neither_kind_are_refused(guide, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.run(pf.FedEP(guide=guide), hierarchies.CASES["means"].federation(), **QUIET)


@pytest.mark.filterwarnings("ignore:.*sites .'effect'.*are not used:UserWarning")
def test_a_global_site_that_depends_on_a_local_one_is_refused():
    with pytest.raises(pf.errors.SettingError, match="the parameters of site 'mu' depend on another site's draw"):
        pf.run(pf.FedEP(guide=upside_down_guide), hierarchies.CASES["means"].federation(), **QUIET)


def test_pvi_with_a_hand_written_guide_takes_one_step_a_turn():
    assert type(pf.infer.PVI(guide=global_guide, order="synchronous").delegate()).__name__ == "GuidedPVI"
    with pytest.raises(pf.errors.SettingError, match=r"PVI: client=.*steps=3.* has no effect: a hand-written guide"):
        pf.infer.PVI(guide=global_guide, client=pf.infer.tilted.Newton(steps=3))
