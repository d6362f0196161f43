"""FedEP and PVI with a hand-written guide: sites in the natural parameters of the guide's own families.

Source: Khan & Lin (2017), conjugate-computation variational inference; Bui et al. (2018), Property 4; Salimans &
Knowles (2013) for the estimate. With q(θ | λ) in an exponential family (`guides.written`) a client's site is

    λ_k ← F⁻¹ ∇_λ E_q[log p_k],    F = ∇_λ E_q[T]

and the prior's in the same way, from log p_0 - log h. Both gradients are means over the same reparametrised draws
(Figurnov et al. 2018), so that a log-likelihood λ_k'T(θ) + const gives λ_k exactly, whatever the draws.

    λ ← λ + s f,    f = Σ_k (λ_k - old λ_k)        s the largest of δ, δ/2, δ/4, ... that leaves a distribution

If all clients are at work, steps are accelerated (`ops.anderson`), and a step is taken back if the evidence's bound has
fallen, as those of Gaussians (`ascent`): then a quarter of f at the best λ is tried, doubled with each step that is
kept, and the sites are discarded. Otherwise steps of factors that are correlated in the posterior overstep.

    λ' = λ + s f - (ΔX + s ΔF) γ,    γ = arg min ‖f - ΔF γ‖_F    ΔX, ΔF differences of λ and f over the last rounds

Letters: λ_k `Site.natural`, F `fisher`, s `fraction` and `pace`, f `move`, δ `damping`. The draws use the same random
numbers at all clients and in all rounds; away from conjugacy the error falls with the root of `num_points`.

Only q(θ) of the guide is federated. A local part q(z_k | θ) is not used, with a warning: the likelihoods have z_k
integrated out, which is equal to the best of all local guides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import SiteKeeping
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused, shared_settings
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores_and_values, prior_scores_and_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.gaussian_guides import is_hand_written
from pyro_fed.guides.guide_runs import KeptDraws
from pyro_fed.guides.written import Draws, GuideFamily, read_guide
from pyro_fed.infer.ep.ascent import RADIUS_GROWTH, RADIUS_SHRINKAGE, has_fallen
from pyro_fed.infer.ep.findings import at_rest
from pyro_fed.infer.ep.step_control import ACCELERATION, StepControl
from pyro_fed.infer.sites.gaussian_sites import largest_move
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.anderson import least_squares
from pyro_fed.ops.backtrack import MIN_FRACTION

#: Entries of the server's state that are NaN or infinite if nothing is known.
UNKNOWN = frozenset({"points", "moves", "best_value", "bound"})


class Path(NamedTuple):
    """The server's record of past rounds, entries of its state."""

    best: Tensor  # the λ of the largest bound, (P,)
    onward: Tensor  # f at `best`, (P,)
    best_value: Tensor  # the largest bound, (); -inf if there is none yet
    pace: Tensor  # s, ()
    points: Tensor  # λ of the last rounds, (M, P); NaN where there is none
    moves: Tensor  # f of the last rounds, (M, P)

    @classmethod
    def begin(cls, natural: Tensor) -> Path:
        """The record before the first round."""
        past = natural.new_full((ACCELERATION["diag"][0], len(natural)), torch.nan)
        one = natural.new_ones(())
        return cls(natural, torch.zeros_like(natural), -torch.inf * one, one, past, past)

    def back(self, proper: Callable[[Tensor], bool]) -> tuple[Tensor, Path]:
        """Another λ in place of one at which the bound has fallen, and the new record; `proper` tests a λ."""
        pace = proper_fraction(proper, self.best, self.onward, RADIUS_SHRINKAGE * self.pace)
        nothing = torch.full_like(self.points, torch.nan)
        return self.best + pace * self.onward, self._replace(pace=pace, points=nothing, moves=nothing)

    def onwards(
        self, natural: Tensor, move: Tensor, bound: Tensor, fisher: Tensor, damping: float
    ) -> tuple[Tensor, Path]:
        """The addition to λ + s f, (P,), and the new record with s, at a λ where the bound has not fallen."""
        points, moves = (torch.cat([past[1:], new[None]]) for past, new in ((self.points, natural), (self.moves, move)))
        pace = (RADIUS_GROWTH * self.pace).clamp_max(damping)
        path = self._replace(points=points, moves=moves, pace=pace)
        if bound >= self.best_value:
            path = path._replace(best=natural, onward=move, best_value=bound)
        return torch.zeros_like(natural) if pace < damping else acceleration(points, moves, pace, fisher), path


