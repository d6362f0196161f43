"""Federated Newton's method: the posterior mode, the Laplace approximation there, and a Gaussian site of each client.

Source: Smola et al. (2003), *Laplace propagation*; Nocedal & Wright (2006), Sections 3.1 and 3.4; Dauphin et al.
(2014) for the rule at saddles. With f = log p_0 + Σ_k log p_k and H = -∇²f, each round is a step

    θ ← θ + s d,    d = |H|⁻¹ ∇f(θ)

In a round the server sends θ, d and an aim, which is one of the fractions s_j: the best one of the previous round.
Every client sends its log-likelihood at θ + s_j d for every s_j (the line search), and score and curvature at the aim.
If another fraction is much better, the server moves there and requests score and curvature with d = 0, except after
steps too short for reliable values (`SHORT_STEP`). A mode search that leaves the posterior mass for a spike of the
density returns to the point of largest mass, |H|^(-1/2) exp f(θ). Fractions that move a logarithm or a logit by more
than `MAX_LOG_STEP` are ignored: likelihoods are flat far away, and densities at e^40 are dominated by rounding.

|H| has the eigenvalues of H in absolute value, after H is scaled to a diagonal of ±1 (so that no parameter's unit
matters) and not below `ops.matrices.MIN_EIGENVALUE`; a positive definite H is unchanged. With a diagonal structure H
stands for its diagonal.

Letters: θ `point`, d `direction`, s_j `fractions`, H `precision`; sites as in `gaussian_sites`:
Λ_k = -∇² log p_k(θ), η_k = ∇ log p_k(θ) + Λ_k θ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION, cohort_reach, redescending, relative_rows
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import ROUNDING_UNITS
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.derivatives import clients_log_likelihoods, few_rows_findings, pick_rows, prior_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.infer.laplace.laplace_point import (
    MAX_CURVATURE_FALL,
    Line,
    Server,
    first_server,
    semidefinite,
    state_after_arrival,
)
from pyro_fed.infer.sites.gaussian_sites import (
    GaussianAlgorithm,
    SiteContributions,
    absolute,
    as_state,
    flat_site,
    gaussian,
    is_finite,
    kept_where,
    site_of,
)
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import Gaussian

#: Tolerance of Newton's method before a run, in SDs; it is smaller if the run has to know whether there is a mode.
WARM_TOLERANCE = 0.5
#: Longest step of a logarithm or a logit: a factor of 5e8.
MAX_LOG_STEP = 20.0
#: For a step shorter than this many SDs, differences of values below this many nats are not reliable, and the Newton
#: step is taken: integrals over rows' own latents jump by 1e-4 nats where two modes merge.
SHORT_STEP = 0.01
#: Smallest share of the best fraction's gain for which the step aimed at is taken, which saves a round.
AIM_SHARE = 0.5


def limited_values(
    sites: Gaussian, point: Tensor, line: Tensor, values: Tensor, pull: float, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values on a line (K, L), limited by the clients' sites and the cohort's departures, and their sum at `point`.

    Sites are quadratic, so that honest values depart from them by terms of third order, of similar size per row.
    Departures beyond `pull` SDs of the cohort's are limited. The SDs are per row, but a limit grows only with the root
    of the rows that a client claims: an honest client with many rows may be limited. Levels cannot be checked and are
    set to the median.
    `line` (L + 1, D) has the differences of the line's points, and last of the current point, from `point`.
    """
    score, zero = sites.score(point.expand_as(sites.eta)), torch.zeros_like(sites.eta)
    curved = torch.stack([type(sites)(sites.precision, zero).score(direction.expand_as(zero)) for direction in line], 1)
    expected = score @ line.T + 0.5 * (curved * line).sum(-1)
    nearest = int((line[:-1] - line[-1]).abs().amax(-1).argmin())
    expected = expected[:, :-1] - expected[:, nearest : nearest + 1]
    level = values[:, nearest : nearest + 1]
    departure = values - level - expected
    row_ratio, median_level = relative_rows(rows, values), level.median()
    reach = cohort_reach(departure.abs(), pull / NORMAL_MEDIAN_DEVIATION, row_ratio, row_ratio)
    return median_level + expected + redescending(departure, reach), len(values) * median_level


