"""What the Langevin samplers share: chains at a server, visits of T steps at a client, kept draws.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Algorithm 1.

    θ_{t+1} = θ_t + h_t/2 (d_s + α g_s)(θ_t) + η_t,    η_t ~ N(0, h_t I)                              (5), (7)
    d_s = ∇ log p(θ) + N_s/(f_s m) ∇ log p(x_s^(m) | θ)                                          (4)
    g_s = ∇ log q(θ) - 1/f_s ∇ log q_s(θ)

Letters: θ `position`, h `step_size`, d_s + α g_s `score` (see `langevin.conducive`), f_s `probabilities`, m
`batch_size`, T `local_steps`, q_s `surrogates`, S clients. Several chains run at once, each at its own client.

Deviations, all settings, all off in the papers' recipes, and those of `langevin.conducive`:

* `precondition`: G = A A' in place of I, the covariance of the Gaussian p(θ) Π_s q_s(θ), so that one step size
  serves posteriors of any scale: in the coordinates A⁻¹θ the posterior is about N(0, I).
* `midpoint`: the score is taken, and the draw kept, half a noise further, at θ + η/2 (Leimkuhler & Matthews,
  2013, in the form of Vilmart, 2015). With exact scores the variance at a Gaussian target is then exact for every
  stable h, where Eq. (1) is too wide by 1/(1 - hλ/4).
* the step size where none is given, in preconditioned coordinates: min(`largest_step`, t / T), for visits of time t,
  at most `visit_time`. During a visit the score has an error of its own, that of one client's surrogate, so that a
  visit must be short against the chain's own relaxation time, which is 2 there; `FSGLD` measures these errors and
  chooses t by them. SGLD has no clients and takes `largest_step`. Where the step is shorter than for t = `visit_time`
  burn-in has as many steps more.
* `minibatches`: pieces of a permutation in place of draws anew in each step. Over an epoch their noise cancels, so that
  a chain whose visits last an epoch or more, 20 steps of ten in 200 rows say, has less of it.
* `control_variate`: its gradient of all rows is taken at the mode once, or at the start of each visit, which is
  SVRG-LD (Dubey et al., 2016, Algorithm 2) at one client with visits as long as an epoch, and needs no mode.
* `sweeps`: where f_s is uniform, clients in random sweeps (`schedule.Shuffled`) instead of drawn anew for each visit:
  what one client's error does the others undo, see `ops.visits`.
* `target_ess`: the run ends when the slowest coordinate has so many effective draws and R-hat is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Chains, LocalRounds
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.record import NONCENTRED, Record
from pyro_fed.algorithm.schedule import Categorical, Schedule, Shuffled
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import refuse_unused
from pyro_fed.conventions.setting_checks import (
    check_at_least,
    check_between,
    check_choice,
    check_positive,
    check_probabilities,
)
from pyro_fed.density.checks.funnels import funnel_hint
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import (
    BATCHES,
    Batch,
    ClientData,
    Minibatch,
    batch_of,
    draw_anew,
    draw_minibatches,
    with_batches,
)
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_store import FEWEST, append, next_look, start_chains, thinned
from pyro_fed.infer.langevin.conducive import anchor_score, linear_pull, score
from pyro_fed.infer.langevin.curvature import check_step, largest_curvature, longest_steps
from pyro_fed.infer.langevin.held_visits import reference
from pyro_fed.infer.surrogates.local_sgld import tempered_clients
from pyro_fed.infer.surrogates.phase import Surrogates, check_surrogates, surrogate_phase
from pyro_fed.infer.surrogates.surrogates import fitted, one_each, shares
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.langevin import drifted, injected, pulled
from pyro_fed.ops.step_sizes import polynomial_step

#: Effective draws below which a run warns: so many a chain, as is usual, up to four chains.
FEWEST_EFFECTIVE_A_CHAIN = 100
#: Why chains that have no R-hat have none where their steps are derived.
TOO_NARROW = (
    "steps are scaled by the Gaussian's SDs, which are narrower there than the dtype can tell, as in "
    "the neck of a funnel, where a Gaussian says nothing of the rest. float64 and more rounds do not help: give "
    "parameters whose scale is itself unknown a form in which it is not (fed.noncentred)"
)
USUAL_CHAINS = 4
#: Numbers that the noise of rounds that are had at once may have: 40 MB in single precision, and several times that
#: while visits are replayed.
NOISE_AHEAD = 10_000_000
#: Shares of the chains' step that are one but for rounding, in any dtype: a client that needs a shorter one has at most
#: `curvature.SHORTENED` of it.
SAME_STEP = 0.999
#: Why settings of a derived step are refused beside a given one.
STEP_GIVEN = "the step is not derived where step_size is given; leave step_size out"


def _hint(record: Record, problem: Problem) -> list[Finding]:
    """The non-centred form for a funnel, unless a plan tries it."""
    hints = [] if NONCENTRED in record.planned else funnel_hint(problem)
    return [sentences.funnel_is_likely(hint=hint) for hint in hints]


def fewest_effective(num_chains: int) -> int:
    """Effective draws of all chains together below which a run warns.

    Args:
        num_chains: how many there are.
    """
    return FEWEST_EFFECTIVE_A_CHAIN * min(num_chains, USUAL_CHAINS)


def r_hat_limit(num_chains: int) -> float:
    """R-hat above which chains disagree: 1.01 of up to four chains, more of more.

    The means of m halves of n draws each, worth e draws in all, have the variance m / e of the draws': R-hat² is about
    1 + m / e. The limit is that of the fewest e that go without a warning, whatever the number of chains: their common
    mean, and by the folded draws their SD, is off by e^(-1/2) then, 0.05 SDs. More chains are shorter, and each is less
    sure of its own mean, not all of them of theirs.

    Args:
        num_chains: how many there are.
    """
    return math.sqrt(1 + 2 * num_chains / fewest_effective(num_chains))


@dataclass(frozen=True, kw_only=True)
class Langevin(Algorithm, Chains):
    """Chains of Langevin steps, each at one client in a round: what SGLD, DSGLD, FSGLD and FALD share.

    Args:
        num_chains: M, chains that run at once.
        local_steps: T, steps a visit.
        burn_in: first steps of each chain that are not kept; more of them where a derived step is short, up to half a
            run by default.
        thin: one step in so many is kept.
        target_ess: the run ends when the slowest coordinate has so many effective draws (all chains together)
            and R-hat is small; None runs all rounds.
        batch_size: m, rows a step; None takes all of a client's rows.
        minibatches: "reshuffled": a visit goes through the client's rows in random order, minibatch by minibatch. Or
            "anew": each minibatch is drawn from all of them, as published, which leaves the full minibatch noise.
        step_size: h_0, the variance of the injected noise; None derives it, for preconditioned chains.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ; 0 keeps the step constant.
        decay_offset: steps after which the step has fallen to 2^-γ.
        surrogates: where the Gaussians q_s come from: an algorithm that leaves Gaussian sites, "laplace", "fedep",
            "local_sgld", "auto", or `Given`; None runs without.
        precondition: use the covariance of p(θ) Π q_s(θ) as preconditioner.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π q_s(θ); "visit": where the chain
            is when a visit begins.
        midpoint: evaluate and keep the chain at θ + η/2.
        largest_step: largest h where none is given; stability ends at 4.
    """

    draws_are: ClassVar[str] = "chains"

    temperature: float = 1.0
    num_chains: int = 4
    local_steps: int = 40
    burn_in: int = 400
    thin: int = 10
    target_ess: int | None = 2000
    batch_size: int | None = 100
    minibatches: Literal["reshuffled", "anew"] = "reshuffled"
    step_size: float | None = None
    decay: float = 0.0
    decay_offset: float = 1.0
    surrogates: Surrogates = "auto"
    precondition: bool = True
    control_variate: bool | Literal["visit"] = True
    midpoint: bool = True
    largest_step: float = 0.5

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_chains", "local_steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", "batch_size", allow_none=True)
        check_positive(self, "step_size", allow_none=True)
        check_positive(self, "decay_offset", "temperature")
        check_between(self, "largest_step", 0, 1)
        check_between(self, "decay", 0, 1, "[]")
        check_surrogates(self, allow_none=True)
        check_choice(self, "minibatches", ("reshuffled", "anew"))
        if self.batch_size is None:
            refuse_unused(self, "batch_size=None takes all rows", "minibatches")
        name = type(self).__name__
        if self.step_size is None and not (self.precondition and self.surrogates):
            raise SettingError(f"{name}: without preconditioner the step has no scale: give step_size")
        if not isinstance(self.control_variate, bool):
            check_choice(self, "control_variate", ("visit",))
        at_mode = self.control_variate is True
        if self.surrogates is None and (self.precondition or at_mode or self.conducive_weight):
            raise SettingError(
                f"{name}: precondition, control_variate at the mode and conducive gradients (alpha) need surrogates, "
                "received None"
            )
        if self.decay == 0:
            refuse_unused(self, "the step is constant; give decay, such as 0.55", "decay_offset")
        if self.step_size is not None:
            refuse_unused(self, STEP_GIVEN, "largest_step")

    def row_temperature(self) -> float:
        """α."""
        return self.temperature

    # -- what kinds of it decide ----------------------------------------------------------------------------
    @property
    def conducive_weight(self) -> float:
        """α of Eq. (7); zero without conducive gradients."""
        return 0.0

    @property
    def bound(self) -> float | None:
        """Posterior SDs beyond √D from the mode at which the conducive gradient stops growing; None: nowhere."""
        return None

    def incomparable(self) -> str:
        """Why a visit cannot be compared with one to the surrogates, and the cure; "" where it can."""
        if self.surrogates is None or not self.precondition:
            return "visits are compared with those to surrogates: give surrogates, and leave precondition=True"
        if self.batch_size is not None and not self.control_variate:
            return "the noise of minibatches cannot be told from a lie: batch_size=None, or control_variate=True"
        return ""

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64: how often a chain is at each client."""
        return shares(None, num_clients)

    def derived_step(self, num_clients: int, start: Start | None) -> tuple[float, float]:
        """h where none is given, in preconditioned coordinates, and the step of full length that burn-in counts."""
        return self.largest_step, self.largest_step

    def default_schedule(self) -> Schedule:
        """One client a chain, in random sweeps."""
        return Shuffled()

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that fits the surrogates, if one has to."""
        return surrogate_phase(self.surrogates, self.temperature)

    def default_rounds(self, num_clients: int) -> int:
        """At most 10,000 visits a chain; it ends by itself, see `target_ess`."""
        return 10_000

    # -- start ----------------------------------------------------------------------------------------------
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Chains at draws of p(θ) Π q_s(θ), or of the prior where there are no surrogates."""
        share = self.client_shares(num_clients).to(problem.dtype)
        known: State = {}
        local = {"inverse_f": 1 / share, "ready": torch.zeros(num_clients, dtype=torch.bool)}
        if self.step_size is None:
            local["longest_step"] = torch.full_like(share, torch.inf)
        if self.surrogates is None:
            position = problem.init(self.num_chains, generator)
            factor = torch.ones(problem.dim, dtype=problem.dtype)
            anchor = torch.zeros(problem.dim, dtype=problem.dtype)
        else:
            sites, target = fitted(problem, self.surrogates, start)
            position = target.sample(self.num_chains, generator).to(problem.dtype)
            anchor = target.mean().to(problem.dtype)
            factor = (target.root() if self.precondition else torch.ones_like(target.eta)).to(problem.dtype)
            local |= self._pull(sites, target, share, anchor)
        local |= {
            name: value.expand(num_clients, *value.shape)
            for name, value in {"anchor": anchor, "factor": factor}.items()
        }
        if self.control_variate and self.batch_size is not None:
            local["anchor_score"] = position.new_zeros(num_clients, problem.dim)
        if self.surrogates is not None and self.contributions().bounding_obstacle() == "":
            known = reference(target, None if start is None else start.shared.get("mismatch"), problem.dtype)
        step, burn_in = self._step_and_burn_in(num_clients, start)
        chains = start_chains(position) | known | {"burn_in": torch.tensor(burn_in)}
        if self.step_size is None:
            chains["visited"] = torch.zeros(num_clients, dtype=torch.bool)
        return chains | {"step_size": position.new_tensor(step), "share": share}, local

    def _step_and_burn_in(self, num_clients: int, start: Start | None) -> tuple[float, int]:
        """h, and the steps that are not kept."""
        if self.step_size is not None:
            return self.step_size, self.burn_in
        step, full = self.derived_step(num_clients, start)
        return step, self._longer(self.burn_in, full / step, num_clients)

    def _longer(self, burn_in: int, times: float, num_clients: int) -> int:
        """A burn-in so many times as long, but no more than half a run by default, which then has draws to judge."""
        half = self.default_rounds(num_clients) * self.local_steps // 2
        return max(burn_in, min(math.ceil(burn_in * times), half))

    def _pull(self, sites: Gaussian, target: Gaussian, share: Tensor, anchor: Tensor) -> State:
        """What the clients keep of the conducive gradient."""
        if not self.conducive_weight:
            return {}
        pull = linear_pull(one_each(sites, len(share)), share, anchor, self.conducive_weight)
        if self.bound is None:
            return pull
        metric = target.precision.to(anchor.dtype)
        radius = torch.full_like(share, math.sqrt(len(anchor)) + self.bound)
        return pull | {"metric": metric.expand(len(share), *metric.shape), "trust_radius": radius}

    # -- a visit --------------------------------------------------------------------------------------------
    def download(self, shared: State, clients: Tensor) -> State:
        """Slot i gets the end of chain i; kept draws stay at the server."""
        if len(clients) != self.num_chains:
            raise SettingError(
                f"{type(self).__name__}: each of the {self.num_chains} chains visits one client a round, but the "
                f"schedule named {len(clients)} in all: use a schedule of one client, such as schedule.Categorical()"
            )
        every = {name: shared[name].expand(len(clients)) for name in ("steps", "step_size")}
        return {"position": shared["position"], "client": clients, **every}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal noise (T, D) and the minibatches of a visit."""
        normal = torch.randn(self.local_steps, problem.dim, generator=generator, dtype=problem.dtype)
        if self.batch_size is None:
            return {"normal": normal}
        if num_rows <= self.batch_size:
            return {"normal": normal, **_no_picks(self.batch_size, problem.dtype)}
        drawn = draw_anew if self.minibatches == "anew" else draw_minibatches
        picks = drawn(num_rows, self.batch_size, self.local_steps, generator, problem.dtype)
        return {"normal": normal, "position": picks.position, "weight": picks.weight}

    def draw_noises(self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]) -> Noise | None:
        """What `draw_noise` draws for many visits, in one tensor, where clients take all of their rows."""
        size = self.batch_size
        if size is not None and int(num_rows.max()) > size:
            return None
        normal = torch.empty(len(num_rows), self.local_steps, problem.dim, dtype=problem.dtype)
        for visit, generator in zip(normal, generators, strict=True):
            visit.normal_(generator=generator)
        none = {} if size is None else _no_picks(size, problem.dtype)
        picks = {name: value.new_empty(0, len(num_rows), value.shape[-1]) for name, value in none.items()}
        return {"normal": normal.transpose(0, 1), **picks}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """T steps of each chain at its client (`Update` of Algorithm 1)."""
        news = self._first_visit(problem, shared, local, data)
        xs: dict[str, Any] = {"normal": noise["normal"]}
        const, rows, dims = self._constants(local | {name: news[name] for name in news if name in local}, data)
        steps = self._visit_steps(shared, local | news)
        if self.decay:
            xs["step_size"] = steps
        else:
            const["step_size"] = steps[0]
        if dims is not BATCHES:
            xs["picks"] = picked(noise["position"], noise["weight"], data.num_rows, self.local_steps)
        if "anchor_score" in const and self.control_variate == "visit":
            const["visited"] = shared["position"]
            each = (dict.fromkeys(const, 0), BATCHES)
            const["anchor_score"] = problem.mapped(anchor_score, each)(const, data.full_batch())
        axes = (dict.fromkeys(const, 0), dims)
        position, (path, norms) = problem.scan(
            self._step, shared["position"], (const, rows), xs, self.local_steps, axes
        )
        sent = path[self.stride - 1 :: self.stride]
        return self._sent(shared, position, sent, norms, steps), news, {"gradient_norm": norms.mean(0)}

    def local_rounds(
        self,
        problem: Problem,
        received: State,
        local: State,
        data: ClientData,
        clients: Tensor,
        at: Tensor,
        noise: Noise,
    ) -> LocalRounds | None:
        """R visits of each chain, where all clients have been visited before: nothing but steps is left of them."""
        if self.control_variate == "visit" or not bool(local["ready"].all()):
            return None
        rounds, length = len(at), self.local_steps

        def in_turn(value: Tensor) -> Tensor:
            """(T, R C, ...) as (R T, C, ...)."""
            by_round: Tensor = value.unflatten(1, at.shape).transpose(0, 1)
            return by_round.flatten(0, 1)

        done = received["steps"] + length * torch.arange(rounds, device=at.device).unsqueeze(1)
        steps = received["step_size"].expand(at.shape)
        told = {"client": clients, "steps": done, "step_size": steps}
        each_step = self._visit_steps(told, {name: local[name][at] for name in local if name == "longest_step"})
        xs: dict[str, Any] = {"normal": in_turn(noise["normal"])}
        const, rows, dims = self._constants(local, data)
        if self.decay:
            xs["step_size"] = in_turn(each_step.flatten(1))
        else:
            const["step_size"] = _as_short(received["step_size"][0].expand(len(local["ready"])), local)
        if "position" in noise and dims is not BATCHES:
            picks = picked(noise["position"], noise["weight"], data.num_rows[at.flatten()], length)
            xs["picks"] = Minibatch(*(in_turn(part) for part in picks))
        axes = (dict.fromkeys(const, 0), dims)
        ends, (path, norms) = problem.scans(
            self._step, received["position"], (const, rows), xs, at, axes, (self.stride, 1)
        )
        began = torch.cat([received["position"].unsqueeze(0), ends[:-1]])
        path, norms = (value.unflatten(0, (rounds, -1)).transpose(0, 1) for value in (path, norms))
        messages = self._sent(told, ends, path, norms, each_step)
        return LocalRounds({"position": began, **told}, messages, {"gradient_norm": norms.mean(0)})

    def _constants(self, local: State, data: ClientData) -> tuple[State, Batch | ClientData, Any]:
        """What does not change over the steps of clients' visits: states, rows, and the rows' client axes."""
        whole = self.batch_size is None or data.row_index.shape[-1] <= self.batch_size
        rows, dims = with_batches(data, None if whole else self.batch_size)
        const = dict(local)
        if whole:  # no minibatch, nothing to correct
            const.pop("anchor_score", None)
        return const, rows, dims

    def _sent(self, shared: State, position: Tensor, path: Tensor, norms: Tensor, steps: Tensor) -> State:
        """What visits send: where C chains are, and every `stride`-th of their T steps.

        Args:
            shared: the server's state.
            position: (C, D), or of several rounds (R, C, D), and so on.
            path: of those steps alone, (T / stride, C, D).
            norms: of the preconditioned scores, (T, C).
            steps: h, (T, C).
        """
        sent = slice(self.stride - 1, None, self.stride)
        return {
            "position": position,
            "client": shared["client"],
            "draws": path.movedim(0, -2),
            "gradient_norm": norms[sent].movedim(0, -1),
            "step_size": steps[sent].movedim(0, -1),
        }

    def _visit_steps(self, shared: State, local: State) -> Tensor:
        """h of each step of the visits, (T, C): a derived one is as short as the client needs it."""
        return self._steps(shared["steps"], _as_short(shared["step_size"], local))

    def _steps(self, done: Tensor, step_size: Tensor) -> Tensor:
        """h of each step of a visit, (T, ...), of chains that have had so many."""
        if not self.decay:
            return step_size.expand(self.local_steps, *step_size.shape)
        steps = done + torch.arange(self.local_steps, device=done.device).reshape(-1, *[1] * done.dim())
        scale = step_size * self.decay_offset**self.decay
        decay = polynomial_step(steps.to(scale.dtype), 1.0, self.decay_offset, self.decay)
        found: Tensor = scale * decay
        return found

    def _first_visit(self, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What a client computes once: its gradient at the anchor, and whether the step is stable."""
        if bool(local["ready"].all()):
            return {}
        batch = data.full_batch()
        curvature = largest_curvature(problem, shared["position"], local, batch)
        news = {"ready": torch.ones_like(local["ready"])}
        if "longest_step" in local:
            news["longest_step"] = longest_steps(shared["step_size"], curvature).to(local["longest_step"].dtype)
        else:
            check_step(type(self).__name__, shared["step_size"], curvature, shared["client"])
        if "anchor_score" in local and self.control_variate is True:
            axes = (dict.fromkeys(local, 0), BATCHES)
            news["anchor_score"] = problem.mapped(anchor_score, axes, calls=0)(local, batch)
        return news

    def _step(self, problem: Problem, position: Tensor, const: Any, x: Any) -> tuple[Tensor, Any]:
        local, rows = const
        h, normal, factor = (x if self.decay else local)["step_size"], x["normal"], local["factor"]
        kick = injected(h, normal, factor)
        where = self._judged_at(position, kick)
        drift = score(problem, where, local, batch_of(rows, x.get("picks")))
        return self._drifted(position, where, kick, drift, h, factor)

    def _judged_at(self, position: Tensor, kick: Tensor) -> Tensor:
        """Where a step takes its score, (D,): at its beginning, or half of its noise further."""
        return position + 0.5 * kick if self.midpoint else position

    def _drifted(
        self, position: Tensor, where: Tensor, kick: Tensor, drift: Tensor, h: Tensor, factor: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The end of a step (D,), what it leaves for the draws (D,), and the norm of its preconditioned score.

        Args:
            position: where it began, (D,).
            where: of the score, (D,).
            kick: its noise, as `injected` has it, (D,).
            drift: the score, exact or estimated, (D,).
            h: the step size, ().
            factor: A of the preconditioner A A', (D,) or (D, D).
        """
        pull = pulled(drift, factor)
        after = drifted(position, pull, h, kick, factor)
        return after, (where if self.midpoint else after, pull.norm())

    # -- the chains at the server ---------------------------------------------------------------------------
    @property
    def num_slots(self) -> int:
        """How many times a round the schedule is asked: once a chain."""
        return self.num_chains

    @property
    def stride(self) -> int:
        """Steps between positions that are sent: all that `thin` may ask for."""
        return math.gcd(self.thin, self.local_steps)

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Ends that have grown far beyond where the chain was, or draws on the way there that have."""
        start = {**received, "draws": received["position"].unsqueeze(1)}
        return message_limits.grown(start, messages)

    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """A chain whose visit failed stays where it was; its draws are its position, and say so by a norm of zero."""
        filled = {
            name: value.new_zeros(len(asked), *value.shape[1:]).index_copy(0, slots, value)
            for name, value in messages.items()
        }
        lost = torch.ones(len(asked), dtype=torch.bool).index_fill(0, slots, False)
        start = shared["position"].repeat_interleave(
            len(asked) // len(shared["position"]), 0
        )  # several clients a chain
        filled["client"][lost] = asked[lost]
        filled["position"][lost] = start[lost]
        filled["draws"][lost] = start[lost].unsqueeze(1)
        filled["step_size"][lost] = shared["step_size"]
        return filled

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Store the received chains (`Reassign_chain` of Algorithm 1)."""
        return self.combine_rounds(shared, {name: value.unsqueeze(0) for name, value in messages.items()})[-1]

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """Store the chains of R rounds, (R, C, ...)."""
        return self._stored(shared, messages, self._adapted(shared, messages["client"], messages["step_size"]))

    def _stored(self, shared: State, messages: State, adapted: State) -> list[State]:
        """`combine_rounds`, where `adapted` is what the clients' steps have changed."""
        rounds, _, sent = messages["draws"].shape[:3]
        taken = shared["steps"] + self.stride * torch.arange(1, rounds * sent + 1)
        keep = (taken > shared["burn_in"]) & (taken % self.thin == 0)
        columns = {
            name: messages[name].transpose(0, 1).flatten(1, 2)[:, keep]
            for name in ("draws", "gradient_norm", "step_size")
        }
        columns["client"] = messages["client"].T.repeat_interleave(sent, 1)[:, keep]
        last = append(shared, columns, self.target_ess)
        kept = shared["kept"] + keep.reshape(rounds, sent).sum(1).cumsum(0)
        steps = shared["steps"] + self.local_steps * torch.arange(1, rounds + 1)
        last = last | adapted  # a new dictionary: without draws to store, `append` gives `shared` itself
        before = last | {name: shared[name] for name in ("r_hat", "ess", "judged")}
        each = zip(messages["position"], steps, kept, strict=True)
        states = [before | {"position": at, "steps": done, "kept": had} for at, done, had in each]
        return [*states[:-1], states[-1] | {name: last[name] for name in ("r_hat", "ess", "judged")}]

    def _adapted(self, shared: State, clients: Tensor, used: Tensor) -> State:
        """A derived h as short as any client needed its steps, a burn-in longer by as much, and who has been visited.

        All clients have the same steps from the next round on: chains whose steps depend on the client that they are at
        have another stationary law.

        Args:
            shared: the server's state.
            clients: their numbers, of any shape.
            used: h of the steps that clients made, (R, C, steps).
        """
        if self.step_size is not None:
            return {}
        visited = shared["visited"] | torch.isin(torch.arange(len(shared["share"])), clients)
        done = shared["steps"] + self.local_steps * torch.arange(len(used))
        wanted = self._steps(done, shared["step_size"].expand(len(used)))[self.stride - 1 :: self.stride]
        share = float((used / wanted.T.unsqueeze(1)).amin())
        if not 0 < share < SAME_STEP:
            return {"visited": visited}
        burn_in = self._longer(int(shared["burn_in"]), 1 / share, len(shared["share"]))
        return {"visited": visited, "step_size": share * shared["step_size"], "burn_in": torch.tensor(burn_in)}

    def rounds_ahead(self, shared: State) -> int:
        """Rounds until the chains are judged, or as many as their noise has room for.

        One as long as there are clients that are still to say how long a derived step may be.
        """
        if self.step_size is None and not bool(shared["visited"].all()):
            return 1
        wanted = next_look(shared, self.target_ess) - int(shared["kept"])
        steps = int(shared["steps"])
        first = max(steps, int(shared["burn_in"])) // self.thin
        ahead = -(-((first + wanted) * self.thin - steps) // self.local_steps)
        numbers = self.local_steps * self.visits_a_round(shared) * shared["position"].shape[-1]
        return max(1, min(ahead, NOISE_AHEAD // numbers))

    def visits_a_round(self, shared: State) -> int:
        """How many visits a round has: one a chain."""
        return self.num_chains

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """The chains go on from where they are."""
        steps = received["steps"] + self.local_steps
        return {**received, "position": messages["position"], "client": clients, "steps": steps}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat, the largest of all coordinates, and ESS, the smallest."""
        return {name: float(after[name]) for name in ("r_hat", "ess", "kept")}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the chains agree and have as many effective draws as wanted."""
        last = figures[-1]
        agree = self.num_chains == 1 or last["r_hat"] <= r_hat_limit(self.num_chains)
        return self.target_ess is not None and last["ess"] >= self.target_ess and agree

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """At most `num_draws` kept draws a chain, evenly spaced: (M, n, D)."""
        return thinned(shared, "draws", num_draws)

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Client visited, gradient norm (in preconditioned coordinates) and step size of each draw."""
        columns = ("client", "gradient_norm", "step_size")
        return {name: thinned(shared, name, draws.shape[1]) for name in columns}

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of a chain that left the finite numbers: a smaller step, or less noise from minibatches."""
        step = float(before["step_size"])
        reduce = "reduce step_size below its present" if self.step_size else "give a step_size below the derived"
        return f"{reduce} {step:.3g}, or raise batch_size"

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Chains that disagree, too few effective draws, and clients whose surrogates are poor."""
        last = record.latest
        if last.get("kept", 0) == 0:
            end = f"the run ended within burn_in={self.burn_in} steps of full length"
            return [sentences.no_draw_kept(end=end), *tempered_clients(record)]
        notes = list[Finding]()
        if last["kept"] >= FEWEST and math.isnan(last["ess"]):
            why = (
                TOO_NARROW if self.step_size is None else f"step_size={self.step_size:.3g} is too small for its numbers"
            )
            return [sentences.chains_stood_still(why=why), *_hint(record, problem), *tempered_clients(record)]
        if math.isnan(last["ess"]):
            few = sentences.too_few_draws_of_a_chain(draws=round(last["kept"]))
            return [few, *_hint(record, problem), *tempered_clients(record)]
        limit = r_hat_limit(self.num_chains)
        if self.num_chains > 1 and not last["r_hat"] <= limit:
            notes.append(sentences.chains_disagree(chains=self.num_chains, r_hat=last["r_hat"], limit=f"{limit:.3g}"))
            notes += _hint(record, problem)
        fewest = fewest_effective(self.num_chains)
        if not last["ess"] >= fewest:
            notes.append(
                sentences.too_few_effective_draws(
                    effective=last["ess"], needed=fewest, chain_is_short=False, cures=["run more rounds"]
                )
            )
        return notes + tempered_clients(record)


@dataclass(frozen=True, kw_only=True)
class VisitingLangevin(Langevin):
    """Chains whose visits to clients must be short, as each client's score has an error of its own.

    Args:
        probabilities: f_s, positive with sum one; uniform by default.
        visit_time: largest h T where no step size is given, in preconditioned time.

    The others are those of `Langevin`.
    """

    probabilities: tuple[float, ...] | None = None
    visit_time: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "visit_time")
        if self.step_size is not None:
            refuse_unused(self, STEP_GIVEN, "visit_time")
        if self.probabilities is not None:
            check_probabilities(self, "probabilities")

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64, as set."""
        return shares(self.probabilities, num_clients)

    def derived_step(self, num_clients: int, start: Start | None) -> tuple[float, float]:
        """h of visits of time h T, at most `largest_step`; of full length where h T is `visit_time`."""
        visits = (self.visit_length(num_clients, start), self.visit_time)
        step, full = (min(self.largest_step, visit / self.local_steps) for visit in visits)
        return step, full

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """h T where no step size is given."""
        return self.visit_time


def _as_short(step_size: Tensor, local: State) -> Tensor:
    """h of visits, (C,): a derived one is as short as the client needs it."""
    return torch.minimum(step_size, local["longest_step"]) if "longest_step" in local else step_size


@lru_cache(maxsize=8)
def _no_picks(batch_size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a client draws of minibatches that takes all its rows: `picked` makes them where others have some."""
    return {
        "position": torch.zeros(0, batch_size, dtype=torch.int64),
        "weight": torch.zeros(0, batch_size, dtype=dtype),
    }


def picked(position: Tensor, weight: Tensor, num_rows: Tensor, steps: int) -> Minibatch:
    """Minibatches (T, C, m), with all rows of the clients that have at most m: those drew none.

    Args:
        position: of the rows drawn, (T, C, m), or (0, C, m) where no client has drawn any.
        weight: of each, likewise.
        num_rows: of each client, (C,).
        steps: T.
    """
    slot = torch.arange(position.shape[-1], device=num_rows.device)
    rows = num_rows.unsqueeze(-1)
    if not len(position):  # nobody drew any
        position, weight = (part.new_zeros(steps, *part.shape[1:]) for part in (position, weight))
    whole, has = rows <= len(slot), slot < rows
    position = torch.where(whole, slot % rows.clamp_min(1), position)
    return Minibatch(position, torch.where(whole, has.to(weight.dtype), weight))


def one_client(sweeps: bool, probabilities: tuple[float, ...] | None) -> Schedule:
    """One client a chain: in random sweeps where f_s is uniform, or drawn anew for each visit."""
    return Shuffled() if sweeps and probabilities is None else Categorical(probabilities)
