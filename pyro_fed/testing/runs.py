"""Checks of whole runs: the answer is right, and the same for any executor, compiler and interruption."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import select
from pyro_fed.conventions.limits import MIN_EFFECTIVE_DRAWS
from pyro_fed.errors import InterruptedRun
from pyro_fed.ops.arviz_versions import ess
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.executors import Sequential, Vectorised, Work
from pyro_fed.runtime.executors.base import Reply
from pyro_fed.runtime.executors.local import Step
from pyro_fed.testing import problems
from pyro_fed.testing.case import Case, require, values

#: Largest relative and absolute difference of draws between runs whose sums are in another order.
DRAWS_TOLERANCE = 1e-9
#: The same for the record's figures, for latents that are integrated out by hand, and for q and a sum of sites.
TOLERANCE = 1e-6
#: The client that never replies.
ABSENT = 1
#: The cure if the answers of two runs differ.
PURE = (
    "A step must depend on its arguments alone: no state in the algorithm, no global generator, no reduction over the "
    "axis of the clients in `local_step`"
)

#: Largest error of a mean, in posterior SDs, and of an SD, as a share of it, in addition to chance.
MEAN_ERROR = SD_ERROR = 0.05
#: Standard errors allowed for chance: four figures of independent draws exceed it once in 4,000 correct runs.
ALLOWED_STANDARD_ERRORS = 4.0
NUM_DRAWS = 4000


class LastFirst(Sequential):
    """One client after the other, the last first."""

    def steps(self, work: Work, at: torch.Tensor, noise: Noise) -> Step:
        """The local steps from the last client to the first, returned in the order of the work."""

        def turned(tree: Noise) -> Noise:
            return pytree.tree_map(lambda x: x.flip(1), tree)

        back = Work(work.round, work.seed, work.clients[::-1], {name: x.flip(0) for name, x in work.shared.items()})
        results = super().steps(back, at.flip(0), turned(noise))
        order = torch.arange(len(at)).flip(0)
        messages, states, figures = (select(part, order) for part in results)
        return messages, states, figures


class Interrupted(Vectorised):
    """The user's Ctrl-C at the request for the work of round `at`, counted from 1 over all phases."""

    def __init__(self, at: int) -> None:
        self.left = at

    def execute(self, work: Work) -> Reply:
        """The work, except in that round."""
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().execute(work)


class WithoutOne(Vectorised):
    """The second client never replies in the rounds of the algorithm whose class has this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def execute(self, work: Work) -> Reply:
        """The work of the others."""
        if type(self.algorithm).__name__ != self.name:
            return super().execute(work)
        failures = {slot: "does not answer" for slot, client in enumerate(work.clients) if client == ABSENT}
        slots = [slot for slot in range(len(work.clients)) if slot not in failures]
        if not slots:
            return Reply({}, {}, failures)
        return replace(super().execute(work.part(torch.tensor(slots))), failures=failures)


def check_executors_agree(algorithm: Algorithm, case: Case) -> None:
    """All clients at once and one after the other give the same draws and the same record."""
    together, one_by_one = case.untraced, case.one_by_one
    _agree(together, one_by_one, "one client after the other", "all at once", DRAWS_TOLERANCE)
    for name, series in together["federation"].data_vars.items():
        if name == "seconds" or not np.issubdtype(series.dtype, np.number):
            continue
        require(
            bool(
                np.allclose(
                    series.values, one_by_one["federation"][name].values, TOLERANCE, DRAWS_TOLERANCE, equal_nan=True
                )
            ),
            f"the record's {name!r} of one client after the other as of all at once",
            "other values",
            PURE,
        )


def check_arrival_order(algorithm: Algorithm, case: Case) -> None:
    """The last client first gives the same draws to the bit as the first client first."""
    _agree(case.one_by_one, case.run(executor=LastFirst()), "the last client first", "the first client first", 0.0)


def check_compile_levels_agree(algorithm: Algorithm, case: Case) -> None:
    """Traced steps give the draws of untraced ones."""
    _agree(case.untraced, case.traced, "traced steps", "untraced steps", DRAWS_TOLERANCE)


def check_seed(algorithm: Algorithm, case: Case) -> None:
    """Draws depend on the seed alone, not on threads or on global generators, which a run leaves unchanged."""
    torch_state, numpy_state, threads = torch.random.get_rng_state(), np.random.get_state(), torch.get_num_threads()
    try:
        torch.manual_seed(123)
        np.random.seed(5)
        before, state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
        again = case.run(compile="trace", num_threads=2)
        after = np.random.get_state()[1]  # type: ignore[index]
        unchanged = torch.equal(before, torch.random.get_rng_state()) and np.array_equal(state, after)
    finally:
        torch.random.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
    require(
        unchanged and torch.get_num_threads() == threads,
        "the global generators of torch and NumPy, and the number of threads, as they were before the run",
        "others",
        "Draw from the generator that a method is given",
    )
    _agree(case.traced, again, "a second run of the same seed", "the first", 0.0)
    if case.draws_by_chance:
        require(
            not np.allclose(values(again), values(case.run(compile="trace", seed=1))),
            "other draws with another seed",
            "the same",
            "Draw a client's random numbers in `draw_noise`, and use them",
        )


def check_evaluation_changes_nothing(algorithm: Algorithm, case: Case) -> None:
    """`evaluate=` receives the result after each round, at last the returned one, and does not change the run."""
    plain, evaluated = case.traced, case.run(compile="trace", evaluate=first_mean)
    _agree(plain, evaluated, "a run with evaluate=", "the run without", 0.0)
    series = evaluated["federation"]["first_mean"]
    require(
        series.dims == ("round",) and float(series[-1]) == first_mean(evaluated)["first_mean"],
        "the figure of the last round to be that of the result",
        f"{series.values[-1]} and {first_mean(evaluated)['first_mean']}",
        "`sample` must give the same draws of the same state",
    )
    require("first_mean" not in plain["federation"], "no figure without evaluate=", "one", PURE)


def first_mean(idata: InferenceData) -> dict[str, float]:
    """The mean of the first site's draws."""
    name = min(map(str, idata["posterior"].data_vars))
    return {"first_mean": float(idata["posterior"][name].mean())}