@dataclass(frozen=True)
class LaplaceContributions(SiteContributions):
    """Contributions of the clients of `FedLaplace`."""

    def client_sites(self, shared: State, local: State) -> State | None:
        """The expansions of the clients' log-likelihoods at the last point."""
        return as_state(gaussian(local)) if "eta" in local else None

    def client_sites_after(self, sites: State, messages: State, feedback: State) -> State | None:
        """The sites in the messages, which replace the previous ones without any step of the server's."""
        return as_state(gaussian(messages))

    def site_changes(self, shared: State, ledger: State, sent: SentMessages) -> Gaussian:
        """The differences from the expansions at the previous point, or from flat sites."""
        sites, ledger_sites = gaussian(sent.messages), self.client_sites(shared, ledger) if ledger else None
        old = (
            sites.power(0.0)
            if ledger_sites is None
            else gaussian({n: v[sent.clients] for n, v in ledger_sites.items()})
        )
        return sites.quotient(old)

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Sites within the limits, and values on the line limited by these sites and the cohort."""
        server = entries_as(Server, shared)
        point = server.line.end
        limited = limits.sites(server.prior, gaussian(sent.messages), point, sent.own_rows)
        values, start = limited_values(
            limited.sites, point, self._line_from_aim(server), sent.messages["values"], limits.pull, sent.own_rows
        )
        usable = sent.messages["usable"]
        usable = torch.full_like(
            usable, bool(usable.double().mean() > 0.5)
        )  # the majority's, so that no client decides alone
        # Values continue from the last value: the median level differs from point to point, and masses at different
        # points are compared.
        last_value = server.value - server.prior_value[self._smallest_fraction_index]
        level = torch.where(last_value.isfinite(), last_value - start, 0.0) / len(values)
        return BoundedMessages(
            shared,
            {**sent.messages, **as_state(limited.sites), "values": values + level, "usable": usable},
            {},
            limited.limit_excess,
            limited.widened,
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """Messages of clients without rows: a flat line and no site."""
        flat = {
            name: torch.zeros_like(value[:1]).expand(len(clients), *value.shape[1:]) for name, value in messages.items()
        }
        return {**flat, "usable": torch.ones_like(flat["usable"])}

    @property
    def _smallest_fraction_index(self) -> int:
        """The index of the fraction that is nearest to the point itself."""
        fractions: tuple[float, ...] = self.algorithm.fractions
        return fractions.index(min(fractions))

    def _line_from_aim(self, server: Server) -> Tensor:
        """The line's points relative to the point aimed at, (L + 1, D); the last is nearest to the current point."""
        fractions = server.point.new_tensor(
            [*self.algorithm.fractions, self.algorithm.fractions[self._smallest_fraction_index]]
        )
        return (fractions - server.aim).unsqueeze(-1) * server.direction


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedLaplace(GaussianAlgorithm):
    """Federated Newton's method with a line search at the server.

    The final `local` state holds each client's Gaussian site at the mode; `shared` holds the mode (`point`) and q.

    Args:
        tolerance: the run has converged when the next Newton step is shorter than this many posterior SDs,
            (d'|H|d)^(1/2).
        start: "zeros" on the unconstrained scale (or a nearby point or a draw of the prior if the density or a
            derivative is not finite there), a draw from the "prior", the average of "fedavg", or "auto": "fedavg" for
            networks, whose log density is stationary at zeros and has many modes, and "zeros" for other models.
        fractions: fractions of the Newton step that the line search tries; the first must be 1.
        few_rows: number of rows of all clients, approximately, whose posterior is approximated, as at the start of
            `FedEP` with few rows; None takes all rows.

    References:
        Smola, Vishwanathan & Eleazar (2003), Laplace propagation. Nocedal & Wright (2006), Numerical optimization,
        Sections 3.1 and 3.4. Dauphin et al. (2014), for |H| at saddles.

    Example:
        >>> idata = pf.run(pf.FedLaplace(), fed)
    """

    remedy: ClassVar[str] = cures.OF_LAPLACE

    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = frozenset(
        {"value", "decrement", "length", "direction", "most_mass", "rough_mass"}
        | {"prior_value", "prior_precision", "prior_eta"}
    )

    without: ClassVar[Mapping[str, str]] = {"num_points": "it evaluates single points; use FedEP for expectations"}

    tolerance: float = 1e-4
    start: Literal["auto", "zeros", "prior", "fedavg"] = "auto"
    fractions: tuple[float, ...] = (1.0, 4.0, 2.0, 0.5, 0.25, 0.1, 0.03, 0.01, 1e-3, 1e-4)
    few_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "start", ("auto", "zeros", "prior", "fedavg"))
        check_positive(self, "tolerance")
        check_at_least(self, 1, "few_rows", allow_none=True)
        if not self.fractions or self.fractions[0] != 1.0 or min(self.fractions) <= 0:
            raise SettingError(f"FedLaplace: fractions must be positive and begin with 1, received {self.fractions}")

    @property
    def by_newton(self) -> bool:
        """True: this is Newton's method."""
        return True

    def default_rounds(self, num_clients: int) -> int:
        """At most 100 rounds; the run stops when it has converged."""
        return 100

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The averaging, if Newton's method begins with one."""
        return BurnIn() if chosen_setting(self, "start") == "fedavg" else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start at zeros (`Problem.regular_start`), at a draw from the prior or an average, with flat sites."""
        structure = self.structure
        site = flat_site(problem, structure)
        if self.start == "prior":
            point = problem.init(1, generator)[0].to(site.eta)
        else:
            point = (problem.regular_start if start is None else start.shared["point"]).to(site.eta)
        rounding = ROUNDING_UNITS * torch.finfo(problem.dtype).eps
        server = first_server(point, site, problem.transformed, num_clients, len(self.fractions), rounding)
        return as_entries(server), as_state(flat_site(problem, structure, num_clients))

    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute the prior's part: its values on the line, and its site at the aim."""
        entries = self.prior_on_line(problem, Line(*(part[None] for part in entries_as(Line, shared))))
        return {**shared, **{name: value[0] for name, value in entries.items()}}

    def prior_on_line(self, problem: Problem, line: Line) -> State:
        """The prior's values on lines (C, ...), and its sites at their aims."""
        moments = self.derivatives().of_prior(problem, line.end[None])
        values = problem.mapped(prior_values, (0,))(line.trials(self.fractions).to(problem.dtype)).double()
        return {"prior_value": values, **as_state(site_of(moments, line.end), "prior_")}

    def download(self, shared: State, clients: Tensor) -> State:
        """The point, the direction and the aim."""
        return super().download(entries_as(Line, shared)._asdict(), clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute log-likelihoods on the line, and a site at the aim."""
        line = entries_as(Line, shared)
        if self.few_rows is not None:
            data = pick_rows(problem, data, self.few_rows)[0]
        derivatives = self.derivatives()
        moments = derivatives.under(problem, line.end, None, data)
        if moments is None:
            moments = derivatives.of_likelihood(problem, line.end[None], data.full_batch())
        values = clients_log_likelihoods(problem, line.trials(self.fractions).to(problem.dtype), data)
        usable = moments.finite()
        site = kept_where(usable, site_of(moments, line.end))
        lowest = torch.finfo(values.dtype).min
        message = {
            "values": values.nan_to_num(nan=lowest, posinf=lowest, neginf=lowest),
            "usable": usable,
            **as_state(site),
        }
        return message, as_state(site), {"indefinite": (~semidefinite(site)).double()}

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to curvatures and scores far above the others'."""
        return message_limits.outlying_sites(messages)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Choose the fraction; if it is the aim, compute the next Newton direction.

        Raises:
            SettingError: not all clients took part, so that the sum is not the posterior's.
        """
        server, expected = entries_as(Server, shared), int(shared["num_clients"])
        if len(weights) != expected:
            raise SettingError(
                f"FedLaplace needs all {expected} clients in every round, received {len(weights)}: use schedule.All()"
            )
        return as_entries(self.next_server(server, messages))

    def next_server(self, server: Server, messages: State) -> Server:
        """The server's state after the round, see `combine`."""
        totals = server.prior_value + messages["values"].sum(0)
        lengths = totals.new_tensor(self.fractions) * (server.direction.abs() * server.transformed).amax()
        totals = torch.where(totals.isfinite() & (lengths <= MAX_LOG_STEP), totals, -torch.inf)
        best, aimed = int(totals.argmax()), self.fractions.index(float(server.aim))
        gain, aimed_gain = float(totals[best] - server.value), float(totals[aimed] - server.value)
        slack = float(server.rounding * totals[aimed].abs())
        requested_again, one = not bool(server.direction.any()), torch.ones_like(server.aim)
        next_aim = server.aim if requested_again else self.fractions[best] * one
        aim_is_good = requested_again or aimed_gain >= max(AIM_SHARE * gain, 0.0) - slack
        is_usable = bool(messages["usable"].all() & is_finite(server.prior))
        if aim_is_good and bool(torch.isfinite(totals[aimed])) and is_usable:
            return replace(state_after_arrival(server, gaussian(messages), totals[aimed]), aim=next_aim)
        shows_fall = bool(server.indefinite) or not float(server.decrement) <= SHORT_STEP or aimed_gain < -SHORT_STEP
        if not (shows_fall or requested_again) and is_usable:
            return self._after_full_step(server, gaussian(messages), totals[aimed])
        if gain > 0 and best != aimed:
            return self._moved_along(server, self.fractions[best], totals[best], next_aim)
        return self._with_shorter_line(server)

    def _after_full_step(self, server: Server, sites: Gaussian, value: Tensor) -> Server:
        """The state after the Newton step itself; it becomes the aim if it was not."""
        one = torch.ones_like(server.aim)
        is_aim = self.fractions.index(float(server.aim)) == self.fractions.index(1.0)
        return state_after_arrival(server, sites, value) if is_aim else replace(server, aim=one)

    def _moved_along(self, server: Server, fraction: float, value: Tensor, aim: Tensor) -> Server:
        """The state at a fraction of the line, where score and curvature are not known, so that the line is a point."""
        point = server.point + fraction * server.direction
        return replace(server, point=point, direction=torch.zeros_like(point), value=value, aim=aim)

    def _with_shorter_line(self, server: Server) -> Server:
        """The state with the smallest fraction of the line as the next line."""
        smallest, one = min(self.fractions), torch.ones_like(server.aim)
        return replace(server, direction=server.direction * smallest, length=server.length * smallest, aim=one)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Length of the next Newton step in SDs, whether H is indefinite, its fall, and whether the search returned."""
        return {
            "change": float(after["decrement"]),
            "indefinite": float(after["indefinite"]),
            "fall": float(after["fall"]),
            "back": float(after["back"]),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the next Newton step is negligible."""
        return figures[-1]["change"] < self.tolerance

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of the Laplace approximation, (1, num_draws, D), with `|H|` if H is indefinite (see `warnings`)."""
        return shared["point"] + self._centred(shared).even_sample(num_draws, generator)[None]

    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """The log density of the Laplace approximation at the last point."""
        return self._centred(shared).log_factor(draws - shared["point"])

    def _centred(self, shared: State) -> Gaussian:
        q = absolute(gaussian(shared))[0]
        return type(q)(q.precision, torch.zeros_like(q.eta))

    def contributions(self) -> Contributions:
        """The expansions of the clients' log-likelihoods."""
        return LaplaceContributions(self)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about a point that is not a maximum, or a mode at infinity."""
        return [*self._no_maximum(record, problem), *few_rows_findings(problem, self.few_rows)]

    def _no_maximum(self, record: Record, problem: Problem) -> list[Finding]:
        if record.latest.get("fall", 0.0) > MAX_CURVATURE_FALL:
            return [sentences.improper_posterior()]
        if record.latest.get("back"):
            return [sentences.no_mode_found()]
        traits = problem.traits
        if bool(traits.prior_kinks.any()) or (record.latest.get("indefinite") and traits.non_smooth_scores):
            return [sentences.no_second_derivative()]
        if not record.latest.get("indefinite"):
            return []
        return [sentences.point_is_no_maximum()]


@dataclass(frozen=True, kw_only=True)
class PooledLaplace(FedLaplace):
    """Newton's method on the pooled data."""

    pooled: ClassVar[bool] = True
