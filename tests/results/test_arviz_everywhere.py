"""Results of every form × every function of ArviZ that a user calls: it works, or says why it means nothing.

What ArviZ does depends on the form of a result: its groups, variables, dims and dtypes, and whether there are several
chains and draws. One algorithm of each form goes through all functions; every algorithm must have a form that did.
"""

import functools
import inspect
import warnings

import numpy as np
import pytest
from algorithms import CHAIN, SMALL, VISITS, unequal_lines
from arviz_results import arviz_function, criterion, datasets, extend, groups_of, is_drawn, there_and_back
from late import late

import pyro_fed as pf
import pyro_fed.infer
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.analysis.report import overview
from pyro_fed.ops.arviz_versions import NEW, bfmi

az, xr = late("arviz"), late("xarray")

PARTICLES = {**SMALL, "num_particles": 30}

#: Settings with which each algorithm takes a second on a small line; those not named run with their defaults.
CHEAP = {
    "ConsensusMC": {"num_samples": 20, "warmup_steps": 4, "max_tree_depth": 2},
    "DSGLD": VISITS,
    "DSVGD": PARTICLES,
    "FALD": VISITS | {"thin": 4},
    "FSGLD": VISITS,
    "FedPA": {"client": pf.infer.tilted.MCMC(**CHAIN)},
    "LocalSGLD": {"num_samples": 20, "burn_in": 10},
    "NUTS": {"num_samples": 60, "warmup_steps": 40, "num_chains": 2},
    "PaperDSVGD": {**PARTICLES, "distill_steps": 3},
    "PaperParallelDSVGD": {**PARTICLES, "distill_steps": 3, "server_steps": 3},
    "PaperSVGD": PARTICLES,
    "ParallelDSVGD": PARTICLES,
    "SAGALD": VISITS,
    "SGLD": VISITS,
    "SVGD": PARTICLES,
    "QLSD": {"step_size": 0.01, "num_chains": 2, "burn_in": 0},
    "SummedLangevin": {"step_size": 0.01, "num_chains": 2, "burn_in": 0},
    "P2PSFVI": {"num_steps": 20, "num_guide_draws": 40},
    "SVI": {"num_steps": 20, "num_guide_draws": 40},
    "UDSVGD": PARTICLES,
    "VRFALD": VISITS | {"thin": 4},
}
OFFERED = {name: getattr(pyro_fed.infer, name) for name in dir(pyro_fed.infer)}  # loaded when asked for
PUBLIC = {name: value for name, value in OFFERED.items() if inspect.isclass(value)}
NAMES = sorted(n for n, v in PUBLIC.items() if issubclass(v, Algorithm) and not inspect.isabstract(v))

#: An algorithm for each form of a result.
EXAMPLES = {
    "particles": "SVGD",
    "independent draws": "FedEP",
    "draws with an evidence": "FedAIS",
    "chains": "FSGLD",
    "chains with energies": "NUTS",
    "draws of agents": "P2PVI",
    "a point": "FedAvg",
    "a point an agent": "P2PFedAvg",
}

#: Warnings that short runs give on purpose, and those of ArviZ's own calls of matplotlib, pandas and SciPy.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
    pytest.mark.usefixtures("close_figures"),
    pytest.mark.xdist_group("forms of results"),  # one process makes the run of an algorithm that its tests read
]


@functools.cache
def fitted(name):
    """A short run, with draws of its observations; two rounds at least."""
    cls, fed = PUBLIC[name], unequal_lines()
    options = {"graph": pf.graph.ring(3)} if issubclass(cls, OnGraph) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithm = cls(**CHEAP.get(name, {}))
        rounds = 1 if algorithm.default_rounds(3) == 1 else 3
        options |= {"progress": False, "audit": False}
        idata = pf.run(algorithm, fed, num_rounds=rounds, num_draws=40, **options)
        extend(idata, pf.predict(idata, fed))
    return idata


def kind(name):
    return PUBLIC[name].draws_are


PLOTS = ("plot_trace", "plot_forest", "plot_pair", "plot_posterior", "plot_rank", "plot_ppc")
NUMBERS = {
    "hdi": lambda idata: az.hdi(datasets(idata)["posterior"])["w"].values,
    "extract": lambda idata: az.extract(idata, keep_dataset=True)["w"].values,
    "summary": lambda idata: az.summary(idata, kind="stats", round_to="none").to_numpy(),
    "loo": lambda idata: criterion(az.loo(idata), "elpd"),
}


#: What ArviZ raises where draws are too few for a tail: of a single one, and in 1.x of fewer than 25.
TOO_FEW = (IndexError, ValueError)