def check_resume(algorithm: Algorithm, case: Case) -> None:
    """A run that is interrupted before its third round and resumed equals the uninterrupted run, to the bit."""
    stop = 2 if case.done_in_one_round else 3
    options: dict[str, Any] = {"num_rounds": 2} if case.done_in_one_round else {}
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "state"
        with contextlib.suppress(KeyboardInterrupt, InterruptedRun):  # agents in a warm start have no draws yet
            case.run(compile="trace", checkpoint=saved, executor=Interrupted(stop), **options)
        case.run(compile="trace", num_rounds=1)  # replaces hidden state of the algorithm by that of another run
        resumed = case.run(compile="trace", checkpoint=saved, resume=True, **options)
    uninterrupted = case.run(compile="trace", **options) if options else case.traced
    compared = [name for name in uninterrupted["federation"] if name != "seconds"]
    require(
        bool(
            uninterrupted["posterior"].equals(resumed["posterior"])
            and uninterrupted["federation"][compared].equals(resumed["federation"][compared])
        ),
        "a run that was interrupted and resumed to give the draws and the record of an uninterrupted one",
        "others",
        "Keep everything that a round needs in the server's and the clients' states, such as a counter of rounds, and "
        "nothing in the algorithm or in a module",
    )


def check_unused_messages(algorithm: Algorithm, case: Case) -> None:
    """A client whose message is not used keeps its state; q is the prior times the clients' stored sites."""
    executor = WithoutOne(type(algorithm.delegate()).__name__)
    observation = case.observe(executor=executor)
    observation.ended()
    before, after = observation.of("init")[-1].result[1], executor.collect()
    changed = [name for name, value in before.items() if not _entry_is_unchanged(value[ABSENT], after[name][ABSENT])]
    require(
        not changed,
        "a client that never answered to have the state that `init` gave it",
        f"another {', '.join(map(repr, changed))}",
        "Return new tensors from `local_step` and `settle`: the run stores those of clients whose messages are used",
    )
    last = next((call.result for call in reversed(observation.calls) if call.method in ("refine", "combine")), None)
    if last is None or case.given is not None:
        return
    sites = algorithm.contributions().client_sites(last, after)
    if sites is None:
        return
    for name, prior in (("precision", torch.ones(2)), ("eta", torch.zeros(2))):
        answer, product = last[name], sites[name].sum(0)
        whole = product + (prior.diag() if product.dim() == 2 else prior)
        require(
            torch.allclose(answer, whole.to(answer), TOLERANCE, TOLERANCE),
            f"q's {name} to be the prior's plus the sum of the clients' sites",
            f"a difference of up to {float((answer - whole).abs().max()):g}",
            "`settle` must store the part of a client's message that the server used, which `feedback` gives it",
        )


