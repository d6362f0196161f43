"""Tables 2, 3 and 6 of Guo et al., in small: FedAvg, FedPA, FedEP and FedSEP with each client inference, on digits.

    python -m benchmarks.papers.fedep_inferences [--rounds 60] [--burn-in 60] [--only NAME,...] [--tags]

Softmax regression on scikit-learn's digits in place of CIFAR-100, StackOverflow and EMNIST-62:
100 clients of at most three classes, ten of them a round, each method by its recipe in `inference/`, which begins with
FedAvg (Table 7); fewer rounds. One fold of five. Accuracy and ECE of 15 bins of the last round's predictions, marginal
(averaged over 50 draws) and at the draws' mean (the point), beside FedAvg's. (L), (V) and FedSEP are run with the
Fisher information once, as the equations and the recipes have it, and 500 times (`x500`), as the authors' commands do.

--tags: Table 3 in small, in place of StackOverflow's 342,477 users: texts as counts of words with
several tags each (scikit-learn's `make_multilabel_classification`, 4,000 texts of 100 words, 20 tags, 2 a text), by
logistic regression of every tag, 400 users sorted into by their first tag (Dirichlet 0.3), ten a round, so that most
take part once or never: FedSEP with each client inference, FedPA and FedAvg. Precision, recall, micro and macro F1 of
the averaged prediction on 1,000 more texts, threshold a half.

The papers: CIFAR-100, best accuracy by round 1000 within two points for FedEP (I, M, L, V), above FedPA and FedAvg;
StackOverflow F1 FedSEP (V, L, I) > FedPA > FedAvg, (M) below all; EMNIST-62 FedSEP 86.1 %, FedPA 85.9, FedAvg 85.3.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import make_multilabel_classification
from torch import Tensor

import pyro_fed as pf
from benchmarks.papers.fedep_digits import BINS, Rows, averaged, federation, first_fold, run_rounds, weights_of
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.metrics import multilabel
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
    averaging = getattr(made, "start", None)
    if not isinstance(averaging, pf.infer.Averaging):
        return made
    return dataclasses.replace(made, start=dataclasses.replace(averaging, rounds=burn_in))


def drawn(algorithm: Any, fed: pf.Federation, rounds: int, burn_in: int) -> Tensor:
    """Draws of the site `w` after the last round; what does not begin with FedAvg has its rounds besides."""
    begun = getattr(algorithm, "start", "") == "fedavg"
    return weights_of(run_rounds(algorithm, fed, rounds if begun else rounds + burn_in))


def tags() -> tuple[Rows, Rows]:
    """Training and test texts: words (n, 100) of mean square one, and their tags (n, 20)."""
    x, y = make_multilabel_classification(5000, 100, n_classes=20, n_labels=2, length=60, random_state=0)
    words = torch.tensor(x, dtype=torch.float32)
    words = (words - words[:4000].mean(0)) / (words[:4000] - words[:4000].mean(0)).square().mean().sqrt()
    several = torch.tensor(y, dtype=torch.float32)
    return (words[:4000], several[:4000]), (words[4000:], several[4000:])


def tag_model(x: Tensor, y: Tensor) -> None:
    """Logistic regression of every tag."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1] + 1, y.shape[-1]), PRIOR_SD).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w[:-1] + w[-1]).to_event(1), obs=y)


def table_3(rounds: int, burn_in: int) -> None:
    """Print precision, recall and F1."""
    train, (x_test, y_test) = tags()
    parts = pf.partition.Dirichlet(0.3, by=train[1].argmax(1))
    fed = pf.Federation(tag_model, train, plate="data", num_clients=400, partition=parts)
    names = ("precision", "recall", "micro_f1", "macro_f1")
    print(f"{'':14}" + "".join(f"{name:>11}" for name in names), flush=True)
    base = algorithm_of("fedsep", burn_in)
    methods = {"fedavg": algorithm_of("fedavg", burn_in), "fedpa": algorithm_of("fedpa", burn_in)}
    for letter in "imlv":
        client = algorithm_of(f"fedep_{letter}", burn_in).client
        methods[f"fedsep ({letter})"] = dataclasses.replace(base, client=client)
    for name, algorithm in methods.items():
        w = drawn(algorithm, fed, rounds, burn_in)
        probs = (x_test.double() @ w[:, :-1] + w[:, -1:]).sigmoid().mean(0)
        found = multilabel(probs, y_test)
        print(f"{name:14}" + "".join(f"{found[one]:11.3f}" for one in names), flush=True)


def judged(probs: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy, and expected calibration error."""
    return float((probs.argmax(-1) == y).double().mean()), calibration_errors(probs, y, BINS)["ece"]


def scores_of(w: Tensor, x: Tensor, y: Tensor) -> tuple[tuple[float, float], tuple[float, float]]:
    """Accuracy and ECE of predictions averaged over draws of the weights (draws, 65, 10), and at the draws' mean."""
    return judged(averaged(w, x), y), judged(averaged(w.mean(0, keepdim=True), x), y)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--burn-in", type=int, default=60)
    parser.add_argument("--only", default=",".join(RECIPES + COLDER))
    parser.add_argument("--tags", action="store_true", help="Table 3: several tags a text")
    options = parser.parse_args()
    if options.tags:
        return table_3(options.rounds, options.burn_in)
    train, test = first_fold()
    print(f"{'':14}{'marginal: accuracy':>20}{'ECE':>8}{'point: accuracy':>18}{'ECE':>8}", flush=True)
    for recipe in options.only.split(","):
        algorithm = algorithm_of(recipe, options.burn_in)
        w = drawn(algorithm, federation(train, PRIOR_SD), options.rounds, options.burn_in)
        (accuracy, ece), (at_point, point_ece) = scores_of(w, *test)
        print(f"{recipe:14}{accuracy:20.3f}{ece:8.3f}{at_point:18.3f}{point_ece:8.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