def proper_fraction(proper: Callable[[Tensor], bool], natural: Tensor, move: Tensor, most: Tensor) -> Tensor:
    """The largest of `most`, its half, its quarter, ... of a move that leaves a distribution, (); zero if none does."""
    while most > 0 and not proper(natural + most * move):
        most = most / 2 if most > MIN_FRACTION else 0 * most
    return most


def acceleration(points: Tensor, moves: Tensor, pace: Tensor | float, fisher: Tensor) -> Tensor:
    """The addition to λ + s f, (P,), by λ and f of the last rounds (M, P), the newest last; NaN where there is none."""
    natural, move = points[-1], moves[-1]
    known = points[:-1].isfinite().all(1) & moves[:-1].isfinite().all(1)
    root, failed = torch.linalg.cholesky_ex((fisher + fisher.T) / 2)
    if not known.any() or failed:
        return torch.zeros_like(natural)
    by_point, by_move = natural - points[:-1][known], move - moves[:-1][known]
    share = least_squares(by_move @ root, move @ root).unsqueeze(-1)
    return -((by_point + pace * by_move) * share).sum(0)


class Server(NamedTuple):
    """The server's state."""

    natural: Tensor  # λ, (P,)
    prior_natural: Tensor  # the prior's site, (P,)
    prior_delta: Tensor  # its change in this round
    change: Tensor  # Σ_k (λ_k - old λ_k), the prior's included
    fraction: Tensor  # s, ()
    working_share: Tensor  # of the clients, at work in the last round, ()
    mean: Tensor  # of the guide's sites
    sd: Tensor  # of the same
    num_clients: Tensor  # K
    seed: Tensor  # of the draws of the result
    fisher: Tensor  # F, (P, P)
    bound: Tensor  # the evidence's lower bound at λ, ()
    added: Tensor  # each site's share of the acceleration, (P,)
    reset: Tensor  # 1 if the last step was taken back, and sites are discarded
    path: Path  # the λ of past rounds


class Site(NamedTuple):
    """A client's site λ_k (C, P), and the change that it has sent."""

    natural: Tensor
    delta: Tensor


class Verdict(NamedTuple):
    """What clients receive, (C, ...): s, a site's share of the acceleration, and whether sites are discarded."""

    fraction: Tensor
    added: Tensor
    reset: Tensor


