"""Draws of parameters and observations from the prior, before anything is fitted.

For each draw the model runs on the federation's arguments, with its latents drawn from their priors and its observed
sites drawn anew, y_s ~ p(y | x, z_s) with z_s ~ p(z).
"""

from __future__ import annotations

import torch
from pyro.distributions import Unit
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import ModelRun, draw, split_plates
from pyro_fed.analysis.predicting.predict import datasets
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.errors import DataError, SettingError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data


class _PriorRun(ModelRun):
    """The model as a function to draws of all of its sites, those that it computes (`pyro.deterministic`) too."""

    reported: tuple[str, ...] = ()

    def __call__(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        trace, handler = self.trace(values)
        return {name: trace.nodes[name]["value"] for name in (*handler.drawn, *self.reported)}


@checked
@explained(DataError, "prior_predict: the model's prior cannot be drawn from")
def prior_predict(federation: Federation, *, num_draws: int = 1000, seed: int = 0) -> InferenceData:
    """Draw parameters and observations from the prior, at the rows of a federation.

    Args:
        federation: the model and its data.
        num_draws: number of draws.
        seed: seed of the draws.

    Returns:
        InferenceData with the groups `prior`, of the latents, and `prior_predictive`, of the observed sites, both of
        draws (chain, draw, ...) with one chain, and `observed_data`. Names, dimensions and coordinates are those of
        a result, so that `idata.extend(...)` adds them to it.

    Raises:
        DataError: a prior that cannot be drawn from, since it is improper or a `pyro.factor`; rows that are not here.
        SettingError: fewer than one draw.

    Example:
        >>> prior = pf.prior_predict(fed)
        >>> az.plot_ppc(prior, group="prior")                   # before the fit
        >>> idata.extend(prior)                                    # prior and posterior side by side
    """
    if num_draws < 1:
        raise SettingError(f"prior_predict: num_draws must be at least 1, received {num_draws}")
    problem = federation.problem
    if not federation.holds_data:
        raise DataError("prior_predict: the rows are at the clients: draw there, from a federation of their own rows")
    args, kwargs = problem.arguments.call_arguments()
    constants, split = dict(problem.bound.constants), split_plates(problem)
    run = _PriorRun(problem.model, args, kwargs, problem.dtype, frozenset(), constants, split)
    run.reported = tuple(problem.layout.reported)
    with torch.random.fork_rng(devices=[]):
        trace, handler = run.trace({})
    factors = [name for name, site in trace.nodes.items() if isinstance(site.get("fn"), Unit)]
    if factors:
        raise DataError(
            f"prior_predict: the sites {listed(factors)} are pyro.factor, numbers that nothing can be drawn from: "
            "write them as distributions, pyro.sample(...)"
        )
    drawn = draw(run, {"": torch.arange(num_draws)}, seeding.torch_generator(seed, seeding.DRAWS))
    sites = {name: {**trace.nodes[name], "given": handler.given.get(name)} for name in drawn}
    groups = datasets(federation, sites, {name: value[None] for name, value in drawn.items()}, frozenset(), {})
    whole = groups.pop("posterior_predictive")
    observed = [name for name in drawn if name in handler.given]
    groups["prior"] = whole[[name for name in drawn if name not in handler.given]]
    groups["prior_predictive"] = whole[observed]
    return make_inference_data(groups, {"plate": problem.plate, "seed": seed})