def _entry_is_unchanged(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a client's entry is unchanged; an entry that has grown is compared without the added places."""
    return torch.equal(before, after[tuple(slice(size) for size in before.shape)])


def check_integrated_latents(algorithm: Algorithm, case: Case) -> None:
    """With latents in the plate the answer is that of a model in which they are integrated out by hand."""
    integrated, marginal = case.integrated, case.run(problems.marginal_groups())
    mu, expected = (np.asarray(one["posterior"]["mu"].values) for one in (integrated, marginal))
    cure = "Ask the problem for the model's densities, `log_lik` and `log_prior`, and nothing else"
    require(
        mu.shape == expected.shape and np.allclose(mu, expected, TOLERANCE, TOLERANCE),
        "the draws of the model without latents in the plate",
        f"others, by up to {np.abs(mu - expected).max() if mu.shape == expected.shape else np.inf:g}",
        cure,
    )
    effect = integrated["posterior"]["effect"]
    require(
        effect.shape == (*mu.shape, len(problems.group_data()[0])) and bool(np.isfinite(effect.values).all()),
        "finite draws of each group's latent",
        f"shape {effect.shape}",
        cure,
    )
    for direction in ("bytes_up", "bytes_down"):
        one, other = (idata["federation"][direction].values for idata in (integrated, marginal))
        require(np.array_equal(one, other, equal_nan=True), f"the same {direction} on both models", "others", cure)


def _agree(first: InferenceData, second: InferenceData, what: str, than: str, tolerance: float) -> None:
    one, other = values(first), values(second)
    same = one.shape == other.shape
    difference = float(np.abs(one - other).max(initial=0.0)) if same else np.inf
    exact = "to the bit" if not tolerance else f"to {tolerance:g}"
    require(
        same
        and (
            np.array_equal(one, other)
            if not tolerance
            else np.allclose(other, one, tolerance, tolerance, equal_nan=True)
        ),
        f"the draws of {what} to be those of {than}, {exact}",
        f"draws that differ by {difference:g}",
        PURE,
    )


def check_conjugate_posterior(algorithm: Algorithm, case: Case) -> None:
    """After the default number of rounds mean and SDs are those of a conjugate posterior.

    The model is a linear regression with known noise, for which a mean field is exact. The error of a mean may be 0.05
    SDs, and that of an SD 5 %, plus four standard errors. With 4,000 independent draws these are 11 % and 10 %, so that
    an SD that is 13 % too small is detected.
    """
    federation, mean, sd = problems.conjugate()
    idata = case.run(federation, num_rounds=None, num_draws=NUM_DRAWS, compile="trace")
    draws = np.asarray(idata["posterior"]["w"].values)
    size = np.fmax(1.0, ess(draws)) if algorithm.draws_are == "chains" else np.full(2, draws[..., 0].size)
    require(
        bool((size >= MIN_EFFECTIVE_DRAWS).all()),
        f"chains of at least {MIN_EFFECTIVE_DRAWS} effective draws, by which mean and SD can be judged",
        f"{size.min():.0f}",
        "Give the algorithm under test longer chains",
    )
    flat = draws.reshape(-1, 2)
    mean_errors = np.abs(flat.mean(0) - mean.numpy()) / sd.numpy()
    ratio = flat.std(0) / sd.numpy()
    scales = ", ".join(f"{100 * (one - 1):+.0f} %" for one in ratio)
    require(
        bool((mean_errors <= MEAN_ERROR + ALLOWED_STANDARD_ERRORS / np.sqrt(size)).all()),
        f"means {np.round(mean.numpy(), 3)}, to {MEAN_ERROR} SDs and chance",
        f"{np.round(flat.mean(0), 3)}, which is {mean_errors.max():.2f} SDs off, with SDs that are {scales} off",
        "More rounds, smaller steps, a prior that counts twice or not at all, or an error in the equations",
    )
    require(
        bool((np.abs(ratio - 1) <= SD_ERROR + ALLOWED_STANDARD_ERRORS / np.sqrt(2 * size)).all()),
        f"SDs {np.round(sd.numpy(), 3)}, to {SD_ERROR:.0%} and chance",
        f"{np.round(flat.std(0), 3)}, {scales}",
        "The steps have not converged, their noise has moved a scale, a prior counts twice, or a factor is wrong, as "
        "of the entropy or in `sample`",
    )
