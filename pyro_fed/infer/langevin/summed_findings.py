"""Warnings about draws of `SummedLangevin`: chains that are short or disagree, and steps that are too long.

A step shrinks a direction of curvature λ by the factor 1 - hλ/2, which is its autocorrelation; its variance is 1/(1 -
hλ/4) times the posterior's.
"""

from __future__ import annotations

import math

import numpy as np

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.infer.langevin.chain_diagnostics import fewest_effective, r_hat_limit
from pyro_fed.infer.langevin.chain_store import ChainStore

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
