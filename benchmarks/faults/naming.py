"""How often the corrupted client of ten is named by its site, and how often any rule could name it.

Logistic regression with three weights, ten clients, sites by Laplace's method at the joint mode: no runs, so that
hundreds of trials take seconds. A cell is the share of trials in which the corrupted client is named first
(`audit.influence.apart_by_sites`); "false" that in which an honest one is named where nobody is corrupted, and
"warned" that in which a run warns of one, which knows how many rows each client has; the same of the corrupted one in
brackets. The other columns have a statistic alone, the largest of ten clients', whose threshold is its 99 %
quantile in honest cohorts, so that false alarms are 1 %:

    of sites     `opposed`, what sites say of labels that are flipped
    of rows      the likelihood ratio of the client's rows at the other nine's mode: it knows what the corruption is
    attainable   the same at the true weights, which nobody knows: no test has more power (Neyman and Pearson)

    python -m benchmarks.faults.naming [TRIALS]
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks.helpers.tables import heading, row
from pyro_fed.audit.influence import apart_by_sites, by_sites
from pyro_fed.audit.mirrored_clients import mirrored_clients
from pyro_fed.ops.gaussian import FullGaussian

DIM, PRIOR_SD, ITERATIONS = 3, 2.0, 30
#: Rows of each client over the average.
SIZES = {
    "equal": (1.0,) * 10,
    "1 to 8": (0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0, 2.0),
    "a hundred": (1.0,) * 100,
}
#: Weights, and how common a one is of each binary covariate; None: covariates are normal.
DESIGNS = {
    "normal": ((1.0, -1.0, 0.5), None),
    "sparse binary": ((2.0, -2.0, 1.0), (0.05, 0.1, 0.3)),
}
#: Of the corrupted client's weights, by which the true ones are multiplied: flipped labels turn all signs.
KINDS = {"labels flipped": (-1.0, -1.0, -1.0), "another population": (-0.5, 1.0, 1.0)}
ALARMS = 0.01


class Trial(NamedTuple):
    """Rows, their clients, and the corrupted one."""

    x: Tensor
    y: Tensor
    client: Tensor
    bad: int


def trial(seed: int, rows: int, sizes: str, design: str, kind: str | None) -> Trial:
    """Some clients, one of them corrupted unless `kind` is None."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([max(1, int(rows * share)) for share in SIZES[sizes]])
    client = torch.repeat_interleave(torch.arange(len(counts)), counts)
    weights, common = (torch.tensor(part, dtype=torch.float64) if part else None for part in DESIGNS[design])
    assert weights is not None
    if common is None:
        x = torch.randn(len(client), DIM, generator=generator, dtype=torch.float64)
    else:
        x = (torch.rand(len(client), DIM, generator=generator, dtype=torch.float64) < common).double()
    bad = int(torch.randint(len(counts), (), generator=generator))
    factor = torch.tensor(KINDS[kind] if kind else (1.0,) * DIM, dtype=torch.float64)
    logits = torch.where(client == bad, x @ (weights * factor), x @ weights)
    y = (torch.rand(len(x), generator=generator, dtype=torch.float64) < logits.sigmoid()).double()
    return Trial(x, y, client, bad)


class Judged(NamedTuple):
    """The clients that are named, and warned of, the first one first; `opposed` (K,); the others' means (K, D)."""

    named: list[str]
    warned: list[str]
    opposed: np.ndarray
    others: Tensor


