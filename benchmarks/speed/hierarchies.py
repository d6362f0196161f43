"""Hospitals with effects of their own: what `FedEP` costs beside the same site worked out by hand for this one model.

    python -m benchmarks.speed.hierarchies [--shapes 12x85 12x1000 100x100] [--models radon varying_slopes ...]

Hospitals × patients of `models/hierarchical_logistic.py` with five covariates, twelve clients at most. Seconds are the
processor's, on one thread, without audit and log-likelihoods: of `Federation`, of a first run of the model (tracing
included) and of the same run again, which ends with draws of the effects and the check of their integrals; and of the
fixed point by hand, `--points` points and `--nodes` adaptive nodes a hospital, without either. Means and SDs are those
of log tau. `--models` are models with rows' or groups' latents of `models/`, ten clients, run as by default: with audit
and log-likelihoods; then the rounds and the most memory that the process had are shown, too. To compare two versions
run it under each: ratios of one run to the other hold on a busy machine, seconds do not.
"""

import argparse
import resource
import time
import warnings

import numpy as np
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.records import alone
from models import hierarchical_logistic
from pyro_fed.ops.points import standardised_sobol
from pyro_fed.recipes.experiment import build_federation
from pyro_fed.recipes.library import load_model

COEFFICIENTS = (0.6, 1.0, -0.5, 0.2, 0.0)
ROUNDS, CLOSE = 40, 2e-3


def data(hospitals: int, patients: int) -> tuple[Tensor, Tensor, Tensor]:
    """Covariates (N, 5), each patient's hospital (N,), and deaths (N,)."""
    generator = torch.Generator().manual_seed(0)
    hospital = torch.arange(hospitals).repeat_interleave(patients)
    x = torch.randn(len(hospital), 5, generator=generator)
    level = -2 + 0.8 * torch.randn(hospitals, generator=generator)
    chance = (level[hospital] + x @ torch.tensor(COEFFICIENTS)).sigmoid()
    return x, hospital, (torch.rand(len(hospital), generator=generator) < chance).float()


