"""Table 8 of Guo et al. and the other columns of Table 7, in small: how much the settings of FedEP and FedSEP matter.

    python -m benchmarks.papers.fedep_settings [--rounds 60] [--burn-in 60] [--only I,M,L,V,EMNIST,StackOverflow]

The digits, clients, rounds and scores of `fedep_inferences`. Each line of Table 8 has one setting of a recipe at
another value, the recipe's own (Table 7, column CIFAR-100) among them. (L) and (V) take the Fisher information
alpha_cov over 1e-4 times, 500 for CIFAR-100, as the authors' commands do. "Laplace epochs" have no line: the
expectation over labels is exact here, so that a second pass over the rows is the same as the first; the paper has
46.7 % for 5 and for 10, too.

The columns EMNIST-62 and StackOverflow of Table 7 are run by FedSEP, as there: all of their settings but clients a
round, burn-in and rounds, which are this script's, and StackOverflow's rates. 50 at a client and 5.0 at the server are
of a loss whose scale the paper does not say (of hundreds of tags, sum or mean); column CIFAR-100's stand in for them.

The paper, CIFAR-100 by round 1500: FedEP (I) 50.3 to 50.5 % for 0.04, 0.05, 0.06, (M) 48.8, 50.5, 49.2 for a shrinkage
of 5e-5, 1e-4, 5e-4, (V) 49.6 and 48.5 for 5 and 10 epochs of NGVI; FedSEP (I) 48.7 to 49.1, (M) 48.9 to 49.0,
(V) 48.8 and 48.6.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.papers.fedep_digits import Rows, federation, first_fold
from benchmarks.papers.fedep_inferences import FISHER_SCALE, PRIOR_SD, algorithm_of, drawn, scores_of

#: Table 8: inference → the setting, where it stands, and its values.
TABLE_8: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "I": ("alpha_cov", "scale", (0.04, 0.05, 0.06)),
    "M": ("shrinkage", "weight", (5e-5, 1e-4, 5e-4)),
    "V": ("NGVI epochs", "fisher_steps", (5, 10)),
}
#: Table 7's columns beside the recipes': alpha_cov, client epochs, shrinkage, epochs and samples of NGVI (even here).
COLUMNS: dict[str, tuple[float, int, float, int, int]] = {
    "EMNIST": (5e-3, 20, 1e-4, 5, 6),
    "StackOverflow": (1e-8, 5, 1e-6, 10, 10),
}
#: The authors' commands count the Fisher information alpha_cov over this times.
WEIGHT_DECAY = 1e-4
#: Adagrad at the server with Table 7's τ, in place of SGD.
ADAGRAD = {"StackOverflow": pf.infer.optim.Adagrad(eps=1e-5)}


def inference(letter: str) -> Any:
    """A recipe's client inference, with the authors' scale of the Fisher information."""
    return algorithm_of(f"fedep_{letter.lower()}" + (f" x{FISHER_SCALE}" if letter in "LV" else ""), 1).client


def with_client(base: Any, client: Any, scale: float | None = None) -> Any:
    """An algorithm with another client inference, and alpha_cov of the sites that it begins with."""
    start = base.start if scale is None else dataclasses.replace(base.start, scale=scale)
    return dataclasses.replace(base, client=client, start=start)


def table_8(letter: str, burn_in: int) -> Iterator[tuple[str, Any]]:
    """Its lines: label and algorithm."""
    label, name, values = TABLE_8[letter]
    bases = {"FedEP": algorithm_of(f"fedep_{letter.lower()}", burn_in), "FedSEP": algorithm_of("fedsep", burn_in)}
    for kind, base in bases.items():
        for value in values:
            client = dataclasses.replace(inference(letter), **{name: value})
            yield f"{kind} ({letter}) {label} {value:g}", with_client(base, client, value if letter == "I" else None)


def column(name: str, burn_in: int) -> Iterator[tuple[str, Any]]:
    """FedSEP with each inference at a column of Table 7."""
    scale, epochs, shrinkage, fisher_steps, fisher_samples = COLUMNS[name]
    own: dict[str, dict[str, Any]] = {
        "I": {"scale": scale},
        "M": {"weight": shrinkage, "scale": scale},
        "L": {"fisher_scale": scale / WEIGHT_DECAY},
        "V": {"fisher_scale": scale / WEIGHT_DECAY, "fisher_steps": fisher_steps, "fisher_samples": fisher_samples},
    }
    base = algorithm_of("fedsep", burn_in)
    optimisers = dataclasses.replace(base.optimisers, server=ADAGRAD.get(name, base.optimisers.server))
    start = dataclasses.replace(base.start, chain_steps=epochs)
    base = dataclasses.replace(base, start=start, optimisers=optimisers)
    for letter, settings in own.items():
        client = dataclasses.replace(inference(letter), steps=epochs, **settings)
        yield f"FedSEP ({letter}), column {name}", with_client(base, client, scale)


def show(label: str, algorithm: Any, train: Rows, test: Rows, rounds: int, burn_in: int) -> None:
    """Run a line and print it."""
    w = drawn(algorithm, federation(train, PRIOR_SD), rounds, burn_in)
    (accuracy, ece), (at_point, point_ece) = scores_of(w, *test)
    print(f"{label:34}{accuracy:20.3f}{ece:8.3f}{at_point:18.3f}{point_ece:8.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--burn-in", type=int, default=60)
    parser.add_argument("--only", default=",".join((*TABLE_8, *COLUMNS)))
    options = parser.parse_args()
    train, test = first_fold()
    print(f"{'':34}{'marginal: accuracy':>20}{'ECE':>8}{'point: accuracy':>18}{'ECE':>8}", flush=True)
    for part in options.only.split(","):
        lines = table_8(part, options.burn_in) if part in TABLE_8 else column(part, options.burn_in)
        for label, algorithm in lines:
            show(label, algorithm, train, test, options.rounds, options.burn_in)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
