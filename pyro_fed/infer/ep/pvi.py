"""Partitioned variational inference, and streaming variational Bayes, one pass of it.

Source: Kassab & Simeone, Algorithm 2, after Bui et al. (2018).

    q_k ← arg min_q KL(q ‖ p_k q_-k),    t_k ← t_k q_k / q,    q ← q_k

Either one client updates in each round, in turn ("sequential", as in the paper), or all do ("synchronous", with
backtracking). The local free energy is minimised by expected Newton steps, which are natural gradients of step one
(`tilted.Newton`), or by Adam (`tilted.SVI`).

In *Streaming variational Bayes* (Broderick et al. 2013, Section 2.2) each client has one turn, and its prior is the
posterior of the clients before it. Its site is still flat, so that the cavity is q itself:

    q_0 = p_0,    q_k ← arg min_q KL(q ‖ p_k q_(k-1)),    k = 1, ..., K

The result is exact for conjugate models. For others it depends on the order of the clients; further passes, as in
`PVI`, correct this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import All, RoundRobin, Schedule
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import Variant, explains_unknown
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.expectation_propagation import EP
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.guided import GuidedFedEP
from pyro_fed.infer.ep.settings import ONE_PASS
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.ep.tilted import Newton, TiltedInference

Order = Literal["sequential", "synchronous"]

#: The default inference: ten steps with the cavity held fixed.
TEN_STEPS = Newton(steps=10)
#: The default with several turns per client: other clients then move q by more than a tenth of the client's own step.
TURN = replace(TEN_STEPS, enough=0.1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GuidedPVI(GuidedFedEP):
    """`PVI(guide=function)`: one client in each round, in turn, and one natural-gradient step in each turn."""

    order: Order = "sequential"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "order", ("sequential", "synchronous"))

    def default_schedule(self) -> Schedule:
        """One client in turn, or all, by the setting `order`."""
        return schedule_of(self.order)

    def default_rounds(self, num_clients: int) -> int:
        """Ten passes over the clients."""
        return rounds_of(self.order, num_clients)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PVI(FedEP):
    """Partitioned variational inference: each client minimises its local free energy with the cavity held fixed.

    Args:
        client: how a client minimises its free energy: `pf.infer.tilted.Newton`, `pf.infer.tilted.SVI`, or its name;
            "newton" takes ten steps, or fewer if one is shorter than a tenth of the first; None is "ivon" on models of
            more than 1000 parameters.
        order: "sequential" (one client a round, in turn) or "synchronous"; a schedule given to `run` goes before it.

    References:
        Bui et al. (2018), Partitioned variational inference. Ashman et al. (2022).

    Example:
        >>> idata = pf.run(pf.infer.PVI(), fed)
        >>> idata = pf.run(pf.infer.PVI(client=pf.infer.tilted.Newton(steps=3), order="synchronous"), fed)
    """

    guided: ClassVar[type[GuidedFedEP]] = GuidedPVI
    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {"client": {"newton": TURN}}

    order: Order = "sequential"
    client: TiltedInference | str = TURN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "order", ("sequential", "synchronous"))
        check_minimises(self)

    def default_schedule(self) -> Schedule:
        """One client in turn, or all, by the setting `order`."""
        return schedule_of(self.order)

    def default_rounds(self, num_clients: int) -> int:
        """Ten passes over the clients; for rounds of all clients by "ivon", the number of `FedEP`."""
        if self.order == "synchronous" and not self.solver.deterministic:
            return self.solver.default_rounds
        return rounds_of(self.order, num_clients)


def schedule_of(order: Order) -> Schedule:
    """The schedule of an order: one client in turn, or all."""
    return RoundRobin() if order == "sequential" else All()


def rounds_of(order: Order, num_clients: int) -> int:
    """Ten passes over the clients, or 20 rounds of all."""
    return 10 * num_clients if order == "sequential" else 20


def check_minimises(algorithm: EP) -> None:
    """Refuse a client's inference that does not minimise its free energy, KL(q ‖ tilted density)."""
    if not algorithm.solver.minimises_free_energy:
        raise SettingError(
            f"{type(algorithm).__name__}: client must be 'newton', 'svi' or 'ivon', which minimise KL(q || tilted), "
            f"received {algorithm.client!r}; use FedEP for the others"
        )


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class StreamingVB(EP):
    """Streaming variational Bayes: one pass over the clients, each with the posterior so far as its prior.

    Args:
        client: how a client minimises its free energy: `pf.infer.tilted.Newton`, `pf.infer.tilted.SVI`, or its name;
            "newton" is ten steps; "ivon" is taken on models of more than 1000 parameters if none is set.

    References:
        Broderick, Boyd, Wibisono, Wilson & Jordan (2013), Streaming variational Bayes.

    Example:
        >>> idata = pf.run(pf.infer.StreamingVB(), fed)
    """

    remedy: ClassVar[str] = cures.OF_ONE_PASS

    without: ClassVar[Mapping[str, str]] = {
        "order": "clients take turns in sequence; use PVI",
        **dict.fromkeys(("start", "tolerance"), ONE_PASS),
        **dict.fromkeys(("damping", "step_control"), "each client has one turn, with its full step; use PVI"),
        "optimisers": "an optimiser has no effect in a single round",
    }
    shorthands: ClassVar[Mapping[str, Mapping[str, Variant]]] = {"client": {"newton": TEN_STEPS}}

    client: TiltedInference | str = TEN_STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimises(self)

    @property
    def control(self) -> StepControl:
        """The control without limits, because each turn is a full step."""
        return StepControl().without_limits()

    def default_schedule(self) -> Schedule:
        """One client in turn."""
        return RoundRobin()

    def default_rounds(self, num_clients: int) -> int:
        """One turn of each client."""
        return num_clients

    def damping_for(self, clients: int) -> float:
        """1, the full change, for every inference of the clients."""
        return 1.0

    def unsettled(self, record: Record) -> list[Finding]:
        """No warnings: the last turn's move of q is not the remaining distance."""
        return []

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about clients whose rows are only partly used, and those of the last turn."""
        turns = [
            (one_round.clients, float(one_round.info["fraction"][0]))
            for one_round in record.rounds
            if "fraction" in one_round.info
        ]
        partly_used = [record.client_names[k] for clients, fraction in turns if fraction < 1 for k in clients]
        missing = set(record.client_names) - {record.client_names[k] for clients, _ in turns for k in clients}
        notes = super().warnings(record, problem)
        if partly_used:
            notes.append(sentences.rows_went_in_partly(clients=partly_used))
        if turns and missing:
            notes.append(sentences.clients_had_no_turn(clients=sorted(missing)))
        return notes
