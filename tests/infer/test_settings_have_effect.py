"""A setting that a run never looks at is refused: nothing that a user writes is silently ignored.

Each algorithm runs with its settings watched. A setting that it never read is given another value, which must be
refused, unless what the data are or how the run goes decides whether it is read (`BY_THE_DATA`).
"""

import dataclasses
import sys
import typing
import warnings

import pytest
import torch
from algorithms import SMALL, VISITS, few_sgld_draws, graph_of, unequal_lines

import pyro_fed as pf
from pyro_fed.errors import SettingError

GIVEN = pf.infer.Given(torch.eye(2, dtype=torch.float64).expand(3, 2, 2), torch.ones(3, 2, dtype=torch.float64))
FIXED = pf.infer.step.Fixed(size=0.01)
PLAIN = {"surrogates": None, "control_variate": False, "step": pf.infer.step.Fixed(size=0.01, precondition=False)}
CASES = {
    "SVGD": lambda: pf.infer.SVGD(**SMALL),
    "SVGD, gaussian": lambda: pf.infer.SVGD(**SMALL, start="gaussian"),
    "DSVGD": lambda: pf.DSVGD(**SMALL),
    "DSVGD, apart": lambda: pf.DSVGD(**SMALL, start="apart"),
    "DSVGD, prior": lambda: pf.DSVGD(**SMALL, start="prior"),
    "ParallelDSVGD": lambda: pf.infer.ParallelDSVGD(**SMALL),
    "PaperSVGD": lambda: pf.papers.PaperSVGD(**SMALL),
    "PaperDSVGD": lambda: pf.papers.PaperDSVGD(**SMALL, distill_steps=2),
    "PaperParallelDSVGD": lambda: pf.papers.PaperParallelDSVGD(**SMALL, distill_steps=2, server_steps=2),
    "UDSVGD": lambda: pf.papers.UDSVGD(**SMALL),
    "FedLaplace": lambda: pf.FedLaplace(),
    "FedAIS": lambda: pf.FedAIS(num_proposals=60, surrogates=GIVEN),
    "SFVI": lambda: pf.infer.SFVI(num_steps=5, num_guide_draws=10),
    "SFVI, averaged": lambda: pf.infer.SFVI(num_steps=4, local_steps=2, num_guide_draws=10),
    "SVI": lambda: pf.infer.SVI(num_steps=5, num_guide_draws=10),
    "NUTS": lambda: pf.NUTS(num_samples=10, warmup_steps=5, num_chains=1),
    "NUTS, laplace": lambda: pf.NUTS(num_samples=10, warmup_steps=5, num_chains=1, start="laplace"),
    "SGLD": lambda: pf.infer.SGLD(**VISITS),
    "SGLD, plain": lambda: pf.infer.SGLD(**VISITS, **PLAIN),
    "DSGLD": lambda: pf.infer.DSGLD(**VISITS),
    "DSGLD, plain": lambda: pf.infer.DSGLD(**VISITS, **PLAIN),
    "FSGLD": lambda: pf.FSGLD(**VISITS),
    "FSGLD, given step": lambda: pf.FSGLD(**VISITS, step=FIXED, surrogates=GIVEN),
    "FALD": lambda: pf.infer.FALD(**VISITS | {"thin": 4}),
    "FALD, plain": lambda: pf.infer.FALD(**VISITS | {"thin": 4}, **PLAIN, conducive=None),
    "VRFALD": lambda: pf.infer.VRFALD(**VISITS | {"thin": 4}),
    "SummedLangevin": lambda: pf.infer.SummedLangevin(step_size=0.01, burn_in=1, num_chains=2),
    "QLSD": lambda: pf.infer.QLSD(step_size=0.01, burn_in=1, num_chains=2, levels=3),
    "FedHMC": lambda: pf.infer.FedHMC(num_chains=4, surrogates=GIVEN),
    "LocalSGLD": few_sgld_draws,
    "LocalSGLD, given step": lambda: pf.infer.LocalSGLD(num_samples=20, burn_in=10, step_size=0.01, covariance="full"),
    "P2PVI": lambda: pf.P2PVI(),
    "P2PVI, gossip": lambda: pf.P2PVI(gossip_steps=1, start="prior"),
    "P2PVI, published": lambda: pf.P2PVI(weighting="paper"),
    "P2PVI, by backpropagation": lambda: pf.P2PVI(update=pf.infer.update.SVI(steps=5)),
    "P2PEP": lambda: pf.infer.P2PEP(tilted_points=64),
    "P2PFedAvg": lambda: pf.infer.P2PFedAvg(chain_steps=3),
    "P2PSFVI": lambda: pf.infer.P2PSFVI(num_steps=5, num_guide_draws=10),
}