@dataclass(frozen=True, kw_only=True)
class GuideSites(KeptDraws, Algorithm):
    """Sites in the natural parameters of a guide's own exponential families.

    Args:
        guide: a function or a `PyroModule`, whose global sites are independent exponential families.
        num_points: draws of q that expectations are means of; even.
        tolerance: the run has converged when no site's mean moves by more than this many SDs, and no SD by more than
            this share.
        damping: δ, in (0, 1].
    """

    on_cpu: ClassVar[bool] = True

    guide: Any
    num_points: int = 1024
    tolerance: float = 1e-3
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "num_points")
        check_positive(self, "tolerance")
        check_between(self, "damping", 0, 1)
        if self.num_points % 2:
            raise SettingError(f"{type(self).__name__}: num_points must be even, received {self.num_points}")
        if not is_hand_written(self.guide):
            raise SettingError(
                f"{type(self).__name__}: guide must be a function or a PyroModule, received {self.guide!r}; automatic "
                "guides are federated by FedEP(guide=...)"
            )

    def family(self, problem: Problem) -> GuideFamily:
        """The guide's global sites as a product of exponential families."""
        return read_guide(self.guide, problem)

    def draws_at(self, problem: Problem, natural: Tensor) -> Draws:
        """Draws of q at λ (P,), by the same random numbers at all clients and in all rounds."""
        return self.family(problem).draws(natural, self.num_points, seeding.COMMON)

    def prior_at(self, problem: Problem, draws: Draws) -> tuple[Tensor, Tensor]:
        """Scores (S, D) of log p_0 - log h at draws of q, and the mean of log p_0 - log q, (); float64."""
        scores, values = prior_scores_and_values(problem, draws.z.to(problem.dtype))
        return scores.double() - draws.base_score, (values.double() - draws.log_density).mean()

    def likelihoods(self, problem: Problem, points: Tensor, data: ClientData) -> tuple[Tensor, Tensor]:
        """Scores (C, S, D) of C clients' likelihoods at points (S, C, D), and their means over these, (C,); float64."""
        points = points.transpose(0, 1).to(problem.dtype)
        scores, values = clients_likelihood_scores_and_values(problem, points, data)
        return scores.double(), values.mean(1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GuidedFedEP(GuideSites, SiteKeeping):
    """`FedEP(guide=function)`: a guide's own exponential families, by natural-gradient steps.

    References:
        Khan & Lin (2017); Bui et al. (2018), Property 4.
    """

    may_be_infinite: ClassVar[frozenset[str]] = UNKNOWN

    def default_rounds(self, num_clients: int) -> int:
        """At most 50 rounds; the run stops when q has converged."""
        return 50

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the guide's initial q as the prior's site, with clients' sites equal to one."""
        natural = self.family(problem).start
        mean, sd = self.family(problem).moments(natural)
        still, zero, one = torch.zeros_like(natural), natural.new_zeros(()), natural.new_ones(())
        server = Server(
            natural=natural,
            prior_natural=natural,
            prior_delta=still,
            change=still,
            fraction=one,
            working_share=one,
            mean=mean,
            sd=sd,
            num_clients=torch.tensor(num_clients),
            seed=torch.randint(2**31, (), generator=generator),
            fisher=torch.eye(len(natural), dtype=natural.dtype),
            bound=zero,
            added=still,
            reset=zero,
            path=Path.begin(natural),
        )
        flat = natural.new_zeros(num_clients, len(natural))
        return as_entries(server), self.client_state(flat, flat.clone())

    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute the change of the prior's site."""
        server = entries_as(Server, shared)
        draws = self.draws_at(problem, server.natural)
        scores, bound = self.prior_at(problem, draws)
        delta = site_of_scores(draws, scores[None])[0] - server.prior_natural
        return as_entries(server._replace(prior_delta=delta, bound=bound, fisher=draws.fisher))

    def download(self, shared: State, clients: Tensor) -> State:
        """λ, the natural parameters of the guide, which clients receive."""
        return super().download({"natural": shared["natural"]}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute the changes of the clients' sites."""
        old, draws = self.old_site(shared, local), self.draws_at(problem, shared["natural"][0])
        scores, value = self.likelihoods(problem, draws.z.unsqueeze(1).expand(-1, len(old), -1), data)
        delta = site_of_scores(draws, scores) - old
        usable = delta.isfinite().all(1) & value.isfinite()
        delta = torch.where(usable.unsqueeze(-1), delta, 0.0)
        value = torch.where(usable, value, torch.finfo(value.dtype).min)
        return {"delta": delta, "value": value}, self.client_state(old, delta), {"usable": usable.double()}

    def old_site(self, received: State, local: State) -> Tensor:
        """The site that changes refer to, (C, P): a client's own."""
        return entries_as(Site, local).natural

    def client_state(self, natural: Tensor, delta: Tensor) -> State:
        """What clients keep: their sites, and the changes that they have sent."""
        return Site(natural, delta)._asdict()

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to changes far above the others', in units of λ."""
        size = message_limits.sizes(messages["delta"]) / (1 + message_limits.sizes(received["natural"]))
        return message_limits.outlying_clients(size, "change")

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Sum all changes; `refine` finds how much of the sum can be taken."""
        server = entries_as(Server, shared)
        change, bound = messages["delta"].sum(0) + server.prior_delta, messages["value"].sum() + server.bound
        working_share = server.fraction.new_tensor(len(weights)) / server.num_clients
        return as_entries(server._replace(change=change, bound=bound, working_share=working_share))

    def refine(self, problem: Problem, shared: State) -> State:
        """Move λ by the largest fraction that leaves a distribution, or take the last step back."""
        family, server = self.family(problem), entries_as(Server, shared)
        natural, move, bound, path = server.natural, server.change, server.bound, server.path
        zero, nothing = torch.zeros_like(server.fraction), torch.zeros_like(natural)
        everyone = bool(server.working_share >= 1)
        if everyone and bool(has_fallen(bound, path.best_value, StepControl.fall)):
            new, path = path.back(family.proper)
            server = server._replace(prior_natural=new, fraction=zero, added=nothing, reset=zero + 1)
        else:
            added, fraction = nothing, zero + self.damping
            if everyone:
                added, path = path.onwards(natural, move, bound, server.fisher, self.damping)
                fraction = path.pace
            if not family.proper(natural + fraction * move + added):
                added = nothing
            fraction = proper_fraction(family.proper, natural, move, fraction)
            new, share = natural + fraction * move + added, added / (server.num_clients + 1)
            prior = server.prior_natural + fraction * server.prior_delta + share
            server = server._replace(prior_natural=prior, fraction=fraction, added=share, reset=zero)
        mean, sd = family.moments(new)
        return as_entries(server._replace(natural=new, mean=mean, sd=sd, path=path))

    def conclude(self, problem: Problem, shared: State) -> State:
        """Draw from the guide."""
        draws = self.family(problem).sample(shared["natural"], self.kept_draw_count, int(shared["seed"]))
        return {**shared, "draws": draws}

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """The fraction taken, each site's share of the acceleration, and whether sites are discarded."""
        verdict = Verdict(*(part.expand(len(clients), *part.shape) for part in entries_as(Verdict, after)))
        return verdict._asdict(), {"fraction": verdict.fraction}

    def settle(self, feedback: State, local: State) -> State:
        """Move the clients' sites by the fraction taken."""
        site, verdict = entries_as(Site, local), entries_as(Verdict, feedback)
        moved = site.natural + verdict.fraction.unsqueeze(-1) * site.delta + verdict.added
        return site._replace(natural=torch.where(verdict.reset.unsqueeze(-1) > 0, 0.0, moved))._asdict()

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Largest move of a site's mean in SDs, or change of a log SD; the fraction taken; the clients' share."""
        old, new = entries_as(Server, before), entries_as(Server, after)
        return {
            "change": float(largest_move((old.mean, old.sd), (new.mean, new.sd))),
            "fraction": float(new.fraction),
            "cut": float(new.reset > 0 or new.path.pace < self.damping),
            "share": float(new.working_share),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q did not move in as many rounds as let every client work once."""
        return at_rest(figures, self.tolerance)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about clients whose message was not finite."""
        usable = record.last("usable")
        bad = [record.client_names[k] for k, good in zip(record.rounds[-1].clients, usable, strict=True) if not good]
        if not bad:
            return []
        return [sentences.sites_not_finite(clients=bad)]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GuidedFedSEP(GuidedFedEP):
    """`FedSEP(guide=function)`: clients keep no sites, and changes refer to the average of all.

    References:
        Khan & Lin (2017); Li et al. (2015), Stochastic expectation propagation.
    """

    def client_state(self, natural: Tensor, delta: Tensor) -> State:
        """An empty state, because the clients keep nothing."""
        return {}

    def download(self, shared: State, clients: Tensor) -> State:
        """λ, and the average site, which clients receive."""
        server = entries_as(Server, shared)
        average = (server.natural - server.prior_natural) / server.num_clients
        return Algorithm.download(self, {"natural": server.natural, "average": average}, clients)

    def old_site(self, received: State, local: State) -> Tensor:
        """The average site, (C, P)."""
        return received["average"]

    def settle(self, feedback: State, local: State) -> State:
        """An empty state, because the clients keep nothing."""
        return {}


def with_own_families(algorithm: Any, kind: type[GuideSites], gaussian_points: int) -> Algorithm:
    """What federates the hand-written guide of an algorithm, with its settings; those without effect are refused.

    `gaussian_points` are the points that expectations under a Gaussian take by default.
    """
    own = shared_settings(algorithm, kind)
    refuse_unused(
        algorithm,
        "a hand-written guide is federated by natural-gradient steps in its own families, from where it begins; "
        "leave it out, or use an automatic guide such as AutoMultivariateNormal",
        *(field.name for field in fields(algorithm) if field.name not in own),
    )
    draws_a_point = kind.num_points // gaussian_points  # expectations are not of polynomials
    damping = 1.0 if own["damping"] is None else own["damping"]
    return kind(**own | {"num_points": draws_a_point * algorithm.num_points, "damping": damping})


def site_of_scores(draws: Draws, scores: Tensor) -> Tensor:
    """F⁻¹ ∇_λ E[f] of C functions from their scores (C, S, D): (C, P)."""
    gradient = torch.einsum("csd,sdp->cp", scores, draws.jacobian) / len(draws.z)
    site: Tensor = torch.linalg.solve_ex(draws.fisher.T, gradient.T).result.T  # not finite where F is singular
    return site
