"""Regressions by a formula: the printed program is the model, with the columns and density that the formula says."""

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from scipy import stats

import pyro_fed as pf
from benchmarks.accuracy.formulas import FORMULAS, SITES, frames


def executed(source):
    """The function of a printed program, as a user runs it."""
    space = {}
    exec(source, space)
    return space["model"]


@pytest.mark.parametrize(("formula", "family", "columns", "effects"), FORMULAS, ids=[one[0] for one in FORMULAS])
def test_a_formula_is_the_printed_model_over_the_clients_rows(formula, family, columns, effects):
    study = pf.glm(formula, frames(), family=family)
    problem = study.federation.problem
    assert study.federation.client_names == list(SITES)
    assert list(study.federation.coords["column"]) == columns
    assert {name for name in problem.sites if name.endswith("_sd")} == {f"{name}_sd" for name in effects}
    kept = {name.removesuffix("_effect") for name in problem.layout.local}
    assert kept == {name for name in effects if name.startswith("ward")}  # doctors work at several hospitals
    trace = pyro.poutine.trace(executed(str(study))).get_trace(*problem.arguments.call_arguments()[0])
    assert trace.nodes["b"]["value"].shape == (len(columns),)
    for name, size in effects.items():
        assert trace.nodes[f"{name}_effect"]["value"].shape[1:] == (() if size == 1 else (size,))


LIKELIHOODS = {
    "gaussian": ("y ~ age", lambda y, eta, p, n: stats.norm(eta, p["sigma"]).logpdf(y)),
    "t": ("y ~ age", lambda y, eta, p, n: stats.t(p["nu"], eta, p["sigma"]).logpdf(y)),
    "bernoulli": ("flag ~ age", lambda y, eta, p, n: stats.bernoulli(1 / (1 + np.exp(-eta))).logpmf(y)),
    "binomial": ("p(hits, trials) ~ age", lambda y, eta, p, n: stats.binom(n, 1 / (1 + np.exp(-eta))).logpmf(y)),
    "poisson": ("count ~ age", lambda y, eta, p, n: stats.poisson(np.exp(eta)).logpmf(y)),
    "negativebinomial": (
        "count ~ age",
        lambda y, eta, p, n: stats.nbinom(p["alpha"], p["alpha"] / (p["alpha"] + np.exp(eta))).logpmf(y),
    ),
    "gamma": ("positive ~ age", lambda y, eta, p, n: stats.gamma(p["alpha"], scale=np.exp(eta) / p["alpha"]).logpdf(y)),
    "beta": (
        "share ~ age",
        lambda y, eta, p, n: stats.beta(p["kappa"] / (1 + np.exp(-eta)), p["kappa"] / (1 + np.exp(eta))).logpdf(y),
    ),
}


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_the_likelihood_is_that_of_the_family(family):
    """By scipy's densities, at parameters away from every default."""
    formula, density = LIKELIHOODS[family]
    study, table = pf.glm(formula, frames(), family=family, dtype=torch.float64), pd.concat(frames().values())
    problem, values = study.federation.problem, {"b": [0.2, 0.01], "sigma": 1.3, "nu": 4.0, "alpha": 1.7, "kappa": 2.5}
    z = problem.unconstrain({name: torch.tensor(values[name], dtype=torch.float64) for name in problem.sites})
    response = table[formula.partition("~")[0].strip().removeprefix("p(").partition(",")[0]].to_numpy(float)
    expected = density(response, 0.2 + 0.01 * table["age"].to_numpy(), values, table["trials"].to_numpy())
    assert float(problem.log_lik(z)) == pytest.approx(expected.sum(), rel=1e-6)


def test_priors_are_in_units_of_columns_and_response():
    table = pd.concat(frames().values())
    source = str(pf.glm("y ~ age", frames(), priors={"age": (0.5, 0.25)}))
    unit, mean, sd = table["y"].std(ddof=0), table["age"].mean(), table["age"].std(ddof=0)
    level = 2.5 * unit * np.sqrt(1 + (mean / sd) ** 2)
    assert f"torch.tensor([{table['y'].mean():.3g}, 0.5]), torch.tensor([{level:.3g}, 0.25])" in source
    assert f"'sigma', dist.HalfNormal({unit:.3g})" in source
    plain = str(pf.glm("flag ~ age", frames(), family="bernoulli"))
    assert (
        f"torch.tensor([0.0, 0.0]), torch.tensor([{2.5 * np.sqrt(1 + (mean / sd) ** 2):.3g}, {2.5 / sd:.3g}])" in plain
    )