class ByHand:
    """Expected Newton steps to the Gaussian nearest to the posterior of (mu, log tau, beta)."""

    def __init__(self, hospitals: int, patients: int, points: int, nodes: int) -> None:
        x, _, y = data(hospitals, patients)
        self.x, self.y = x.double().view(hospitals, patients, 5), y.double().view(hospitals, patients)
        place, weight = np.polynomial.hermite_e.hermegauss(nodes)
        self.node = torch.from_numpy(place)
        self.log_weight = torch.from_numpy(np.log(weight) + place**2 / 2)
        self.units = standardised_sobol(points, 7).double()

    def moments(self, theta: Tensor, level: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (S, 7) and Hessians (S, 7, 7) of the log-likelihood, and modes of the levels (S, hospitals)."""
        x, y, (mu, log_tau, beta) = self.x, self.y, (theta[:, 0], theta[:, 1], theta[:, 2:])
        precision = (-2 * log_tau).exp()[:, None]
        away = torch.einsum("hnp,sp->shn", x, beta)
        for number in range(steps + 1):
            chance = (level[..., None] + away).sigmoid()
            bend = (chance * (1 - chance)).sum(-1) + precision
            if number < steps:
                level = level + ((y - chance).sum(-1) - precision * (level - mu[:, None])) / bend
        at = level[..., None] + bend.rsqrt()[..., None] * self.node  # (S, hospitals, Q)
        logit = at[..., None] + away[:, :, None]
        chance = logit.sigmoid()
        off = at - mu[:, None, None]
        scaled = precision[..., None] * off.square()
        values = (y[:, None] * logit - torch.nn.functional.softplus(logit)).sum(-1) - scaled / 2
        share = torch.softmax(values + self.log_weight, -1)
        of_beta = torch.einsum("shqn,hnp->shqp", y[:, None] - chance, x)
        score = torch.cat([torch.stack([precision[..., None] * off, scaled - 1], -1), of_beta], -1)
        mean = torch.einsum("shq,shqd->shd", share, score)
        hessian = torch.einsum("shq,shqd,shqe->sde", share, score, score) - torch.einsum("shd,she->sde", mean, mean)
        weight = torch.einsum("shq,shqn->shn", share, chance * (1 - chance))
        hessian[:, 2:, 2:] -= torch.einsum("hnp,shn,hnr->spr", x, weight, x)
        hessian[:, 0, 0] -= len(y) * precision[:, 0]
        cross = 2 * torch.einsum("shq,shq->s", share, precision[..., None] * off)
        hessian[:, 0, 1] -= cross
        hessian[:, 1, 0] -= cross
        hessian[:, 1, 1] -= 2 * torch.einsum("shq,shq->s", share, scaled)
        return mean.sum(1), hessian, level

    def run(self) -> tuple[float, float]:
        """Mean and SD of log tau."""
        mean, cover = torch.tensor([-1.0, 0, 0, 0, 0, 0, 0]).double(), 0.01 * torch.eye(7).double()
        level = mean.new_full((len(self.units), len(self.y)), -1.0)
        for number in range(ROUNDS):
            theta = mean + self.units @ torch.linalg.cholesky(cover).T
            score, hessian, level = self.moments(theta, level, 2 if number else 6)
            square = (2 * theta[:, 1]).exp()
            prior = torch.cat([-theta[:, :1] / 2.25, 1 - square[:, None], -theta[:, 2:]], 1)
            diagonal = torch.tensor([1 / 2.25, 0, 1, 1, 1, 1, 1]).double()
            diagonal[1] = 2 * square.mean()
            values, vectors = torch.linalg.eigh(diagonal.diag() - hessian.mean(0))
            precision = vectors @ values.abs().clamp_min(1e-2).diag() @ vectors.T  # on the way it may be indefinite
            step = torch.linalg.solve(precision, (score + prior).mean(0))
            before, cover = cover, torch.linalg.inv(precision)
            mean = mean + step / max(1.0, float(step.abs().max()))
            moved = (step / cover.diagonal().sqrt()).abs().max() + (cover / before).diagonal().log().abs().max()
            if float(moved) < CLOSE:
                break
        return float(mean[1]), float(cover[1, 1].sqrt())


def one(hospitals: int, patients: int, points: int, nodes: int) -> dict[str, float]:
    """A row of the table, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    module, (x, hospital, y), found = hierarchical_logistic, data(hospitals, patients), {}

    def seconds(name, work):
        began = time.process_time()
        result = work()
        found[name] = time.process_time() - began
        return result

    fed = seconds(
        "Federation",
        lambda: pf.Federation(
            module.model,
            (x, hospital, hospitals, y),
            plate=module.PLATE,
            rows=module.ROWS,
            num_clients=min(hospitals, 12),
        ),
    )
    for name in ("first", "again"):
        idata = seconds(
            name, lambda: pf.run(pf.FedEP(), fed, seed=0, progress=False, audit=False, log_likelihood=False)
        )
    log_tau = np.log(idata["posterior"]["tau"].values)
    by_hand = ByHand(hospitals, patients, points, nodes)
    mean, sd = seconds("by hand", by_hand.run)
    found |= {"again / by hand": found["again"] / found["by hand"], "mean": float(log_tau.mean())}
    return found | {"SD": float(log_tau.std()), "mean by hand": mean, "SD by hand": sd}


def of_library(name: str) -> dict[str, float]:
    """A model of the library with ten clients, run as by default, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, float] = {}
    began = time.process_time()
    fed = build_federation(load_model(name), None, "iid", 0).federation
    found["Federation"] = time.process_time() - began
    for run in ("first", "again"):
        began = time.process_time()
        idata = pf.run(pf.FedEP(), fed, seed=0, progress=False)
        found[run] = time.process_time() - began
    found["rounds"] = float(idata["federation"].sizes["round"])
    return found | {"gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["12x85", "12x1000", "100x100"])
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    for shape in given.shapes:
        hospitals, patients = map(int, shape.split("x"))
        show(shape, alone(one, hospitals, patients, given.points, given.nodes))
    for name in given.models:
        show(name, alone(of_library, name))


def show(name: str, cell: dict[str, float]) -> None:
    """Print a row of the table."""
    print(f"{name}: " + ", ".join(f"{figure} {value:.3f}" for figure, value in cell.items()), flush=True)


if __name__ == "__main__":
    main()
