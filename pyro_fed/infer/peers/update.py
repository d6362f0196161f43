"""How an agent of `P2PVI` solves Eq. (3) in a round: by expected Newton steps, by Adam on the ELBO, or by scores alone.

    b_i = argmin_π KL(π ‖ q_i) + E_π[-log f(D_i)] = q_i t_i          a belief update: the site t_i and the belief b_i

An instance has settings of its own, ``update=pf.update.SVI(steps=50)``; a name has the defaults, ``update="svi"``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.nested_settings import Variant, explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.guides.fitting import GuideFit
from pyro_fed.infer.peers import networks
from pyro_fed.infer.peers.acceleration import look_ahead, nothing_known
from pyro_fed.infer.peers.counted_rows import CountedRows
from pyro_fed.infer.peers.peer_sites import new_site, public_belief, seen_whole, without_distribution
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, gaussian, where
from pyro_fed.infer.sites.online_newton import OnlineNewton
from pyro_fed.ops.gaussian import Gaussian

__all__ = ["IVON", "SVI", "Name", "Newton", "Update"]
__dir__ = public_dir(__all__)

#: The kinds by the names that the setting `update` knows them under.
Name = Literal["newton", "svi", "ivon"]


class Updated(NamedTuple):
    """What agents have made of a round.

    Attributes:
        belief: b_i, that they send, (C,).
        local: what changes in their states, (C, ...).
        fraction: the share of the change of their site that they made, (C,).
    """

    belief: Gaussian
    local: State
    fraction: Tensor


class Update(Variant):
    """How an agent's belief takes in its own data: the settings of one of three ways, `Newton`, `SVI` or `IVON`.

    Class attributes:
        deterministic: whether it comes to rest.
        takes_curvature: whether the setting `curvature` says how it is computed.
        from_averaging: whether it begins at the point that averaging over the graph finds.
        default_rounds: of a run that is given no number of them.
    """

    what: ClassVar[str] = "belief update"
    door: ClassVar[str] = "pf.update"

    deterministic: ClassVar[bool] = False
    takes_curvature: ClassVar[bool] = False
    from_averaging: ClassVar[bool] = False

    @property
    def default_rounds(self) -> int:
        """Rounds at most, of a run that is given no number of them."""
        return 100

    def check(self, agents: CountedRows) -> None:
        """Refuse settings of the algorithm that have no effect with this update, or contradict it.

        Args:
            agents: the algorithm.

        Raises:
            SettingError: names the setting and the cure.
        """

    def accelerates(self, agents: CountedRows) -> bool:
        """Whether sites are taken where Anderson acceleration points to."""
        return False

    def unaccelerated(self) -> Self:
        """This update without acceleration."""
        return self

    def remembered(self, agents: CountedRows, beliefs: Gaussian) -> State:
        """What agents remember from round to round besides their sites, (A, ...).

        Args:
            agents: the algorithm.
            beliefs: the first, (A,).
        """
        return {}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The randomness of one agent's round, as of `Algorithm.draw_noise`; none by default."""
        return ()

    @abstractmethod
    def step(
        self, agents: CountedRows, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> Updated:
        """Eq. (3) for C agents, as `Algorithm.local_step`.

        Args:
            agents: the algorithm, whose settings say what a site is.
            problem: the model's densities.
            shared: the agents' beliefs, and `centrality`, (C, ...).
            local: their states.
            data: their rows.
            noise: their randomness.
        """


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Newton(Update):
    """Expected Newton steps at Sobol points of the belief: natural gradients, in closed form where conjugate.

    The algorithm's `num_points`, `curvature` and `damping` say how the steps are computed and how much of one is made.

    Args:
        steps: steps a round.
        memory: rounds that the acceleration of a single, undamped step remembers; 1 is none, which is also what graphs
            get where a round does not bring the agents together.

    References:
        Khan & Nielsen (2018), Fast yet simple natural-gradient descent for variational inference.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.update.Newton(steps=3)), fed, graph=pf.graph.ring(5))
    """

    deterministic: ClassVar[bool] = True
    takes_curvature: ClassVar[bool] = True

    steps: int = 1
    memory: int = 4

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "memory")

    def check(self, agents: CountedRows) -> None:
        """Refuse a memory that remembers nothing."""
        remembers = self.memory not in (1, Newton.memory)
        if remembers and not (self.accelerates(agents) and agents.gossip_steps is None):
            raise SettingError(
                f"P2PVI: memory={self.memory} has no effect: acceleration is of single, undamped steps with "
                "weighting='exact', all rows in every round and complete consensus (steps=1, damping=1, "
                "batch_size=None, gossip_steps=None)"
            )

    def accelerates(self, agents: CountedRows) -> bool:
        """Single, undamped steps whose whole a round sees."""
        return agents.keeps_site and self.steps == 1 and agents.damping == 1 and self.memory > 1

    def unaccelerated(self) -> Self:
        """With nothing remembered."""
        return replace(self, memory=1)

    def remembered(self, agents: CountedRows, beliefs: Gaussian) -> State:
        """Empty histories, and that no product of sites was improper."""
        if not self.accelerates(agents):
            return {}
        strict = torch.zeros_like(beliefs.eta[:, 0], dtype=torch.bool)
        return {**nothing_known(beliefs, self.memory), "strict": strict}

    def step(
        self, agents: CountedRows, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> Updated:
        """t_i, the expected Newton site under b_i, and b_i = q_i (t_i / t_i,old)^(s / v_i), `steps` times from q_i."""
        q, old = gaussian(shared), gaussian(local)
        batch, next_row = agents.rows_of_round(data, local["next_row"])
        held = agents.first_share(shared, local)
        share = held if agents.keeps_site else torch.where(local["prior_share"] == 0, held, 0.0)
        weight = agents.weight(shared)
        accelerates = self.accelerates(agents)
        at, news = look_ahead(q, local) if accelerates else (q, State())
        lost = without_distribution(q, old)
        for _ in range(self.steps):
            site, known = new_site(agents, problem, at, batch, share, local, weight, lost)
            change = site / old if agents.keeps_site else site
            proper = known & q.is_proper()
            if accelerates:
                news["strict"] = local["strict"] | lost
                at, fraction = seen_whole(q, old, site, weight, proper, news["strict"])
            else:
                at, fraction = public_belief(q, change**weight, proper, agents.damping)
        new = old * change**fraction if agents.keeps_site else old
        return Updated(at, {**as_state(new), **news, "prior_share": held, "next_row": next_row}, fraction)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(Update):
    """Bayes by backprop: Adam on the evidence lower bound of a Gaussian guide around the belief, afresh every round.

    Args:
        steps: u, Adam's steps a round.
        step_size: Adam's rate, in `units`.
        units: of the rate: "sds" of the belief, which is free of the parameters' units, or "parameters": their own, as
            published; of diagonal beliefs alone.
        round_decay: the rate's factor from one round to the next, in (0, 1]: 0.99 and 0.998 in Tables I and II.
        num_samples: draws of the guide a step.
        batch_size: B, rows a step, weighted to all of the agent's; None takes all.

    References:
        Wang et al., Section V-B1. Blundell et al. (2015), Weight uncertainty in neural networks.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.update.SVI(steps=47, batch_size=50)), fed, graph=pf.graph.ring(5))
    """

    steps: int = 100
    step_size: float = 0.05
    units: Literal["sds", "parameters"] = "sds"
    round_decay: float = 1.0
    num_samples: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "num_samples")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size")
        check_choice(self, "units", ("sds", "parameters"))
        check_between(self, "round_decay", 0, 1)

    def check(self, agents: CountedRows) -> None:
        """Refuse a start without a proper belief, and settings of Newton steps."""
        if agents.start in ("consensus", "local"):
            raise SettingError(
                "P2PVI: update='svi' fits a guide around a proper belief: it needs start='prior', which is also what "
                f"'auto' takes; received {agents.start!r}"
            )
        refuse_unused(agents, "update='svi' takes pf.update.SVI(batch_size=...)", "batch_size")
        refuse_unused(agents, "it is a setting of Newton steps; use update='newton'", "num_points", "curvature")
        if self.units == "parameters" and agents.covariance != "diag":
            raise SettingError(
                "P2PVI: pf.update.SVI(units='parameters') moves each parameter of a diagonal belief by itself: it "
                f"needs covariance='diag'; received {agents.covariance!r}"
            )

    def remembered(self, agents: CountedRows, beliefs: Gaussian) -> State:
        """The rate's factor, where it falls."""
        if self.round_decay == 1:
            return {}
        return {"pace": torch.ones(len(beliefs.eta), dtype=torch.float64, device=beliefs.eta.device)}

    @property
    def guide_fit(self) -> GuideFit:
        """The fit of a guide with these settings, at Adam's own β and ε."""
        return GuideFit(
            steps=self.steps,
            step_size=self.step_size,
            samples=self.num_samples,
            batch_size=self.batch_size,
            units=self.units,
        )

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The guide's draws, and minibatches."""
        return self.guide_fit.draw_noise(problem, num_rows, generator)

    def step(
        self, agents: CountedRows, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> Updated:
        """A guide fitted to cavity × likelihood: Eq. (3) as published, where the cavity is q_i itself."""
        q, old = gaussian(shared), gaussian(local)
        cavity = q / old if agents.keeps_site else q
        pace = local.get("pace")
        guide = self.guide_fit.fit(problem, q, cavity, data, noise, pace)
        site, usable = guide / cavity, guide.is_proper()
        flat = flat_like(q)
        change = where(usable, site / old if agents.keeps_site else site, flat)
        belief, fraction = public_belief(q, change ** agents.weight(shared), q.is_proper(), agents.damping)
        new = old * change**fraction if agents.keeps_site else old
        news = State() if pace is None else {"pace": pace * self.round_decay}
        return Updated(belief, {**as_state(new), **news}, fraction * usable)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(OnlineNewton, Update):
    """Variational online Newton steps: gradients alone, on minibatches, and diagonal beliefs; for networks.

    Args:
        steps: steps a round.
        pairs: draws a step, each with its opposite: two gradients a pair.
        batch_size: rows a step, weighted to all of the agent's; None takes all.
        rate: of a Newton step; it falls linearly to zero in a round.
        momentum: of the mean's steps, in [0, 1).
        curvature_memory: weight of the curvature so far in a step, in [0, 1).
        longest: no step moves a parameter by more than this many SDs.
        largest_factor: by which a round changes a parameter's precision, up or down.
        most_gain: nats a row that a step may promise; a score that promises more is cut.
        spread: of the draws, in SDs of q̂; far below one scores and curvatures are those at its mean, Laplace's.
        rounds: of a run that is given no number of them; SDs begin narrow and widen over many.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks.

    Example:
        >>> pf.run(pf.P2PVI(update="ivon", covariance="diag"), fed, graph=pf.graph.ring(5))
    """

    from_averaging: ClassVar[bool] = True

    # An agent's belief moves by all that it has changed, a server's by the clients' mean: as far in half the rounds.
    rounds: int = 20

    @property
    def default_rounds(self) -> int:
        """As `rounds`."""
        return self.rounds

    def check(self, agents: CountedRows) -> None:
        """Refuse settings of Newton steps."""
        refuse_unused(agents, "it is a setting of Newton steps; use update='newton'", "batch_size", "curvature")

    def step(
        self, agents: CountedRows, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> Updated:
        """Steps from scores alone: see `peers.networks`."""
        share = agents.first_share(shared, local)
        belief, news, fraction = networks.step(agents, self, agents.damping, problem, shared, local, share, data, noise)
        return Updated(belief, {**news, "prior_share": share}, fraction)
