"""Studies by files over three unequal sites, and the simulation with which they are compared."""

import warnings
from pathlib import Path

import arviz as az
import numpy as np
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.deployment.files import answer_request, combine, init_study
from pyro_fed.deployment.files.study import Study
from pyro_fed.recipes import recipe as recipes

SITES = ("north", "south", "west")
MODEL = '''"""Linear regression with known noise."""
import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
'''


class Case:
    """A coordinator's folder and a folder for each site, which share nothing but the files that are mailed.

    Args:
        folder: an empty one.
        recipe: the recipe's text.
        rows: each site's rows; by default those of `unequal_lines`.
        model: the model's text.
        **options: arguments of `init_study`.
    """

    def __init__(self, folder, recipe, rows=None, model=MODEL, **options):
        self.folder, self.mail = folder, folder / "mail"
        self.mail.mkdir()
        (folder / "line.py").write_text(model)
        (folder / "recipe.toml").write_text(recipe)
        fed = unequal_lines()
        rows = rows or [tuple(leaf.numpy() for leaf in fed.client_args(k)[0]) for k in range(3)]
        names = model.split("def model(")[1].split(")")[0].split(", ")
        for site, own in zip(SITES, rows, strict=True):
            (folder / site).mkdir()
            np.savez(folder / site / "rows.npz", **dict(zip(names, own, strict=True)))
        self.study = folder / "trial"
        self.options = {"audit": False, **options}
        self.init()

    def init(self):
        made = init_study(self.study, self.folder / "line.py", self.folder / "recipe.toml", SITES, **self.options)
        self.fingerprint = made.fingerprint
        return made

    @property
    def chosen(self):
        return recipes.load(self.folder / "recipe.toml")

    def answer(self, request, **more):
        """A site's answer, in the folder of mails."""
        site = request.stem.rpartition("-")[2]
        own = self.folder / site
        given = {"folder": own / "study", "coordinator": self.fingerprint, "out": self.mail, **more}
        return answer_request(request, own / "rows.npz", **given)

    def combine(self, *answers, **more):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of so short a run
            return combine(self.study, answers, **more)

    def begun(self):
        """The first `combine` after all descriptions are here: exchange 1 is asked."""
        return self.combine(*map(self.answer, self.combine().requests))

    def finish(self, found=None):
        """Exchange after exchange to the end: the result, and the number of exchanges."""
        found = found or self.combine()
        while found.result is None:
            assert not found.refused
            found = self.combine(*map(self.answer, found.requests))
        with Study.opened(self.study) as study:
            exchanges = study.present
        return az.from_netcdf(found.result), exchanges

    def outbox(self, site, exchange):
        return self.study / "outbox" / f"round-{exchange:03d}-request-{site}.study"

    def answered(self, site, exchange):
        return self.mail / f"answer-{site}-{exchange:03d}.study"


def simulated(case, fed=None, algorithm=None, **options):
    """The simulation's result of a case's recipe."""
    fed, chosen = fed or unequal_lines(), case.chosen
    fixed = {"progress": False, "compile": "off", "log_likelihood": False, "audit": False, "executor": "sequential"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm or chosen.build(), fed, **{**fixed, **chosen.run_options(fed.num_clients), **options})


def same_draws(found, expected):
    names = set(expected.posterior.data_vars) & set(found.posterior.data_vars)
    assert names
    return all(np.array_equal(found.posterior[name], expected.posterior[name]) for name in names)


def recipe_text(name, run="", **tables):
    """A recipe of an algorithm."""
    lines = [f'algorithm = "pyro_fed.infer:{name}"', "[settings]"]
    lines += [f"{key} = {value!r}".replace("True", "true").replace("'", '"') for key, value in tables.items()]
    return "\n".join([*lines, "[run]", run, ""])


__all__ = ["MODEL", "SITES", "Case", "Path", "recipe_text", "same_draws", "simulated"]
