"""Streaming variational Bayes: each client once, with the posterior of those before it as its prior.

Source: Broderick et al. (2013), *Streaming variational Bayes*, Section 2.2.

    q_0 = p_0,    q_k ← arg min_q KL(q ‖ p_k q_(k-1)),    k = 1, ..., K

One pass of partitioned variational inference, in which every site is still one when its client's turn comes: the cavity
is q itself, and later clients do not affect earlier ones. It is exact for conjugate models; otherwise the result
depends on the order of the clients, which further passes, as in `PVI`, correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import RoundRobin, Schedule
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant, explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.infer.ep.expectation_propagation import EP
from pyro_fed.infer.ep.pvi import TEN_STEPS, check_minimises
from pyro_fed.infer.ep.settings import ONE_PASS
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.ep.tilted import TiltedInference

#: A turn is taken whole, because there is no second one.
WHOLE_STEPS = StepControl(reach=1e12, growth=1e12)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StreamingVB(EP):
    """Streaming variational Bayes: one pass over the clients, each with the posterior so far as its prior.

    Args:
        covariance: of q: "full", "diag", or "auto": full up to 100 parameters (1,000 of linear predictors).
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians as far as
            the covariance is full by default.
        num_points: Sobol points for expectations under q; even. A hand-written guide takes eight draws a point.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance.
        client: how a client minimises its free energy: `pf.infer.tilted.Newton`, `pf.infer.tilted.SVI`, or its name;
            "newton" is ten steps; "ivon" is taken on models of more than 1000 parameters if none is set.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Broderick, Boyd, Wibisono, Wilson & Jordan (2013), Streaming variational Bayes.

    Example:
        >>> idata = pf.run(pf.infer.StreamingVB(), fed)
    """

    remedy: ClassVar[str] = cures.OF_ONE_PASS

    without: ClassVar[Mapping[str, str]] = {
        "order": "clients take turns, one after the other; use PVI",
        **dict.fromkeys(("start", "tolerance"), ONE_PASS),
        **dict.fromkeys(("damping", "step_control"), "a client has one turn, which is taken whole; use PVI"),
        "optimisers": "an optimiser has no second round to remember for",
    }
    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {"client": {"newton": TEN_STEPS}}

    client: TiltedInference | str = TEN_STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimises(self)

    @property
    def control(self) -> StepControl:
        """The control without limits, because a turn is taken whole."""
        return WHOLE_STEPS

    def default_schedule(self) -> Schedule:
        """One client in turn."""
        return RoundRobin()

    def default_rounds(self, num_clients: int) -> int:
        """One turn of each client."""
        return num_clients

    def damping_for(self, clients: int) -> float:
        """1: the whole change, whatever the client's inference."""
        return 1.0

    def unsettled(self, record: Record) -> list[Finding]:
        """No warning: the last turn's move of q is not the remaining distance."""
        return []

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about clients whose rows are only partly used, beside those of the last turn."""
        turns = [(past.clients, float(past.info["fraction"][0])) for past in record.rounds if "fraction" in past.info]
        partly = [record.client_names[k] for clients, taken in turns if taken < 1 for k in clients]
        missing = set(record.client_names) - {record.client_names[k] for clients, _ in turns for k in clients}
        notes = super().warnings(record, problem)
        if partly:
            notes.append(sentences.rows_went_in_partly(clients=partly))
        if turns and missing:
            notes.append(sentences.clients_had_no_turn(clients=sorted(missing)))
        return notes
