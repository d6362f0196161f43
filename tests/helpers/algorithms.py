"""The algorithms that the contract tests run: (name, factory, federation); every row gets every test.

An algorithm of the package that no row makes is run with its default settings: a new one is tested as soon as it is in
its family's door. Append a row where the defaults take long, or where other settings take other paths. A factory makes
the algorithm with few steps, its federation a small problem on which those are stable. What is `OnGraph` runs on
`graph_of` its federation.
"""

import inspect
import re
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed import infer
from pyro_fed.algorithm import Algorithm
from pyro_fed.testing.case import graph_of as graph_of


def line(x, y):
    """Bayesian linear regression with known noise."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def line_data(rows=23, seed=0):
    """Covariates and targets in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + noise


def unequal_lines():
    """Three clients of 3, 7 and 13 rows."""
    parts = pf.partition.Explicit([list(range(3)), list(range(3, 10)), list(range(10, 23))])
    return pf.Federation(line, line_data(), plate="data", partition=parts)


SMALL = {"num_particles": 5, "local_steps": 4}
#: Of `PaperDSVGD`, which else distills in 200 steps.
PAPER = {**SMALL, "distill_steps": 3}
CHAIN = {"steps": 6, "burn_in": 2, "step_size": 0.01}
VISITS = {"local_steps": 4, "batch_size": 3, "burn_in": 4, "thin": 1, "target_ess": None, "num_chains": 2}


def small(kind, **settings):
    """A Stein method whose rounds take milliseconds."""
    return kind(**(PAPER if "distill_steps" in kind.__dataclass_fields__ else SMALL), **settings)


def few_sgld_draws():
    """Surrogates from short local chains."""
    return pf.infer.LocalSGLD(num_samples=20, burn_in=10, stages=2)


ALGORITHMS = [
    (name, factory, unequal_lines)
    for name, factory in {
        "SVGD": lambda: pf.infer.SVGD(**SMALL),
        "SVGD, minibatches": lambda: pf.infer.SVGD(**SMALL, batch_size=5),
        "PaperSVGD": lambda: pf.papers.PaperSVGD(**SMALL),
        "PaperSVGD, minibatches": lambda: pf.papers.PaperSVGD(**SMALL, batch_size=5),
        "DSVGD": lambda: pf.DSVGD(**SMALL),
        "DSVGD, minibatches": lambda: pf.DSVGD(**SMALL, batch_size=5, start="gaussian"),
        "DSVGD, apart": lambda: pf.DSVGD(**SMALL, start="apart"),
        "ParallelDSVGD": lambda: pf.infer.ParallelDSVGD(**SMALL, start="prior"),
        "PaperDSVGD": lambda: pf.papers.PaperDSVGD(**SMALL, distill_steps=3),
        "PaperDSVGD, minibatches": lambda: pf.papers.PaperDSVGD(**SMALL, distill_steps=3, batch_size=5),
        "PaperParallelDSVGD": lambda: pf.papers.PaperParallelDSVGD(**SMALL, distill_steps=3, server_steps=3),
        "UDSVGD": lambda: pf.papers.UDSVGD(**SMALL),
        "UDSVGD, minibatches": lambda: pf.papers.UDSVGD(**SMALL, batch_size=5),
        "FedLaplace": lambda: pf.FedLaplace(),
        "FedEP": lambda: pf.FedEP(),
        "FedEP, diagonal": lambda: pf.FedEP(covariance="diag"),
        "FedEP (I)": lambda: pf.FedEP(client=pf.infer.tilted.Identity(**CHAIN), start="prior"),
        "FedEP (M)": lambda: pf.FedEP(client=pf.infer.tilted.MCMC(**CHAIN), start="prior"),
        "FedEP (L)": lambda: pf.FedEP(client="laplace"),
        "FedEP (V)": lambda: pf.FedEP(client=pf.infer.tilted.NGVI(fisher_steps=2, **CHAIN), start="prior"),
        "FedEP, SVI": lambda: pf.FedEP(client=pf.infer.tilted.SVI(steps=5), start="prior"),
        "FedSEP": lambda: pf.infer.FedSEP(),
        "PVI": lambda: pf.infer.PVI(),
        "FedAIS": lambda: pf.FedAIS(num_proposals=60, min_effective=10),
        "FedPA": lambda: pf.infer.FedPA(client=pf.infer.tilted.MCMC(**CHAIN)),
        "FedAvg": lambda: pf.FedAvg(chain_steps=5, batch_size=3),
        "SFVI": lambda: pf.infer.SFVI(num_steps=200, step_size=0.1, surrogates=None),
        "SFVI, averaged": lambda: pf.infer.SFVI(num_steps=16, local_steps=4, num_particles=2, surrogates=None),
        "FedProx": lambda: pf.infer.FedProx(chain_steps=5, batch_size=3),
        "FedDyn": lambda: pf.infer.FedDyn(chain_steps=5, batch_size=3),
        "FedLap": lambda: pf.infer.FedLap(client=pf.infer.tilted.Laplace(steps=1)),
        "FedLapCov": lambda: pf.infer.FedLapCov(client=pf.infer.tilted.Laplace(steps=1)),
        "BayesADMM": lambda: pf.infer.BayesADMM(client=pf.infer.tilted.Newton(steps=2)),
        "BCM": lambda: pf.infer.BCM(),
        "SVI": lambda: pf.infer.SVI(num_steps=20, num_guide_draws=40),
        "NPV": lambda: pf.papers.NPV(num_components=3, steps=3),
        "PMD": lambda: pf.papers.PMD(num_particles=20, local_steps=3),
        "SGLD": lambda: pf.infer.SGLD(**VISITS),
        "SAGALD": lambda: pf.infer.SAGALD(**VISITS),
        "DSGLD": lambda: pf.infer.DSGLD(**VISITS),
        "FSGLD": lambda: pf.FSGLD(**VISITS),
        "FSGLD, surrogates from draws": lambda: pf.FSGLD(surrogates=few_sgld_draws(), **VISITS),
        "FALD": lambda: pf.infer.FALD(**VISITS | {"thin": 4}),
        "VRFALD": lambda: pf.infer.VRFALD(**VISITS | {"thin": 4}),
        "SummedLangevin": lambda: pf.infer.SummedLangevin(step_size=0.01, num_chains=2, burn_in=4),
        "QLSD": lambda: pf.infer.QLSD(step_size=0.01, num_chains=2, burn_in=4),
        "P2PVI": lambda: pf.P2PVI(),
        "P2PVI, published": lambda: pf.P2PVI(weighting="paper", gossip_steps=1, batch_size=3),
        "P2PVI, by backpropagation": lambda: pf.P2PVI(update=pf.infer.update.SVI(steps=5)),
        "P2PEP": lambda: pf.infer.P2PEP(),
        "P2PSFVI": lambda: pf.infer.P2PSFVI(num_steps=100, step_size=0.1, surrogates=None),
        "P2PFinite": lambda: pf.papers.P2PFinite(num_candidates=20),
        "P2PFedAvg": lambda: pf.infer.P2PFedAvg(chain_steps=3),
        "ConsensusMC": lambda: pf.infer.ConsensusMC(num_samples=8, warmup_steps=4, max_tree_depth=2),
        "NUTS": lambda: pf.NUTS(num_samples=8, warmup_steps=4, num_chains=2, max_tree_depth=3),
    }.items()
]