#: Settings that are read or not as the data or the course of the run have it.
BY_THE_DATA = {
    "end": "after a pass",
    "min_effective": "where the weights' tail is short",
    "leapfrog_steps": "where the prior is not Gaussian",
    "step_size": "where the prior is not Gaussian",
    "levels": "where the prior is not Gaussian",
    "tolerance": "before a run that goes on",
}


def watched(algorithm, reads):
    """The same algorithm; what its own code reads of its settings goes into `reads`."""
    names = {field.name for field in dataclasses.fields(algorithm)}

    def __getattribute__(self, name):
        if name in names:
            code, module = sys._getframe(1).f_code, sys._getframe(1).f_globals.get("__name__", "")
            checks = code.co_name == "__post_init__" or code.co_name.startswith("_check")
            rules = module.startswith("pyro_fed.policy.") and module != "pyro_fed.policy.choice"
            rooms = ("pyro_fed.infer", "pyro_fed.guides", "pyro_fed.algorithm.contract", "pyro_fed.runtime.executors")
            own = module.startswith(rooms) or rules
            passed_on = code.co_name == "chosen_setting" or code.co_qualname.startswith("shared_settings.")
            if (own or passed_on) and code.co_filename != "<string>" and not checks:
                reads.add(name)
        return object.__getattribute__(self, name)

    kind = type(type(algorithm).__name__, (type(algorithm),), {"__getattribute__": __getattribute__})
    twin = object.__new__(kind)
    twin.__dict__.update(vars(algorithm))
    return twin


def other(algorithm, name):
    """Another value of a setting, in its range, that is not the default either."""
    hint = typing.get_type_hints(type(algorithm))[name]
    value = getattr(algorithm, name)
    choices = [
        c
        for part in (hint, *typing.get_args(hint))
        if typing.get_origin(part) is typing.Literal
        for c in typing.get_args(part)
    ]
    if choices:
        return next(choice for choice in reversed(choices) if choice != value)
    if isinstance(value, bool):
        return not value
    return {int: lambda: value + 2, float: lambda: value * 0.75 or 0.5, type(None): lambda: 2}[type(value)]()


@pytest.mark.parametrize("case", CASES)
def test_a_setting_that_is_never_read_is_refused(case):
    algorithm, federation, reads = CASES[case](), unequal_lines(), set()
    twin = watched(algorithm, reads)
    twin.default_rounds(3)
    options = {"progress": False, "compile": "off", "log_likelihood": False, "num_draws": 4, "audit": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pf.run(twin, federation, num_rounds=2, **graph_of(algorithm, federation), **options)
    ignored = {field.name for field in dataclasses.fields(algorithm)} - reads - BY_THE_DATA.keys()
    accepted = []
    for name in sorted(ignored):
        try:
            changed = dataclasses.replace(algorithm, **{name: other(algorithm, name)})
        except SettingError as refusal:
            assert name in str(refusal)
        else:
            accepted.append(f"{name}={getattr(changed, name)!r}")
    assert not accepted, f"{case}: accepted and without effect: {accepted}"
