"""Accurate parallel DSVGD: scheduled clients update their sites, and the server moves the particles.

Kassab & Simeone's Algorithm 5 with the sites of `dsvgd`, Gaussian surrogates corrected at each particle, in
place of kernel density estimates: a scheduled client sends its residual at the server's particles,

    r_{k,n} = ∇ log p_k(z_n) - (η_k - Λ_k z_n)

and the server makes L_s steps of SVGD towards log p_0 + Σ_k log t_{k,n}, with p_0 exact. Once the particles have
converged their scores are exact, so the fixed point is that of SVGD on the pooled data. With one server step a round
and all clients this is distributed SVGD itself; with the surrogates more steps in each round are useful. A round with
all clients costs as many bytes as a pass of `DSVGD`, and takes one exchange in place of K.

Letters: as in `dsvgd`; L_s `local_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.stein.contributions import ResidualContributions
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.states import Arrival, Server, with_step_factor

#: Why a start without surrogates is refused.
NO_SURROGATES = (
    "the server moves the particles by the clients' Gaussian surrogates, and particles that start apart have none, as "
    "with neural networks; take DSVGD, or PaperParallelDSVGD"
)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class ParallelDSVGD(DSVGD):
    """Accurate parallel DSVGD: clients send scores at the particles, and the server moves the particles.

    Args:
        local_steps: L, SVGD steps of the server a round; more than for `DSVGD`, as a round is a pass.
        batch_size: None: a client sends one full score a round.
        start: start of the particles, as of `DSVGD`, except "apart"; "checked" is refused in the run if its centre is
            no maximum.
        entropy: not supported, since the server moves particles towards all clients at once; use `DSVGD`.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others; a `batch_size`, or a
            start without surrogates.

    References:
        Kassab & Simeone, Appendix A.5, Algorithm 5, with the sites of `DSVGD`.

    Example:
        >>> idata = pf.run(pf.infer.ParallelDSVGD(num_particles=100), fed)
    """

    local_steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise SettingError(
                f"ParallelDSVGD: batch_size must be None, received {self.batch_size}: a client sends "
                "one full score a round"
            )
        if self.start == "apart":
            raise SettingError(f"ParallelDSVGD: start must not be 'apart': {NO_SURROGATES}")

        refuse_unused(self, "the server's particles move towards all clients' sites at once; use DSVGD", "entropy")

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start as `DSVGD` with surrogates."""
        if bool(required_start(start, self).shared["apart"]):
            raise SettingError(
                f"ParallelDSVGD: the Gaussian phase ended at a saddle of the log posterior: {NO_SURROGATES}"
            )
        return super().init(problem, num_clients, generator, start)

    def default_rounds(self, num_clients: int) -> int:
        """`end.max_passes` rounds; the run ends when it has converged."""
        return self.end.max_passes

    def default_schedule(self) -> Schedule:
        """All clients in every round."""
        return All()

    def download(self, shared: State, clients: Tensor) -> State:
        """What `DSVGD` sends, without the server's own optimiser."""
        received = super().download(shared, clients)
        return {name: value for name, value in received.items() if name not in ("history", "steps")}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute the change of the client's residual."""
        arrival = Arrival.of(problem, shared, local, data, self.temperature)
        figures, residual = self.figures_at(problem, arrival), arrival.site.residual
        change = {"change": residual - local["residual"]}
        return change, {**local, "residual": residual}, {"client_ksd": figures["ksd"]}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Add the changes to the residuals."""
        server = entries_as(Server, shared)
        passed = server.passed + len(weights) * server.pass_length
        return as_entries(replace(server, residuals=server.residuals + messages["change"].sum(0), passed=passed))

    def contributions(self) -> Contributions:
        return ResidualContributions(self)

    def refine(self, problem: Problem, shared: State) -> State:
        """Make L_s steps of SVGD at the server."""
        moved, figures = self.server_turn(problem, shared)
        return as_entries(with_step_factor(entries_as(Server, shared).adopting(moved | figures)))
