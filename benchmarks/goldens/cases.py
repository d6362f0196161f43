"""What is run: sets of cases, each an algorithm on a federation with seed 0."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import pyro_fed as pf
from benchmarks.goldens import surface
from benchmarks.trust.references import read
from benchmarks.trust.trials import ALGORITHMS, Trial, defaults, ring
from pyro_fed.recipes.library import list_models, load_model
from pyro_fed.results import InferenceData

ROOT = Path(__file__).resolve().parents[2]
#: The helpers of the tests, which have the contract's algorithms and federations; they import each other by name.
HELPERS = ROOT / "tests" / "helpers"
if str(HELPERS) not in sys.path:
    sys.path.append(str(HELPERS))
CONTRACT, DRAWS, ROWS = (importlib.import_module(name) for name in ("contract", "contract_draws", "algorithms"))
#: Algorithms of the set `quick`, with arguments of `run`.
QUICK: dict[str, Mapping[str, Any]] = {
    "FedEP": {},
    "FedLaplace": {},
    "FedAIS": {},
    "P2PVI": {"graph": ring},
    "DSVGD": {},
    "FSGLD": {"num_rounds": 60},
}
SERVER_AND_PEERS = ("FedEP", "FedLaplace", "FedAIS", "P2PVI", "DSVGD")
#: Posteriors of `quick`, and by what: small ones of most kinds.
QUICK_POSTERIORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear_sorted", "collinear", "logistic_labels"), SERVER_AND_PEERS),
    **dict.fromkeys(("squared", "half_cauchy_n4"), (*SERVER_AND_PEERS, "Auto")),
    **dict.fromkeys(("linear_improper", "years_float32", "poisson_rare", "simplex"), ("FedEP", "FedAIS")),
    **dict.fromkeys(("centred_inside", "prior_of_data", "step_at_row"), ("FedEP", "FedAIS")),
}
#: Clients of the gallery's models.
CLIENTS = 5


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        name: unique in its set.
        run: gives the result, from making the federation on, or raises.
        algorithm: makes the algorithm.
        federation: makes the federation.
        options: more arguments of `run`; functions of the federation are called with it.
        posterior: that of `benchmarks.trust`, whose reference judges the result; "" for none.
    """

    name: str
    run: Callable[[], Any]
    algorithm: Callable[[], Any]
    federation: Callable[[], pf.Federation]
    options: Mapping[str, Any] = field(default_factory=dict)
    posterior: str = ""


def _of_trial(trial: Trial, **options: Any) -> Case:
    return Case(
        f"{trial.posterior} / {trial.label}",
        partial(trial.run, **options),
        trial.make,
        partial(trial.target.federation, **trial.federation),
        trial.options,
        trial.posterior,
    )


def _run(
    algorithm: Callable[[], Any], federation: Callable[[], pf.Federation], options: Mapping[str, Any]
) -> InferenceData:
    fed = federation()
    own = {key: value(fed) if isfunction(value) else value for key, value in options.items()}
    return pf.run(algorithm(), fed, **{"progress": False, "seed": 0, **own})


def trust() -> list[Case]:
    """Every posterior of `benchmarks.trust` by every algorithm with its defaults; `Auto` is `fit`."""
    known = read()
    return [_of_trial(trial) for trial in defaults() if trial.posterior in known and trial.label != "NUTS"]


def _of_contract(make: Any, where: Any) -> Any:
    """The short run of a contract's row: nothing compiled, but of the hierarchy, whose integrals take long so."""
    return CONTRACT.short_run(make, where, **({"compile": "auto"} if where is CONTRACT.hierarchy else {}))


def contract() -> list[Case]:
    """Every algorithm on the two federations of the contract's tests, with their few rounds and draws."""
    return [
        Case(
            f"{name} / {where.__name__}",
            partial(_of_contract, make, where),
            make,
            where,
            {"graph": lambda fed, make=make: ROWS.graph_of(make(), fed).get("graph")},
        )
        for name, make, where in DRAWS.CASES
    ]


def quick() -> list[Case]:
    """The contract's federations and small posteriors, whole runs with the audit: in less than a minute."""
    federations = {"unequal_lines": ROWS.unequal_lines, "hierarchy": CONTRACT.hierarchy}
    cases = []
    for where, federation in federations.items():
        for label, options in QUICK.items():
            make = ALGORITHMS[label]
            cases.append(
                Case(f"{where} / {label}", partial(_run, make, federation, options), make, federation, options)
            )
    cases += [_of_trial(trial) for trial in defaults() if trial.label in QUICK_POSTERIORS.get(trial.posterior, ())]
    return cases


def gallery() -> list[Case]:
    """The models of `models/`, at five clients by chance, by `FedEP` and by `fit`."""
    cases = []
    for name in sorted(list_models()):
        federation = partial(_of_model, name)
        for label, make in (("FedEP", pf.FedEP), ("fit", pf.Auto)):
            options = {"log_likelihood": False}
            cases.append(Case(f"{name} / {label}", partial(_run, make, federation, options), make, federation, options))
    return cases


def _of_model(name: str) -> pf.Federation:
    module: Any = load_model(name)
    rows = getattr(module, "ROWS", None)
    return pf.Federation(
        module.model, module.load_data()[0], plate=module.PLATE, rows=rows, num_clients=CLIENTS, seed=0
    )


SETS: dict[str, Callable[[], list[Any]]] = {
    "names": surface.names,
    "quick": quick,
    "contract": contract,
    "gallery": gallery,
    "trust": trust,
}