def judged(data: Trial) -> Judged:
    """By sites at the joint mode."""
    mode, prior = torch.zeros(DIM, dtype=torch.float64), torch.eye(DIM, dtype=torch.float64) / PRIOR_SD**2
    for _ in range(ITERATIONS):
        chance = (data.x @ mode).sigmoid()
        curvature = (data.x.T * (chance * (1 - chance))) @ data.x + prior
        step = torch.linalg.solve(curvature, data.x.T @ (data.y - chance) - prior @ mode)
        mode = mode + step / step.norm().clamp_min(1.0)
    chance = (data.x @ mode).sigmoid()
    score, outer = data.x * (data.y - chance)[:, None], data.x[:, :, None] * data.x[:, None, :]
    counts = torch.bincount(data.client)
    precision = torch.zeros(len(counts), DIM, DIM, dtype=torch.float64)
    precision.index_add_(0, data.client, (chance * (1 - chance))[:, None, None] * outer)
    eta = torch.zeros(len(counts), DIM, dtype=torch.float64).index_add_(0, data.client, score) + precision @ mode
    q = FullGaussian(precision.sum(0) + prior, eta.sum(0))
    sites = FullGaussian(precision, eta)
    found = by_sites(q, sites)
    told = [str(k) for k in range(len(counts))], ["a", "b", "c"]
    said = apart_by_sites(q, sites, *told), apart_by_sites(q, sites, *told, counts)
    named, warned = (list(one.clauses) for one in said)
    sign = 2 * data.y - 1

    def log_lik(client: int, points: Tensor) -> Tensor:
        here = data.client == client
        return logsigmoid(sign[here, None] * (data.x[here] @ points.T)).sum(0)

    opposite = mirrored_clients(q, sites, counts, log_lik, torch.Generator().manual_seed(0))
    warned += [str(k) for k in opposite if str(k) not in warned]
    return Judged(named, warned, found.opposed, FullGaussian(q.precision - precision, q.eta - eta).mean())


def ratios(data: Trial, weights: Tensor, kind: str) -> np.ndarray:
    """Each client's log-likelihood ratio of the corruption against none, of weights (K, D)."""
    factor, sign = torch.tensor(KINDS[kind], dtype=torch.float64), 2 * data.y - 1
    corrupt, true = ((data.x * each[data.client]).sum(1) for each in (weights * factor, weights))
    each = logsigmoid(sign * corrupt) - logsigmoid(sign * true)
    found: np.ndarray = (
        torch.zeros(int(data.client.max()) + 1, dtype=torch.float64).index_add_(0, data.client, each).numpy()
    )
    return found


def named_and_warned(found: list[Judged]) -> tuple[list[list[str]], list[list[str]]]:
    """The clients that are named in each trial, and those that are warned of."""
    return [one.named for one in found], [one.warned for one in found]


def power(honest: list[np.ndarray], corrupted: list[np.ndarray], bad: list[int]) -> str:
    """Share of trials whose corrupted client is beyond what the largest of honest cohorts is in all but 1 %."""
    limit = np.quantile([values.max() for values in honest], 1 - ALARMS)
    return f"{100 * np.mean([values[k] > limit for values, k in zip(corrupted, bad, strict=True)]):.0f} %"


def main(trials: int) -> None:
    """Print the table."""
    columns = [title for kind in KINDS for title in (kind, "of sites", "of rows", "attainable")]
    print(heading("sizes", "covariates", "rows", "false", "warned", *columns))
    for sizes, design, rows in [
        *(("equal", "normal", rows) for rows in (8, 20, 40)),
        *(("1 to 8", "normal", rows) for rows in (8, 20, 40)),
        *(("equal", "sparse binary", rows) for rows in (8, 20, 40)),
        *(("a hundred", "normal", rows) for rows in (1, 2, 4)),
    ]:
        true = torch.tensor(DESIGNS[design][0], dtype=torch.float64).expand(len(SIZES[sizes]), DIM)
        honest = [trial(seed, rows, sizes, design, None) for seed in range(trials)]
        calm = [judged(data) for data in honest]
        cells = [f"{100 * np.mean([bool(each) for each in all_of]):.1f} %" for all_of in named_and_warned(calm)]
        for kind in KINDS:
            corrupted = [trial(seed, rows, sizes, design, kind) for seed in range(trials)]
            seen, bad = [judged(data) for data in corrupted], [data.bad for data in corrupted]
            told = [
                100 * np.mean([(each or ["nobody"])[0] == str(k) for each, k in zip(all_of, bad, strict=True)])
                for all_of in named_and_warned(seen)
            ]
            cells.append(f"{told[0]:.0f} % ({told[1]:.0f} %)")
            cells.append(power([one.opposed for one in calm], [one.opposed for one in seen], bad))
            of_calm, of_seen = (
                [ratios(data, one.others, kind) for data, one in zip(data_of, judged_of, strict=True)]
                for data_of, judged_of in ((honest, calm), (corrupted, seen))
            )
            cells.append(power(of_calm, of_seen, bad))
            of_calm, of_seen = ([ratios(data, true, kind) for data in data_of] for data_of in (honest, corrupted))
            cells.append(power(of_calm, of_seen, bad))
        print(row(sizes, design, rows, *cells), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