#: The classes that the rows above make.
MADE = set(re.findall(r"\bpf\.(?:\w+\.)?(\w+)\(", Path(__file__).read_text(encoding="utf-8")))
OTHERS = {name: getattr(infer, name) for name in dir(infer) if name not in MADE}
ALGORITHMS += [
    (name, kind, unequal_lines)
    for name, kind in OTHERS.items()
    if isinstance(kind, type) and issubclass(kind, Algorithm) and not inspect.isabstract(kind)
]

_CHAINS = ("SGLD", "SAGALD", "DSGLD", "FSGLD", "FSGLD, surrogates from draws", "FALD", "VRFALD")
#: Check of `pf.testing` → why an algorithm need not pass it → the rows of which that holds.
_NEED_NOT = {
    "check_conjugate_posterior": {
        "a fixed step and ten thousand rounds, see infer/langevin": (*_CHAINS, "SummedLangevin", "QLSD"),
        "eight draws a chain": ("ConsensusMC", "NUTS"),
        "what is left of twenty candidates, or particles": ("P2PFinite", "PMD"),
        "few steps, which are above to be quick": (
            "SVI",
            "FedEP, SVI",
            "P2PVI, published",
            "P2PVI, by backpropagation",
        ),
        "the mean of unequal clients' parameters": ("SFVI, averaged",),
        "chains of six steps, of published forms": ("FedEP (I)", "FedEP (M)", "FedEP (V)", "FedPA"),
    },
    "check_inputs_are_unchanged": {
        # A copy of all draws in each of ten thousand rounds would cost more than the rounds.
        "draws are written into room behind those that the state before counts": (*_CHAINS, "FedHMC"),
    },
}
#: Row → name of a check → why that row need not pass it.
NEED_NOT = {
    row: {check: why for check, reasons in _NEED_NOT.items() for why, rows in reasons.items() if row in rows}
    for reasons in _NEED_NOT.values()
    for rows in reasons.values()
    for row in rows
}
