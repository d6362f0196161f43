# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Write your own algorithm in one file
#
# An algorithm is a frozen dataclass: its fields are its settings, its methods pure functions between tensors. It never
# sees Pyro, and it is registered nowhere. This one finds the posterior mode by gradient ascent: the server sends a
# point, each client answers with the gradient of its log-likelihood, the server adds the prior's and takes a step.
#
# Five methods must be written: `default_rounds`, `init`, `local_step`, `combine` and `sample`. The others have
# defaults. States and messages are dictionaries of tensors; what the server sends is its whole state, unless `download`
# says less. The server's own work with the model is in `prepare`, which is called before each round.
# `docs/architecture.md` lists all members in the order in which a run calls them, and the capabilities, second bases
# for what few algorithms do.

# %%
from dataclasses import dataclass
from typing import ClassVar

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch.func import grad

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm, Batch
from pyro_fed.conventions.setting_checks import check_positive


@dataclass(frozen=True, kw_only=True)
class FederatedAscent(Algorithm):
    """Gradient ascent to the posterior mode.

    Args:
        step_size: length of a step per unit of gradient.

    Raises:
        SettingError: a step size that is not positive.

    References:
        Nesterov (2004), Introductory lectures on convex optimization, Section 1.2.3.

    Example:
        >>> idata = pf.run(FederatedAscent(step_size=0.02), fed)
    """

    draws_are: ClassVar[str] = "point"
    step_size: float = 0.05

    def __post_init__(self):  # settings are checked where they are given
        check_positive(self, "step_size")

    def default_rounds(self, num_clients):
        return 200

    def init(self, problem, num_clients, generator, start):
        point = problem.init(1, generator)[0]
        return {"point": point, "prior": torch.zeros_like(point)}, {}  # the server's state; the clients keep nothing

    def prepare(self, problem, shared):  # the server's own work with the model: the prior counts once
        return {**shared, "prior": grad(problem.log_prior)(shared["point"])}

    def local_step(self, problem, shared, local, data, noise):  # of all the round's clients: everything is (C, ...)
        slope = problem.mapped(self.slope, (0, Batch(0, 0)))  # a function of one client, mapped, traced and compiled
        return {"slope": slope(shared["point"], data.full_batch())}, {}, {}  # messages, states, figures

    def slope(self, problem, point, batch):
        return grad(lambda z: problem.log_lik(z, batch))(point)

    def combine(self, shared, messages, weights):
        ascent = shared["prior"] + messages["slope"].sum(0)
        return {**shared, "point": shared["point"] + self.step_size * ascent}

    def monitor(self, before, after):
        return {"change": float((after["point"] - before["point"]).norm())}

    def converged(self, figures):
        return figures[-1]["change"] < 1e-6

    def sample(self, shared, num_draws, generator):
        return shared["point"].expand(1, 1, -1)  # (chain, draw, D), unconstrained: a point is one draw


# %% [markdown]
# It runs like any other, with every executor and schedule, a record of its traffic, and an `InferenceData`
# at the end.


# %%
def model(y):
    mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=y.dtype), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


y = torch.linspace(0.0, 2.0, 12, dtype=torch.float64)
fed = pf.Federation(model, (y,), plate="data", num_clients=3)
idata = pf.run(FederatedAscent(), fed, progress=False)
print(idata.attrs["converged"], idata.federation.sizes["round"], float(idata.posterior["mu"][0, 0]))

# %%
pf.plots.plot_convergence(idata)  # what `monitor` says of each round
plt.show()

# %% [markdown]
# The exact mode is the sum of the data over N + 1.

# %%
assert abs(float(idata.posterior["mu"][0, 0]) - float(y.sum() / 13)) < 1e-5

