"""Federated averaging Langevin dynamics: all chosen clients in parallel, then averaged.

Source: Deng et al. (2022), *On convergence of federated averaging Langevin dynamics*; Plassier et al. (2023),
*Federated averaging Langevin dynamics*, for control variates against the clients' drift. In a round client c of
the chosen set makes T steps from the server's θ,

    θ^c ← θ^c + h/2 score_c(θ^c) + sqrt(h / p_c) ξ^c,    ξ^c ~ N(0, I),    then    θ ← Σ_c p_c θ^c

with p_c = f_c / Σ f over the chosen set, and score_c of `langevin.gradients`, whose f-weighted mean is the posterior's
score. The averaged noise has variance Σ_c p_c² h / p_c = h: the average follows Eq. (1) of FSGLD's paper, up to changes
of the scores while the clients are apart. Conducive gradients are the control variate: with surrogates equal to the
likelihoods all clients have the same linear score, and the average is exact for every T.

Letters: f_c `probabilities`, p_c `weight`, T `local_steps`, h `step_size`, α `conducive.alpha`.
Deviations: none of the noise is shared by the clients (the source's ρ is 0), and the conducive gradient takes the
place of Plassier's stochastic control variates, which `langevin.vr_fald` has. Those of `langevin.langevin` hold too, as
settings.

A client's own noise, h T / p_c in posterior variances, is 1/p_c times that of the average. It biases the average of
nonlinear scores, and the bias grows with h T and the number of clients. If no step size is set, a round before the
first (`surrogates.measuring`) measures the bias, and visits are short enough for it to be at most `step.visit_error`.
One step per visit, `local_steps=1` with `step.midpoint=False`, has no bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, Start, State
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.infer.langevin.averaged import AveragedLangevin
from pyro_fed.infer.langevin.conducive_visits import ConduciveVisits, VisitContributions
from pyro_fed.infer.langevin.step import Fixed, ForVisits, Measured, Step
from pyro_fed.infer.surrogates.measuring import OwnNoise, longest_parallel_visit, noise_time
from pyro_fed.infer.surrogates.surrogates import Given

#: Share of the longest visit below which warnings about chains name the clients' own noise as the reason.
SHORT_VISIT_SHARE = 0.5


@dataclass(frozen=True)
class AveragedVisitContributions(VisitContributions):
    """Contributions to `FALD`, whose chains average the visits to all clients."""

    def chain_shares(self, shared: State, clients: Tensor) -> Tensor:
        """p_c, the client's share among the clients of its chain."""
        weight: Tensor = self.algorithm.chain_shares(shared, clients)
        return weight

    def bounding_obstacle(self) -> str | None:
        """The reason why a visit cannot be compared with one to the surrogates; "" if it can."""
        return super().bounding_obstacle() or (
            ""
            if self.algorithm.conducive
            else "without conducive gradients honest visits differ too much: use conducive=pf.infer.Conducive()"
        )

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit visits to the reach of the same visits to the surrogates, with the weights that the server gave."""
        held = super().bounded_messages(limits, shared, ledger, sent)
        return held._replace(messages={**held.messages, "weight": self.chain_shares(shared, sent.clients)})

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """An empty dictionary: with `stand_in` visits end where they began, and a round is shorter by their share."""
        return {}


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FALD(AveragedLangevin, ConduciveVisits):
    """Federated averaging Langevin dynamics: clients in parallel from one point, averaged after `local_steps` steps.

    A draw is the average at the end of a round.

    Args:
        step: the step's size and rule: a `pf.infer.step.Measured`; a `pf.infer.step.ForVisits`, which does not measure
            the clients' own noise (a warning says so, and networks and other large models are run so); or a
            `pf.infer.step.Fixed`.
        probabilities: f_s, the clients' weights, positive with sum one; None is uniform.
        conducive: a `pf.infer.Conducive`: the weight and the reach of the conducive gradient; None is the plain form,
            whose clients drift apart.

    References:
        Deng, Zhang, Ma, Song, Zhang & Lin (2022), On convergence of federated averaging Langevin dynamics. Plassier,
        Durmus & Moulines (2023), Federated averaging Langevin dynamics.

    Example:
        >>> idata = pf.run(pf.infer.FALD(), fed)
    """

    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, ForVisits, Measured)
    usual_visit_time: ClassVar[float] = 0.2

    step: Step | str = Measured()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The fit of the surrogates, with a measurement of the clients' own noise if the step depends on it."""
        first = super().warm_start(problem)
        surrogates = first or self.surrogates
        if not isinstance(self.step, Measured) or not isinstance(surrogates, Algorithm | Given):
            return first
        return OwnNoise(surrogates=surrogates, probabilities=self.probabilities)

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """The longest visit whose bias is small enough, if that is known."""
        known = {} if start is None else start.shared
        if not isinstance(self.step, Measured) or "shift" not in known:
            return self.visit_time
        error, midpoint = self.step.visit_error, self.step.midpoint
        return longest_parallel_visit(error, known, self.local_steps, midpoint, self.visit_time)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return {**super().monitor(before, after), "visit_time": self.local_steps * float(after["step_size"])}

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """The warnings of all chains, the cure of short visits, and visits whose bias is not measured."""
        notes, visit = super().warnings(record, problem), record.latest["visit_time"]
        cure = "use FSGLD(), or local_steps=1 with step.midpoint=False, which has none"
        if isinstance(self.step, Measured):
            if notes and visit < SHORT_VISIT_SHARE * self.visit_time:
                why = (
                    f"Visits last {visit:.2g} in place of step.visit_time={self.visit_time:g}, as long as the noise "
                    "that clients have of their own moves nothing by more than "
                    f"step.visit_error={self.step.visit_error:g}: {cure}"
                )
                notes[0] = notes[0].with_cure(why)
        elif isinstance(self.step, ForVisits) and noise_time(self.local_steps, self.step.midpoint):
            notes.append(sentences.noise_of_clients_unmeasured(parameters=problem.dim, cures=[cure]))
        return notes

    def contributions(self) -> Contributions:
        return AveragedVisitContributions(self)
