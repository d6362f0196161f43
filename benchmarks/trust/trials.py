"""What is run on the posteriors: every algorithm with its defaults, and settings that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.trust.posterior import Posterior
from benchmarks.trust.posteriors import POSTERIORS
from pyro_fed.recipes import load


@dataclass(frozen=True)
class Trial:
    """A posterior and how it is sought.

    Args:
        posterior: its name.
        label: the algorithm, or the wrong setting.
        make: makes the algorithm.
        options: more arguments of `run`; functions of the federation are called with it.
        federation: more arguments of `Federation`.
        wrong: whether the setting is a wrong one.
    """

    posterior: str
    label: str
    make: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)
    wrong: bool = False

    @property
    def target(self) -> Posterior:
        """The posterior."""
        return POSTERIORS[self.posterior]

    def run(self, **options: Any) -> Any:
        """The result."""
        fed = self.target.federation(**self.federation)
        own = {key: value(fed) if isfunction(value) else value for key, value in self.options.items()}
        settings = {"progress": False, "log_likelihood": False, "seed": 0, **own, **options}
        return pf.run(self.make(), fed, **settings)


#: The algorithms whose defaults are judged. NUTS sees the pooled data: it shows what is hard for all.
ALGORITHMS: dict[str, Callable[[], Any]] = {
    "FedEP": pf.FedEP,
    "FedAIS": pf.FedAIS,
    "P2PVI": pf.P2PVI,
    "FedLaplace": pf.FedLaplace,
    "DSVGD": pf.DSVGD,
    "FSGLD": pf.FSGLD,
    "Auto": pf.Auto,
    "NUTS": pf.NUTS,
}


def ring(fed: pf.Federation) -> pf.graph.Graph | None:
    """A ring of the clients; two of them are but joined."""
    return pf.graph.ring(fed.num_clients) if fed.num_clients > 2 else pf.graph.complete(fed.num_clients)


def defaults() -> list[Trial]:
    """Every algorithm on every posterior."""
    return [
        Trial(name, label, make, {"graph": ring} if label == "P2PVI" else {})
        for label, make in ALGORITHMS.items()
        for name in POSTERIORS
    ]


def recipe(name: str) -> Callable[[], Any]:
    """The algorithm of a shipped recipe."""
    return lambda: load(name).build()


def missed(fed: pf.Federation) -> pf.schedule.Schedule:
    """A schedule in which the last client never works."""
    return pf.schedule.Explicit([list(range(fed.num_clients - 1))])


def one(fed: pf.Federation) -> pf.schedule.Schedule:
    """A schedule in which the first client alone works."""
    return pf.schedule.Explicit([[0]])


def _wrong(posterior: str, label: str, make: Callable[[], Any], **options: Any) -> Trial:
    federation = options.pop("federation", {})
    return Trial(posterior, label, make, options, federation, wrong=True)


def wrong_settings() -> list[Trial]:
    """Settings that most users would regret, each where it does harm."""
    mcmc = pf.infer.tilted.MCMC(steps=30, burn_in=5)
    return [
        # too few rounds
        _wrong("logistic_labels", "FedEP, 1 round from the prior", lambda: pf.FedEP(start="prior"), num_rounds=1),
        _wrong("schools", "FedEP, 1 round", pf.FedEP, num_rounds=1),
        _wrong("poisson_intercepts", "FedEP, 2 rounds from the prior", lambda: pf.FedEP(start="prior"), num_rounds=2),
        _wrong("linear_sorted", "PVI, 2 rounds from the prior", lambda: pf.infer.PVI(start="prior"), num_rounds=2),
        _wrong("logistic_covariates", "P2PVI, 2 rounds", pf.P2PVI, num_rounds=2, graph=ring),
        _wrong("logistic_labels", "DSVGD, 2 rounds", lambda: pf.DSVGD(start="prior"), num_rounds=2),
        _wrong("logistic_covariates", "FSGLD, 30 rounds", pf.FSGLD, num_rounds=30),
        _wrong("linear_sorted", "FedLaplace, 1 round", pf.FedLaplace, num_rounds=1),
        _wrong("logistic_labels", "FedAvg, 10 rounds", pf.FedAvg, num_rounds=10),
        # steps and damping
        _wrong("linear_sorted", "FedEP, damping 0.01", lambda: pf.FedEP(damping=0.01, start="prior")),
        _wrong("logistic_labels", "FedEP, damping 1", lambda: pf.FedEP(damping=1.0, start="prior")),
        _wrong("student_outliers", "FedEP from the prior", lambda: pf.FedEP(start="prior")),
        _wrong("poisson_rare", "FedEP from the prior", lambda: pf.FedEP(start="prior")),
        _wrong("linear_scale_sorted", "FedEP, loose tolerance", lambda: pf.FedEP(start="prior", tolerance=10.0)),
        _wrong("logistic_labels", "DSVGD, steps of 1e-4", lambda: pf.DSVGD(step_size=1e-4, start="prior")),
        _wrong("linear_scale_sorted", "DSVGD, steps of 1e-4", lambda: pf.DSVGD(step_size=1e-4, start="prior")),
        _wrong("logistic_covariates", "DSVGD, steps of 20", lambda: pf.DSVGD(step_size=20.0)),
        _wrong("logistic_labels", "FSGLD, steps of 1e-7", lambda: pf.FSGLD(step=pf.infer.step.Fixed(size=1e-7))),
        _wrong("logistic_labels", "FSGLD, steps of 3", lambda: pf.FSGLD(step=pf.infer.step.Fixed(size=3.0))),
        _wrong("linear_scale_sorted", "DSGLD", lambda: pf.infer.DSGLD(), num_rounds=2000),
        _wrong("logistic_labels", "FSGLD, batches of 1", lambda: pf.FSGLD(batch_size=1, control_variate=False)),
        # too few particles, draws, proposals
        _wrong("logistic_covariates", "DSVGD, 4 particles", lambda: pf.DSVGD(num_particles=4)),
        _wrong("linear_scale", "DSVGD, 2 particles", lambda: pf.DSVGD(num_particles=2)),
        _wrong("half_cauchy_n4", "FedAIS, 50 proposals", lambda: pf.FedAIS(num_proposals=50)),
        _wrong("schools", "FedAIS, 20 proposals", lambda: pf.FedAIS(num_proposals=20)),
        _wrong("logistic_labels", "FedEP, 20 draws", pf.FedEP, num_draws=20),
        _wrong("linear_sorted", "FedLaplace, 2 draws", pf.FedLaplace, num_draws=2),
        _wrong("radon", "NUTS, 20 draws", lambda: pf.NUTS(num_samples=20, warmup_steps=10)),
        _wrong("logistic_labels", "FedEP by 30 MCMC steps", lambda: pf.FedEP(client=mcmc)),
        # too simple
        _wrong("collinear", "FedEP, diagonal", lambda: pf.FedEP(covariance="diag")),
        _wrong("linear_sorted", "FedEP, diagonal", lambda: pf.FedEP(covariance="diag")),
        _wrong("collinear", "P2PVI, diagonal", lambda: pf.P2PVI(covariance="diag"), graph=ring),
        _wrong("sum_only", "FedEP, diagonal", lambda: pf.FedEP(covariance="diag")),
        _wrong("logistic_separated", "FedLaplace, diagonal", lambda: pf.FedLaplace(covariance="diag")),
        _wrong("autoregression", "BCM", pf.infer.BCM),
        # another posterior
        _wrong("logistic_labels", "DSVGD, temperature 10", lambda: pf.DSVGD(temperature=10.0)),
        _wrong("logistic_labels", "FedEP, temperature 4", lambda: pf.FedEP(temperature=4.0)),
        _wrong("logistic_labels", "NUTS, temperature 10", lambda: pf.NUTS(temperature=10.0)),
        # clients that are never asked
        _wrong("linear_sorted", "FedEP, the last client missed", pf.FedEP, schedule=missed),
        _wrong("logistic_labels", "FedEP from the prior, one missed", lambda: pf.FedEP(start="prior"), schedule=missed),
        _wrong("logistic_labels", "DSVGD, the first client alone", pf.DSVGD, schedule=one),
        _wrong("logistic_covariates", "FSGLD, the first client alone", pf.FSGLD, schedule=one, num_rounds=500),
        _wrong("linear_sorted", "P2PVI, the last agent asleep", pf.P2PVI, schedule=missed, graph=ring),
        # as published
        _wrong("logistic_labels", "published DSVGD", pf.papers.PaperDSVGD),
        _wrong("readme", "published DSVGD", pf.papers.PaperDSVGD),
        _wrong("linear_scale_sorted", "published DSVGD", pf.papers.PaperDSVGD),
        _wrong("logistic_labels", "published P2PVI", recipe("p2p_vi_paper"), graph=ring),
        _wrong("linear_sorted", "P2PVI, published weights", lambda: pf.P2PVI(weighting="paper"), graph=ring),
        _wrong("logistic_labels", "published FedEP (M)", recipe("fedep_m"), num_rounds=100),
        _wrong("linear_scale_sorted", "published FedEP (V)", recipe("fedep_v"), num_rounds=100),
        _wrong("linear_sorted", "published FedPA", recipe("fedpa")),
        _wrong("logistic_labels", "FALD, published recipe", recipe("fald")),
        # noise for privacy
        _wrong(
            "logistic_labels",
            "FedSEP with noise",
            lambda: pf.infer.FedSEP(start="prior"),
            combination=pf.Private(norm=1.0, noise_multiplier=2.0),
        ),
        # single precision where it is too little: badly scaled columns kept in it
        _wrong("years_float32", "FedEP in float32", pf.FedEP, federation={"dtype": torch.float32}),
        _wrong("badly_scaled_float32", "DSVGD in float32", pf.DSVGD, federation={"dtype": torch.float32}),
    ]


def trials() -> list[Trial]:
    """All of them."""
    return [*defaults(), *wrong_settings()]