def test_a_fit_is_least_squares_where_priors_are_wide():
    """With 75 rows the posterior of a Gaussian regression is that of least squares, within a tenth of its SDs."""
    priors = {"Intercept": (0.0, 1e3), "age": (0.0, 1e3), "sex[male]": (0.0, 1e3)}
    study = pf.glm("y ~ age + sex", frames(), priors=priors, dtype=torch.float64)
    idata = pf.run(pf.FedEP(), study.federation, progress=False)
    table = pd.concat(frames().values())
    x = np.column_stack([np.ones(len(table)), table["age"], table["sex"] == "male"])
    best, (rest,) = np.linalg.lstsq(x, table["y"], rcond=None)[:2]
    sd = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * rest / (len(table) - 3))
    b = idata.posterior["b"].values.reshape(-1, 3)
    assert np.abs((b.mean(0) - best) / sd).max() < 0.15  # 1,000 draws: 0.03 SDs by chance
    assert np.abs(b.std(0) / sd - 1).max() < 0.15


def test_new_rows_of_known_and_new_groups():
    study = pf.glm("y ~ age + (1 | ward)", frames())
    idata = pf.run(pf.FedEP(), study.federation, progress=False, audit=False)
    new = pd.DataFrame({"age": [60.0, 60.0, 60.0], "ward": ["north-0", "ulm", "ulm"]})
    drawn = pf.predict(idata, study.federation, study.arguments(new)).posterior_predictive["y"]
    assert drawn.shape[2] == 3 and bool(np.isfinite(drawn).all())
    level = idata.posterior["ward_effect"].sel(ward="north-0").values
    expected = (idata.posterior["b"].values @ np.array([1.0, 60.0])) + level
    assert float(drawn[..., 0].mean()) == pytest.approx(expected.mean(), abs=5 * float(drawn[..., 0].std()) / 1000**0.5)


def test_one_frame_is_dealt_out():
    study = pf.glm("y ~ age", frames()["north"], num_clients=3)
    assert study.federation.num_clients == 3


def with_column(column, values):
    changed = frames()
    changed["south"][column] = values
    return changed


@pytest.mark.parametrize(
    ("formula", "clients", "options", "kind", "said"),
    [
        ("y ~ height", frames(), {}, pf.errors.SettingError, "has height"),
        ("y ~ age +* sex", frames(), {}, pf.errors.SettingError, "cannot be read"),
        ("age + sex", frames(), {}, pf.errors.SettingError, "no response"),
        ("y ~ age", frames(), {"family": "gausian"}, pf.errors.SettingError, "gaussian"),
        ("y ~ age", frames(), {"priors": {"sex": (0.0, 1.0)}}, pf.errors.SettingError, "is not a column"),
        ("y ~ age", frames(), {"priors": {"age": (0.0, 0.0)}}, pf.errors.SettingError, "positive scale"),
        ("event ~ age", frames(), {"family": "bernoulli"}, pf.errors.SettingError, r"event\['yes'\]"),
        ("y ~ age", frames(), {"family": "poisson"}, pf.errors.DataError, "takes counts"),
        ("hits ~ age", frames(), {"family": "binomial"}, pf.errors.SettingError, "belong together"),
        ("p(trials, hits) ~ age", frames(), {"family": "binomial"}, pf.errors.SettingError, "cannot be computed"),
        ("y ~ age", with_column("age", np.nan), {}, pf.errors.DataError, "'age' 20"),
        ("y ~ sex", with_column("sex", 1), {}, pf.errors.DataError, "numbers at south"),
        ("y ~ age", {}, {}, pf.errors.DataError, "no rows"),
    ],
)
def test_what_is_no_regression_is_refused(formula, clients, options, kind, said):
    with pytest.raises(kind, match=said):
        pf.glm(formula, clients, **options)


def test_levels_that_the_clients_do_not_have_are_refused():
    study = pf.glm("y ~ stage", frames())
    with pytest.raises(pf.errors.DataError, match="iv"):
        study.arguments(pd.DataFrame({"stage": ["iv"]}))


@pytest.mark.parametrize("own", [["F", "M"], ["woman", "man"]])
def test_labels_of_one_hospital_alone_are_named(own):
    coded = frames()
    coded["south"]["sex"] = coded["south"]["sex"].map(dict(zip(["female", "male"], own, strict=True)))
    with pytest.warns(UserWarning, match="'sex' has the labels .* at client south, none of which"):
        pf.glm("y ~ age + sex + (1 | ward)", coded)
