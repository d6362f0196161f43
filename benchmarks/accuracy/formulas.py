"""Formulas as users of lme4, brms and bambi write them: `pf.fit` of the federation beside NUTS on the printed program.

    python -m benchmarks.accuracy.formulas                     # all formulas: a table of Markdown
    python -m benchmarks.accuracy.formulas --only ward count   # those that have one of these words

Three hospitals with 75 patients and two wards each. The reference is Pyro's NUTS on the program that `print(study)`
shows, run by itself on the pooled rows, two chains of 500 + 1,000. Errors of means are in SDs of the reference, of SDs
in logarithms, the largest of all shared parameters; 2,000 draws add about 0.05 and 0.04 to these.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyro
import torch
from pyro.infer import MCMC, NUTS

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from pyro_fed.formula import GLM

SITES = {"north": 30, "south": 20, "west": 25}


def frames(seed=0):
    """Three hospitals with wards of their own."""
    rng = np.random.default_rng(seed)
    found = {}
    for site, rows in SITES.items():
        frame = pd.DataFrame(
            {
                "age": rng.normal(60, 10, rows),
                "dose": rng.choice([0.5, 1.0, 2.0], rows),
                "sex": rng.choice(["female", "male"], rows),
                "stage": rng.choice(["i", "ii", "iii"], rows),
                "ward": [f"{site}-{number}" for number in rng.integers(0, 2, rows)],
                "doctor": rng.choice(["a", "b", "c"], rows),
                "time": rng.uniform(0.5, 3.0, rows),
                "trials": rng.integers(4, 9, rows),
            }
        )
        frame["y"] = 0.05 * frame["age"] + (frame["sex"] == "male") + rng.normal(size=rows)
        frame["event"] = np.where(rng.random(rows) < 0.4, "yes", "no")
        frame["flag"] = rng.integers(0, 2, rows)
        frame["count"] = rng.poisson(2.0, rows)
        frame["positive"] = rng.gamma(2.0, 1.0, rows)
        frame["share"] = rng.beta(2.0, 3.0, rows)
        frame["hits"] = rng.binomial(frame["trials"], 0.3)
        found[site] = frame
    return found


#: Formulas as users of lme4, brms and bambi write them: family, columns of fixed effects, and effects a group.
FORMULAS = [
    ("y ~ 1", "gaussian", ["Intercept"], {}),
    ("y ~ age", "gaussian", ["Intercept", "age"], {}),
    ("y ~ 0 + age", "gaussian", ["age"], {}),
    ("y ~ age + sex", "gaussian", ["Intercept", "age", "sex[male]"], {}),
    ("y ~ age * sex", "gaussian", ["Intercept", "age", "sex[male]", "age:sex[male]"], {}),
    ("y ~ age : sex", "gaussian", ["Intercept", "age:sex[female]", "age:sex[male]"], {}),
    ("y ~ stage", "gaussian", ["Intercept", "stage[ii]", "stage[iii]"], {}),
    ("y ~ 0 + stage", "gaussian", ["stage[i]", "stage[ii]", "stage[iii]"], {}),
    ("y ~ C(dose)", "gaussian", ["Intercept", "C(dose)[1.0]", "C(dose)[2.0]"], {}),
    ("y ~ scale(age)", "gaussian", ["Intercept", "scale(age)"], {}),
    ("y ~ center(age)", "t", ["Intercept", "center(age)"], {}),
    ("y ~ np.log(time)", "t", ["Intercept", "np.log(time)"], {}),
    ("y ~ age + I(age**2)", "gaussian", ["Intercept", "age", "I(age ** 2)"], {}),
    ("y ~ poly(age, 2)", "gaussian", ["Intercept", "poly(age, 2)[0]", "poly(age, 2)[1]"], {}),
    ("y ~ bs(age, df=4)", "gaussian", ["Intercept", *(f"bs(age, df=4)[{i}]" for i in range(4))], {}),
    ("event['yes'] ~ age + sex", "bernoulli", ["Intercept", "age", "sex[male]"], {}),
    ("flag ~ age", "bernoulli", ["Intercept", "age"], {}),
    ("p(hits, trials) ~ age", "binomial", ["Intercept", "age"], {}),
    ("count ~ age + offset(np.log(time))", "poisson", ["Intercept", "age"], {}),
    ("count ~ age", "negativebinomial", ["Intercept", "age"], {}),
    ("positive ~ age", "gamma", ["Intercept", "age"], {}),
    ("share ~ age", "beta", ["Intercept", "age"], {}),
    ("y ~ age + (1 | ward)", "gaussian", ["Intercept", "age"], {"ward": 1}),
    ("event['yes'] ~ age + (age | ward)", "bernoulli", ["Intercept", "age"], {"ward": 2}),
    ("count ~ sex + (1 | ward) + (1 | doctor)", "poisson", ["Intercept", "sex[male]"], {"ward": 1, "doctor": 1}),
    ("y ~ age + (1 | ward:sex)", "gaussian", ["Intercept", "age"], {"ward_sex": 1}),
    ("y ~ age + (0 + age | ward)", "gaussian", ["Intercept", "age"], {"ward": 1}),
]


def reference(study: GLM) -> dict[str, np.ndarray]:
    """Draws (S, ...) of all sites by NUTS on the printed program."""
    space: dict[str, Any] = {}
    exec(str(study), space)  # the program that the user is shown
    arguments, _ = study.federation.problem.arguments.call_arguments()
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(2):
        chain = MCMC(NUTS(space["model"], jit_compile=True, ignore_jit_warnings=True), 1000, 500, disable_progbar=True)
        chain.run(*(plain(one) for one in arguments))
        for name, value in chain.get_samples().items():
            found.setdefault(name, []).append(value.numpy())
    return {name: np.concatenate(values) for name, values in found.items()}


def plain(argument: Any) -> Any:
    """An argument as the program takes it from a user: a column of labels as its codes."""
    return argument.as_subclass(torch.Tensor) if isinstance(argument, torch.Tensor) else argument


def errors(idata: Any, truth: dict[str, np.ndarray]) -> tuple[float, float]:
    """The largest errors of means, in SDs, and of log SDs, over the shared parameters."""
    means, sds = [0.0], [0.0]
    for name, values in truth.items():
        if name.endswith("_effect") or name not in idata.posterior:
            continue
        draws = idata.posterior[name].values
        draws = draws.reshape(-1, *draws.shape[2:])
        means.append(float(np.abs((draws.mean(0) - values.mean(0)) / values.std(0)).max()))
        sds.append(float(np.abs(np.log(draws.std(0) / values.std(0))).max()))
    return max(means), max(sds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""])
    words = parser.parse_args().only
    print(heading("formula", "family", "answer of", "mean, SDs", "log SD", "doubts", "fit, s", "NUTS, s"))
    for formula, family, _, _ in FORMULAS:
        if not any(word in formula for word in words):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = pf.glm(formula, frames(), family=family, dtype=torch.float64)
            began = time.perf_counter()
            idata = pf.fit(study.federation, progress=False, num_draws=4000)
            fitted = time.perf_counter()
            truth = reference(study)
            seconds = fitted - began, time.perf_counter() - fitted
        mean, sd = errors(idata, truth)
        doubts = len(pf.findings(idata).query("severity == 'doubt'"))
        shown = formula.replace("|", "\\|")
        cells = (f"`{shown}`", family, idata.attrs["chosen"], f"{mean:.2f}", f"{sd:.2f}", doubts)
        print(row(*cells, *(f"{one:.1f}" for one in seconds)), flush=True)


if __name__ == "__main__":
    main()