def too_few(idata):
    """Whether the draws are too few for leave-one-out."""
    draws = idata.posterior.sizes["chain"] * idata.posterior.sizes["draw"]
    return draws < 25 if NEW else draws == 1


def form(idata):
    """What ArviZ can tell of a result but the numbers."""
    groups = ("posterior", "log_likelihood", "posterior_predictive", "observed_data")
    told = {group: {name: (x.dims, x.dtype) for name, x in idata[group].data_vars.items()} for group in groups}
    several = tuple(idata.posterior.sizes[dim] > 1 for dim in ("chain", "draw"))
    groups_known = groups_of(idata) - {"sites"}  # which ArviZ does nothing with
    return told, several, groups_known, "energy" in idata.sample_stats, idata.attrs["draws_are"]


FORMS = pytest.mark.parametrize("name", [pytest.param(name, id=form) for form, name in EXAMPLES.items()])


@pytest.mark.parametrize(
    ("name", "plot"),
    [
        pytest.param(name, plot, id=f"{form}-{plot}")
        for i, (form, name) in enumerate(EXAMPLES.items())
        for j, plot in enumerate(PLOTS)
        if (i + j) % 2 == 0
    ],
)
def test_arviz_draws_every_result(name, plot):
    """Each form by three of the plots, and each plot of forms with and without chains, of a point too."""
    idata = fitted(name)
    if kind(name) == "point" and plot in ("plot_posterior", "plot_pair"):  # a density of one point
        assert float(idata.posterior["w"].std(["chain", "draw"]).max()) == pytest.approx(0.0, abs=1e-9)
        return
    if NEW and plot == "plot_rank" and idata.posterior.sizes["chain"] == 1:  # 1.x compares chains there
        with pytest.raises(ValueError, match="at least 2 chains"):
            arviz_function(plot)(idata)
        return
    arviz_function(plot)(idata)
    assert is_drawn()


@FORMS
def test_comparison_with_another(name):
    pair = {"this": fitted(name), "nuts": fitted("NUTS")}
    if too_few(pair["this"]):
        with pytest.raises(TOO_FEW):
            az.compare(pair, method="pseudo-BMA")
        return
    assert set(az.compare(pair, method="pseudo-BMA").index) == {"this", "nuts"}


@FORMS
def test_energy_where_there_is_one(name):
    idata = fitted(name)
    if "energy" in idata.sample_stats:
        assert kind(name) == "chains"
        assert np.all(np.isfinite(bfmi(idata.sample_stats["energy"].values)))
        az.plot_energy(idata)
        assert is_drawn()
    else:
        with pytest.raises((TypeError, AttributeError, KeyError), match=r"energy"):
            az.plot_energy(idata)


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_a_form_that_was_tried(name):
    assert form(fitted(name)) in [form(fitted(example)) for example in EXAMPLES.values()]


@pytest.mark.parametrize("name", NAMES)
def test_arviz_finds_finite_numbers_in_every_result(name):
    """These depend on the numbers too: for every algorithm."""
    idata = fitted(name)
    for function, number in NUMBERS.items():
        if function == "loo" and too_few(idata):  # it has no tail to smooth
            with pytest.raises(TOO_FEW):
                az.loo(idata)
        elif kind(name) != "point":
            assert np.all(np.isfinite(number(idata))), function
        else:  # of the SD of one draw ArviZ says NaN
            assert np.isfinite(number(idata).ravel()[0]), function


@pytest.mark.parametrize("name", NAMES)
def test_what_the_draws_are_is_said(name):
    """R-hat and ESS are for chains; the attribute says what a result holds, and the table follows it."""
    idata = fitted(name)
    assert idata.attrs["draws_are"] in ("particles", "independent", "chains", "agents", "point")
    text = overview.posterior_table(idata, 5)
    assert ("r_hat" in text) == (idata.attrs["draws_are"] == "chains")


def kinds(idata):
    """What a file has to tell apart: the kinds of dtypes of each group's variables, and the types of attributes."""
    found = {(group, x.dtype.kind) for group, values in datasets(idata).items() for x in values.variables.values()}
    return found | {type(value).__name__ for values in datasets(idata).values() for value in values.attrs.values()}


@FORMS
def test_a_file_there_and_back(name, tmp_path):
    idata = fitted(name)
    back = there_and_back(idata, tmp_path / "run.nc")
    assert groups_of(back) == groups_of(idata)
    for group, values in datasets(idata).items():
        xr.testing.assert_equal(datasets(back)[group], values)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_nothing_that_was_not_tried(name):
    assert kinds(fitted(name)) <= set().union(*(kinds(fitted(example)) for example in EXAMPLES.values()))
