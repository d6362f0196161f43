"""Streaming variational Bayes: each client once, with the posterior of those before it as its prior.

Source: Broderick et al. (2013), *Streaming variational Bayes*, Section 2.2.

    q_0 = p_0,    q_k ← arg min_q KL(q ‖ p_k q_(k-1)),    k = 1, ..., K

One pass of partitioned variational inference, in which every site is still one when its client's turn comes: the
cavity is q itself, and no client sees what comes after it. Exact where it is conjugate; elsewhere the answer depends on
the order of the clients, which `PVI` goes on to mend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant, explains_unknown, refuse_unused
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep import tilted
from pyro_fed.infer.ep.guided import GuidedFedEP
from pyro_fed.infer.ep.pvi import PVI, TEN_STEPS, Order
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.ep.tilted import TiltedInference

#: A turn is taken whole, however far it goes: there is no second one.
WHOLE = StepControl(reach=1e12, growth=1e12)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StreamingVB(PVI):
    """Streaming variational Bayes: one pass over the clients, each with the posterior so far as its prior.

    Args:
        covariance: of q: "full", "diag", or "auto": full up to `full_dim` parameters.
        full_dim: largest D for which "auto" takes a full covariance, and exact Hessians; 1,000 where it is not set
            and rows have linear predictors.
        curvature: of the likelihoods: "hessian", "fisher" (never negative), or "auto": Hessians up to `full_dim`
            parameters.
        num_points: Sobol points for expectations under q; even. A hand-written guide takes eight draws a point.
        tolerance: refused: one pass is all.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance; a function is refused.
        num_guide_draws: refused, as guides that are functions are.
        client: how a client minimises its free energy: `pf.tilted.Newton`, `pf.tilted.SVI`, or its name; "newton" is
            ten steps; "ivon" is taken on models of more than 1000 parameters where none is set.
        start: "prior" alone: what has been learnt so far is the prior of the next client.
        averaging: refused, as a warm start is.
        warm_tolerance: refused, as a warm start is.
        damping: refused: a client has one turn, which is taken whole.
        min_fraction: a change of q is skipped where less than this share of it can be taken.
        margin: smallest eigenvalue that one round may leave of q's precision, relative to what it was.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        step_control: refused, likewise.
        server_optimiser: refused: there is no second round to remember for.
        client_optimiser: refused, likewise.
        changes: refused: it is what a server's optimiser is given.
        order: "sequential" alone.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Broderick, Boyd, Wibisono, Wilson & Jordan (2013), Streaming variational Bayes.

    Example:
        >>> idata = pf.run(pf.StreamingVB(), fed)
    """

    remedy: ClassVar[str] = cures.OF_ONE_PASS

    guided: ClassVar[type[GuidedFedEP] | None] = None
    steered: ClassVar[bool] = False
    settles: ClassVar[bool] = False
    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {"client": {"newton": TEN_STEPS}}

    start: Literal["auto", "laplace", "prior", "fedavg", "few_rows"] = "prior"
    client: TiltedInference | tilted.Name = TEN_STEPS
    step_control: StepControl = WHOLE
    order: Order = "sequential"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "one pass from the prior is all; use PVI", "start", "averaging", "warm_tolerance", "order")
        refuse_unused(self, "one pass from the prior is all; use PVI", "tolerance")
        refuse_unused(self, "a client has one turn, which is taken whole; use PVI", "damping", "step_control")
        if self.server_optimiser is not None or self.client_optimiser is not None:
            raise SettingError("StreamingVB: an optimiser has no second round to remember for; use PVI")

    def default_rounds(self, num_clients: int) -> int:
        """One turn of each client."""
        return num_clients

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """No criterion: it ends with the last client."""
        return None

    def fraction_for(self, clients: int) -> float:
        """The whole change, whatever the client's inference."""
        return 1.0

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Clients whose rows have not gone in whole, beside those of the last turn."""
        turns = [(past.clients, float(past.info["fraction"][0])) for past in record.rounds if "fraction" in past.info]
        partly = [record.client_names[k] for clients, taken in turns if taken < 1 for k in clients]
        missing = set(record.client_names) - {record.client_names[k] for clients, _ in turns for k in clients}
        notes = super().warnings(record, problem)
        if partly:
            notes.append(sentences.rows_went_in_partly(clients=partly))
        if turns and missing:
            notes.append(sentences.clients_had_no_turn(clients=sorted(missing)))
        return notes
