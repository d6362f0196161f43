"""Tables 2, 3, 6 and 8 of Guo et al., in small: FedAvg, FedPA, FedEP and FedSEP with each client inference, on digits.

    python -m benchmarks.papers.fedep_inferences [--rounds 60] [--burn-in 60] [--only NAME,...]

Softmax regression on scikit-learn's digits in place of CIFAR-100, StackOverflow and EMNIST-62, which cannot be shipped:
100 clients of at most three classes, ten of them a round, each method by its recipe in `inference/`, which begins with
FedAvg (Table 7); fewer rounds. One fold of five. Accuracy and ECE of 15 bins of the last round's predictions, marginal
(averaged over 50 draws) and at the draws' mean (the point), beside FedAvg's. (L), (V) and FedSEP are run with the
Fisher information once, as the equations and the recipes have it, and 500 times (`x500`), as the authors' commands do.

The papers: CIFAR-100, best accuracy by round 1000 within two points for FedEP (I, M, L, V), above FedPA and FedAvg;
StackOverflow F1 FedSEP (V, L, I) > FedPA > FedAvg, (M) below all; EMNIST-62 FedSEP 86.1 %, FedPA 85.9, FedAvg 85.3.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import pyro_fed as pf
from benchmarks.papers.fedep_digits import BINS, CLIENTS, DRAWS, PER_ROUND, Rows, model_of, splits
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.recipes.recipe import load

PRIOR_SD = 3.0
RECIPES = ("fedavg", "fedpa", "fedep_i", "fedep_m", "fedep_l", "fedep_v", "fedsep")
#: How many times the Fisher information counts in the authors' commands: alpha_cov of Table 7 over their weight decay.
FISHER_SCALE = 500
COLDER = tuple(f"{recipe} x{FISHER_SCALE}" for recipe in ("fedep_l", "fedep_v", "fedsep"))


def algorithm_of(name: str, burn_in: int) -> Any:
    """The recipe's algorithm, also with the authors' scale; those that begin with FedAvg do so for so many rounds."""
    recipe, _, scale = name.partition(" x")
    made = load(recipe).build()
    if scale:
        made = dataclasses.replace(made, client=dataclasses.replace(made.client, fisher_scale=float(scale)))
    averaging = getattr(made, "averaging", None)
    if averaging is None or getattr(made, "start", "") != "fedavg":
        return made
    return dataclasses.replace(made, averaging=dataclasses.replace(averaging, rounds=burn_in))


def weights(name: str, rounds: int, burn_in: int, train: Rows) -> Tensor:
    """Draws of the regression's weights after the last round, (draws, 65, 10)."""
    algorithm = algorithm_of(name, burn_in)
    fed = pf.Federation(
        model_of(PRIOR_SD),
        train,
        plate="data",
        num_clients=CLIENTS,
        partition=pf.partition.LabelShards(classes_per_client=3),
    )
    begun = getattr(algorithm, "start", "") == "fedavg"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a fixed number of rounds need not converge
        idata = pf.run(
            algorithm,
            fed,
            num_rounds=rounds if begun else rounds + burn_in,
            schedule=pf.schedule.UniformRandom(PER_ROUND),
            progress=False,
            num_draws=DRAWS,
            log_likelihood=False,
            audit=False,
        )
    return torch.tensor(idata["posterior"]["w"].values[0], dtype=torch.float64)


def judged(probs: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy, and expected calibration error."""
    return float((probs.argmax(-1) == y).double().mean()), calibration_errors(probs, y, BINS)["ece"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--burn-in", type=int, default=60)
    parser.add_argument("--only", default=",".join(RECIPES + COLDER))
    options = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    train, (x_test, y_test) = next(splits((torch.tensor(x, dtype=torch.float32), torch.tensor(y))))
    print(f"{'':14}{'marginal: accuracy':>20}{'ECE':>8}{'point: accuracy':>18}{'ECE':>8}", flush=True)
    for recipe in options.only.split(","):
        w = weights(recipe, options.rounds, options.burn_in, train)
        design = x_test.double()
        each = (design @ w[:, :-1] + w[:, -1:]).softmax(-1).mean(0)
        centre = w.mean(0)
        point = (design @ centre[:-1] + centre[-1]).softmax(-1)
        (accuracy, ece), (at_point, point_ece) = judged(each, y_test), judged(point, y_test)
        print(f"{recipe:14}{accuracy:20.3f}{ece:8.3f}{at_point:18.3f}{point_ece:8.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