# %% [markdown]
# Every executor gives the same answer, since a step has no other inputs than its arguments. An algorithm that needs
# random numbers draws them in `draw_noise`, one client's for a round, as tensors with a leading axis over its steps;
# `local_step` gets those of all its clients as `noise`, (steps, C, ...). Langevin steps of every client, which end
# where the message says:
#
# ```python
# def draw_noise(self, problem, num_rows, generator):
#     return {"normal": torch.randn(self.steps, problem.dim, generator=generator, dtype=problem.dtype)}  # (steps, D)
#
# def local_step(self, problem, shared, local, data, noise):
#     const = {"center": shared["point"], "batch": data.full_batch()}  # does not change over the steps
#     const_dims = {"center": 0, "batch": BATCHES}  # which axes are the clients', for each entry
#     point, _ = problem.scan(self.step, shared["point"], const, noise, self.steps, const_dims)
#     return {"point": point}, {}, {}
#
# def step(self, problem, point, const, x):  # one client's step: no axis C, and x["normal"] is (D,)
#     slope = grad(lambda z: problem.log_lik(z, const["batch"]))(point) - (point - const["center"])
#     return point + self.step_size * slope + (2 * self.step_size) ** 0.5 * x["normal"], ()
# ```
#
# More that an algorithm may need:
#
# * Several steps a round: `carry, outs = problem.scan(step, carry, const, xs, length, const_dims)`, as above. Where
#   `const` is a batch alone, `const_dims` is `BATCHES` (from `pyro_fed.algorithm`); where all of its tensors have a
#   client axis, 0. Without noise `xs` is `()`; a step without an `out` returns `(carry, ())`.
# * A state of each client: the second of what `init` and `local_step` give. A client keeps its new state only if the
#   server uses its message. If the message is lost, late, not finite or refused, the client goes on from the state
#   before the round. What depends on how much of a message the server took is decided in `settle` (`SiteKeeping`).
# * The prior at the clients instead of at the server: each takes the share `data.num_rows / problem.num_rows` of it.
# * `weights` in `combine` are the shares of rows of the clients whose messages came, and sum to one.
# * The number of the round is no argument: what changes with it, such as a step size that falls, keeps its own counter
#   in the server's state.
# * What the server knows of each client, such as how far its message moves the answer, or which messages of a faulty
#   client it would bound, is an object beside the algorithm, which its method `contributions` returns. Where its
#   `client_sites` gives Gaussian sites, `check_algorithm` compares their product with the answer.
# * `additive = True` says that `combine` needs no more than the weighted sum of the messages: then robust means and
#   differential privacy may stand in for them (`run(..., combination=)`).

# %%
one_by_one = pf.run(FederatedAscent(), fed, executor="sequential", progress=False)
assert float(one_by_one.posterior["mu"][0, 0]) == float(idata.posterior["mu"][0, 0])

# %% [markdown]
# ## Does it do what every algorithm has to?
#
# `pf.testing.check_algorithm` has the contract as checks: settings that are frozen, checked, used and written to
# recipes; pure methods; messages of one form; one answer whatever the executor, the order of the clients, the compiler
# or an interruption; clients without rows. It lists all that fail, with what was expected and received, and the cure.
# An algorithm that gives a posterior, and not a point as here, is also compared with an exact one: an SD that is 13 %
# too small, which no doubt of a single run shows, is found there.

# %%
pf.testing.check_algorithm(FederatedAscent(step_size=0.02))

# %% [markdown]
# As tests of pytest, one for each check:
#
# ```python
# @pf.testing.parametrize_with_checks([FederatedAscent(), FederatedAscent(step_size=0.02)])
# def test_contract(algorithm, check):
#     check(algorithm)
# ```
#
# ## From the command line
#
# A recipe is a TOML file that names the class. It imports nothing but `pyro_fed.infer`: an algorithm of your own is
# imported by the model's file, which says `import my_package.ascent`. Then `pyro-fed run my_model.py ascent.toml` runs
# it, where `ascent.toml` says
#
# ```toml
# description = "Gradient ascent to the posterior mode"
# algorithm = "my_package.ascent:FederatedAscent"
#
# [settings]
# step_size = 0.01      # ours: stable on the shipped models
#
# [source]
# paper = "Nesterov (2004)"
# ```
#
# Every value says in a comment on its line where it is from (`# Table 7`, or `# ours: why`), and `[source]` names the
# paper: the shipped recipes are tested for that.
#
# ## As a part of this package
#
# 1. The module, in the folder of its family: `pyro_fed/infer/laplace/ascent.py` has a header with the paper and its
#    equations, and the class above with type hints, which mypy asks for: `Problem` is in `pyro_fed.density.problem`,
#    the other types are in `pyro_fed.algorithm`. What each family is about stands in the door of `pyro_fed.infer`.
# 2. One line in the family's door, `pyro_fed/infer/laplace/__init__.pyi`:
#    `from .ascent import FederatedAscent as FederatedAscent`. Now it is `pf.infer.FederatedAscent`, `pyro-fed list`
#    shows it, the page of its family in the documentation has it, and it has to pass the tests of every algorithm.
# 3. A recipe, `inference/ascent.toml`, as above with `algorithm = "pyro_fed.infer:FederatedAscent"`.
#
# Then keep the draws of the new algorithm, and test the contract, the recipe and the docstring:
#
# ```sh
# python tests/helpers/contract_draws.py --write FederatedAscent
# pytest tests/algorithm tests/recipes tests/infer/test_docstrings.py -k "FederatedAscent or ascent"
# ```
#
# `-k` has both names, since the tests of the contract go by the class and those of the recipe by its file: with
# `-k fed_ascent` alone the contract would not be tested. `ruff check --fix .` sorts the door, and `make quick` runs
# lint, types and quick tests of the rest. The last step is a line in `CHANGELOG.md`.
