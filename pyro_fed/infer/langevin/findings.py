"""Warnings about the draws of Langevin chains that are short or disagree, or whose steps are too long, and the cures.

A step of `SummedLangevin` shrinks a direction of curvature λ by the factor 1 - hλ/2, which is its autocorrelation; its
variance is 1/(1 - hλ/4) times the posterior's.
"""

from __future__ import annotations

import math

import numpy as np

from pyro_fed.algorithm.record import NONCENTRED, Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.chain_diagnostics import fewest_effective, r_hat_limit
from pyro_fed.infer.langevin.chain_store import FEWEST_JUDGED_DRAWS, ChainStore
from pyro_fed.infer.surrogates.local_sgld import tempered_clients

#: Why chains whose steps are derived have no R-hat.
TOO_NARROW = (
    "steps are scaled by the Gaussian's SDs, which are narrower there than the dtype can tell, as in "
    "the neck of a funnel, where a Gaussian says nothing of the rest. float64 and more rounds do not help: give "
    "parameters whose scale is itself unknown a form in which it is not (fed.noncentred)"
)
#: Share of the longest visit below which chains that are too short get the reason.
SHORT = 0.5


def chain_findings(
    record: Record, problem: Problem, num_chains: int, burn_in: int, step_size: float | None
) -> list[Finding]:
    """Warnings about chains that disagree, too few effective draws, and poor surrogates; a derived step is None."""
    tempered, last = tempered_clients(record), record.latest
    if last.get("kept", 0) == 0:
        end = f"the run ended within burn_in={burn_in} steps of full length"
        return [sentences.no_draw_kept(end=end), *tempered]
    if math.isnan(last["ess"]):
        why = TOO_NARROW if step_size is None else f"a step of size={step_size:.3g} is too small for its numbers"
        still = last["kept"] >= FEWEST_JUDGED_DRAWS
        few = sentences.too_few_draws_of_a_chain
        none = sentences.chains_stood_still(why=why) if still else few(draws=round(last["kept"]))
        return [none, *_hint(record, problem), *tempered]
    notes = list[Finding]()
    limit = r_hat_limit(num_chains)
    if num_chains > 1 and not last["r_hat"] <= limit:
        notes.append(sentences.chains_disagree(chains=num_chains, r_hat=last["r_hat"], limit=f"{limit:.3g}"))
        notes += _hint(record, problem)
    fewest = fewest_effective(num_chains)
    if not last["ess"] >= fewest:
        notes.append(
            sentences.too_few_effective_draws(
                effective=last["ess"], needed=fewest, chain_is_short=False, cures=["run more rounds"]
            )
        )
    return notes + tempered


def _hint(record: Record, problem: Problem) -> list[Finding]:
    """Advice to use the non-centred form for a funnel, unless a plan tries it."""
    hints = [] if NONCENTRED in record.planned else problem.traits.funnel_hint
    return [sentences.funnel_is_likely(hint=hint) for hint in hints]


def with_reason_of_short_visits(
    notes: list[Finding], visit: float, visit_time: float, visit_error: float
) -> list[Finding]:
    """FALD's warnings `notes`, with the cure if the clients' own noise has made visits short.

    `visit` is h T, `visit_time` the longest possible, and `visit_error` the largest bias by the clients' own noise.
    """
    if not notes or visit >= SHORT * visit_time:
        return notes
    why = (
        f"Visits last {visit:.2g} in place of step.visit_time={visit_time:g}, as long as the noise that "
        f"clients have of their own moves nothing by more than step.visit_error={visit_error:g}: use FSGLD(), "
        "or local_steps=1 with step.midpoint=False, which has none"
    )
    return [notes[0].with_cure(why), *notes[1:]]


def unmeasured_noise(problem: Problem) -> Finding:
    """A warning about FALD's visits if their bias is not measured."""
    cure = "use FSGLD(), or local_steps=1 with step.midpoint=False, which has none"
    return sentences.noise_of_clients_unmeasured(parameters=problem.dim, cures=[cure])


def step_advice(step_size: float, is_given: bool) -> str:
    """The cure of a chain that became non-finite: a smaller step, or less noise from minibatches."""
    present = "present" if is_given else "derived"
    return f"give a step=pf.infer.step.Fixed(size=...) below the {present} {step_size:.3g}, or raise batch_size"


def trajectory_findings(record: Record, problem: Problem, num_chains: int) -> list[Finding]:
    """Warnings about Hamiltonian chains that disagree, too few effective draws, and trajectories that diverged."""
    last = record.latest
    notes = chain_findings(record, problem, num_chains, 0, None)
    if last.get("divergences"):
        notes = [sentences.trajectories_diverged(trajectories=last["divergences"]), *notes]
    return notes


#: Draws for each parameter from which on the autocorrelation of every direction can be estimated.
DRAWS_FOR_ONE = 20


def summed_chain_findings(record: Record, num_chains: int, burn_in: int, is_private: bool) -> list[Finding]:
    """Warnings about too few effective draws, chains that disagree, and steps that are too long for the posterior."""
    last = record.latest
    if not last.get("kept"):
        return [sentences.no_draw_kept(end=f"the run ended within burn_in={burn_in} rounds")]
    notes = list[Finding]()
    fewest = fewest_effective(num_chains)
    if not last["ess"] >= fewest:
        cure = "raise temperature, spend more epsilon, or have more clients" if is_private else "run more rounds"
        notes.append(
            sentences.too_few_effective_draws(effective=last["ess"], needed=fewest, chain_is_short=True, cures=[cure])
        )
    limit = r_hat_limit(num_chains)
    if num_chains > 1 and not last["r_hat"] <= limit:
        notes.append(sentences.chains_disagree(r_hat=last["r_hat"], limit=f"{limit:.4g}", cures=()))
    known = [one["widened"] for one in record.figures if one and not math.isnan(one["widened"])]
    if known and not known[-1] <= SD_MATTERS:
        notes.append(sentences.steps_widen_draws(factor=known[-1]))
    return notes


def widening(chains: ChainStore) -> float:
    """Largest factor by which the steps widen an SD, from the draws; infinite if they hardly contract."""
    draws = chains.buffers.draws[:, : int(chains.kept)].double()
    centred = (draws - draws.mean(1, keepdim=True)).cpu().numpy()
    least = least_autocorrelation(centred)
    left = (1 + least) / 2
    return math.inf if left <= 0 else left**-0.5


def least_autocorrelation(centred: np.ndarray) -> float:
    """The smallest lag-one autocorrelation of centred chains (M, n, D), in coordinates only if draws are few."""
    chains, draws, dim = centred.shape
    centred = centred / np.abs(centred).max()  # a chain that runs away is finite for long
    here, ahead = (part.reshape(-1, dim) for part in (centred[:, :-1], centred[:, 1:]))
    variance = (centred.reshape(-1, dim) ** 2).mean(0)
    if chains * draws < DRAWS_FOR_ONE * dim:
        return float(((here * ahead).mean(0) / variance).min())
    whole = centred.reshape(-1, dim)
    values, vectors = np.linalg.eigh(whole.T @ whole / len(whole))
    white = vectors / np.sqrt(values.clip(np.finfo(float).tiny))
    lagged = white.T @ (here.T @ ahead / len(here)) @ white
    return float(np.linalg.eigvalsh((lagged + lagged.T) / 2).min())
