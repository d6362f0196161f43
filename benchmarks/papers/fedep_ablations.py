"""Figures 4 and 6 of Guo et al., in small: the scaled identity beside other inferences, and epochs of NGVI.

    python -m benchmarks.papers.fedep_ablations [--draws 10] [--rounds 30]

Left of Figure 4: mean distance to the true mean by round, over draws of the two Gaussian clients of Table 4: FedEP with
the scaled identity, whose precision is the same in all directions, beside the diagonal one, FedPA and FedAvg, which end
after one round. The tilted means of Gaussian clients, which chains would have, are in closed form.

Middle and right of Figure 4, and Figure 6: accuracy by round on digits in place of CIFAR-100, 100 clients of at most
three classes, ten a round, after 60 rounds of FedAvg: softmax regression on the first ten principal components (110
weights, "small") and on all pixels (650, "large"), by the recipes of (I) and (V), (V) with the authors' 500 times the
Fisher information and T = 1, 5 and 10 epochs.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.papers.fedep_digits import Rows, averaged, federation, first_fold, run_rounds, weights_of
from benchmarks.papers.fedep_inferences import FISHER_SCALE, PRIOR_SD, algorithm_of
from benchmarks.papers.table4 import draw_clients, true_mean
from benchmarks.papers.table4 import federation as two_clients

BURN_IN, COMPONENTS = 60, 10
#: Precisions of a site of the scaled identity in the toy.
SCALES = (3.0, 10.0, 30.0)
TOY_ROUNDS, TOY_SHOWN, SHOWN = 40, (1, 2, 3, 5, 10, 20, 40), (1, 5, 10, 15, 20, 25, 30)


def toy(draws: int) -> None:
    """Print the distances by round."""
    means, covariances = draw_clients(draws)
    family: dict[str, Any] = {"covariance": "diag", "start": "prior", "num_points": 2}
    methods = {
        "FedAvg": None,
        "FedPA": (pf.infer.FedPA(**family, client=pf.infer.tilted.Laplace(steps=1)), 1),
        "FedEP": (pf.FedEP(**family, tolerance=1e-12), TOY_ROUNDS),
    }
    truth = true_mean(means, covariances)
    print(f"{'round':14}" + "".join(f"{r:>10}" for r in TOY_SHOWN), flush=True)
    for name, how in methods.items():
        if how is None:
            found = (means.mean(0) - truth).norm(dim=-1).expand(TOY_ROUNDS, -1)
        else:
            paths = [by_round(how[0], covariances[:, i], means[:, i], how[1]) for i in range(draws)]
            found = torch.stack([(path - truth[i]).norm(dim=-1) for i, path in enumerate(paths)], 1)
        show(name, found)
    for scale in SCALES:
        path = scaled_identity(covariances, means, scale)
        show(f"FedEP (I), {scale:g}", (path - truth).norm(dim=-1))


def show(name: str, distances: Tensor) -> None:
    """A line of the table: distances (rounds, draws)."""
    cells = "".join(f"{distances[min(r, len(distances)) - 1].mean():10.2g}" for r in TOY_SHOWN)
    print(f"{name:14}{cells}", flush=True)


def scaled_identity(covariances: Tensor, means: Tensor, scale: float) -> Tensor:
    """q's mean by round, (rounds, draws, 2), of EP whose sites have the precision `scale` in all directions.

    The tilted mean of client k is (A_k + Λ_-k)⁻¹ (A_k μ_k + η_-k), its new site's eta (scale + Λ_-k) times that less
    η_-k; half of every change is made, for all clients together.
    """
    precision = torch.linalg.inv(covariances)
    eta = (precision @ means.unsqueeze(-1)).squeeze(-1)
    eye = torch.eye(2, dtype=means.dtype)
    sites, path = torch.zeros_like(means), []
    for _ in range(TOY_ROUNDS):
        others = sites.sum(0) - sites
        tilted = torch.linalg.solve(precision + scale * eye, (eta + others).unsqueeze(-1)).squeeze(-1)
        sites = sites + 0.5 * (2 * scale * tilted - others - sites)
        path.append(sites.sum(0) / (2 * scale))
    return torch.stack(path)


def by_round(algorithm: Any, covariances: Tensor, means: Tensor, rounds: int) -> Tensor:
    """q's mean after every round, (rounds, 2); what has come to rest stays."""
    seen: list[Tensor] = []

    class Watched(type(algorithm)):  # type: ignore[misc]
        def combine(self, shared: Any, messages: Any, weights: Any, *rest: Any, **options: Any) -> Any:
            found = super().combine(shared, messages, weights, *rest, **options)
            after = found[0] if isinstance(found, tuple) else found
            seen.append(torch.linalg.solve(torch.diag_embed(after["precision"]), after["eta"]).reshape(-1))
            return found

    fed = two_clients(means, covariances)
    fields = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rounds are fixed
        pf.run(Watched(**fields), fed, num_rounds=rounds, progress=False, num_draws=2, compile="off", audit=False)
    return torch.stack(seen + [seen[-1]] * (rounds - len(seen)))


def digits_by_round(algorithm: Any, rounds: int, train: Rows, test: Rows) -> Tensor:
    """Accuracy by round."""
    found: list[float] = []

    def evaluate(idata: Any) -> dict[str, float]:
        found.append(float((averaged(weights_of(idata), test[0]).argmax(-1) == test[1]).double().mean()))
        return {}

    run_rounds(algorithm, federation(train, PRIOR_SD), rounds, evaluate=evaluate, evaluate_every=5)
    return torch.tensor(found)


def reduced(train: Rows, test: Rows) -> tuple[Rows, Rows]:
    """The same rows, their first principal components, of mean square one."""
    basis = torch.linalg.svd(train[0], full_matrices=False).Vh[:COMPONENTS].T
    size = (train[0] @ basis).square().mean().sqrt()
    return (train[0] @ basis / size, train[1]), (test[0] @ basis / size, test[1])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    toy(options.draws)
    train, test = first_fold()
    variational = algorithm_of(f"fedep_v x{FISHER_SCALE}", BURN_IN)
    for size, (rows, held) in {"small": reduced(train, test), "large": (train, test)}.items():
        print(f"\n{size}: accuracy every five rounds", flush=True)
        for name in ("I", "V, T = 1", "V, T = 5", "V, T = 10"):
            algorithm = algorithm_of("fedep_i", BURN_IN)
            if name != "I":
                client = dataclasses.replace(variational.client, fisher_steps=int(name.split("=")[1]))
                algorithm = dataclasses.replace(variational, client=client)
            cells = "".join(f"{value:8.3f}" for value in digits_by_round(algorithm, options.rounds, rows, held))
            print(f"{name:11}{cells}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
