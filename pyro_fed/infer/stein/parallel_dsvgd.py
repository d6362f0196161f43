"""Accurate parallel DSVGD: scheduled clients renew their sites, and the server moves the particles.

Kassab & Simeone's Algorithm 5 with the sites of `corrected_sites`, Gaussian surrogates corrected at each particle, in
place of kernel density estimates: a scheduled client sends its residual at the server's particles,

    r_{k,n} = ∇ log p_k(z_n) - (η_k - Λ_k z_n)

and the server makes L_s steps of SVGD towards log p_0 + Σ_k log t_{k,n}, with p_0 exact. Particles at rest
have exact scores, so the fixed point is that of SVGD on the pooled data. With one server step a round and all
clients this is distributed SVGD itself; the surrogates are what makes more steps a round worth while. A round
with all clients costs as many bytes as a pass of `DSVGD`, and takes one exchange in place of K.

Letters: as in `dsvgd`; L_s `local_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import ServerWork
from pyro_fed.algorithm.contract import Noise, Start, State, started
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, ClientData
from pyro_fed.density.scores import prior_scores
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.whitening import Coordinates, site_scores
from pyro_fed.infer.stein.corrected_sites import own_site
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.ops.stein import ksd_and_noise
from pyro_fed.ops.step_sizes import AdaGradState

#: Why a start without surrogates is refused.
NO_SURROGATES = (
    "the server moves the particles by the clients' Gaussian surrogates, and particles that start apart have none, as "
    "with neural networks; take DSVGD, or PaperParallelDSVGD"
)


@dataclass(frozen=True, kw_only=True)
class ParallelDSVGD(DSVGD, ServerWork):
    """Accurate parallel DSVGD: clients send scores at the particles, the server moves these.

    Args: as for `DSVGD`; more `local_steps`, as a round is a pass; `batch_size` must be None.

    Raises:
        SettingError: a `batch_size`, or a start without surrogates.

    References:
        Kassab & Simeone, Algorithm 5.
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

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """As `DSVGD` with surrogates.

        Raises:
            SettingError: the Gaussian phase ended at no maximum, so that there are none.
        """
        if bool(started(start, self).shared["apart"]):
            raise SettingError(
                f"ParallelDSVGD: the Gaussian phase ended at a saddle of the log posterior: {NO_SURROGATES}"
            )
        return super().init(problem, num_clients, generator, start)

    def default_rounds(self, num_clients: int) -> int:
        """`max_passes`; it stops by itself."""
        return self.max_passes

    def default_schedule(self) -> Schedule:
        """All clients."""
        return All()

    def download(self, shared: State, clients: Tensor) -> State:
        """What `DSVGD` sends, less the server's own optimiser."""
        received = super().download(shared, clients)
        return {name: value for name, value in received.items() if name not in ("history", "steps")}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """The change of the client's residual."""
        const, full = {**self.others(problem, shared, local, data), **own_site(local)}, data.full_batch()
        figures = problem.mapped(self.discrepancy, (0, 0, BATCHES))(shared["white"], const, full)
        residual = problem.mapped(self.residual, (0, 0, BATCHES))(shared["white"], const, full)
        return (
            {"change": residual - local["residual"]},
            {**local, "residual": residual},
            {"client_ksd": figures["ksd"]},
        )

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take in the changes."""
        passed = shared["pass"] + len(weights) * shared["pass_length"]
        return {**shared, "residuals": shared["residuals"] + messages["change"].sum(0), "pass": passed}

    def refine(self, problem: Problem, shared: State) -> State:
        """L_s steps of SVGD at the server."""
        names = ("mean", "factor", "residuals", "precision", "eta")
        const = {name: shared[name][None] for name in names}
        discrepancy = problem.mapped(self._server_figures, (0, 0))(shared["white"][None], const)
        carry = (shared["white"][None], AdaGradState(shared["history"][None], shared["steps"][None]))
        (white, optimiser), _ = problem.scan(self._server_step, carry, const, (), self.local_steps)
        return {
            **shared,
            "white": white[0],
            "history": optimiser.history[0],
            "steps": optimiser.steps[0],
            "ksd": discrepancy["ksd"][0].double(),
            "noise": discrepancy["noise"][0].double(),
        }

    def _server_scores(self, problem: Problem, white: Tensor, const: State) -> Tensor:
        coordinates = Coordinates(const["mean"], const["factor"])
        prior = coordinates.pull(prior_scores(problem, coordinates.model(white)))
        return prior + site_scores(const["precision"], const["eta"], white) + const["residuals"]

    def _server_figures(self, problem: Problem, white: Tensor, const: State) -> State:
        found, noise = ksd_and_noise(white, self._server_scores(problem, white, const), self.kernel)
        return {"ksd": found, "noise": noise}

    def _server_step(self, problem: Problem, carry: Any, const: State, _: Any) -> tuple[Any, tuple[()]]:
        white, optimiser = carry
        return self.move(white, self._server_scores(problem, white, const), optimiser), ()
