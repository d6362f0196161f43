"""The settings of FedEP and its kin, flat, so that a recipe can say each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.errors import SettingError
from pyro_fed.infer.averaging.server_optim import KINDS
from pyro_fed.infer.ep.tilted import CLIENTS
from pyro_fed.infer.guides.automatic import covariance_of, is_hand_written
from pyro_fed.infer.sites.gaussian_sites import GaussianAlgorithm
from pyro_fed.ops.gaussian import Gaussian

#: Rounds that the acceleration remembers and its longest step, by structure.
ACCELERATION = {"full": (4, 5.0), "diag": (20, 1e4)}

Optimiser = Literal["none", "sgd", "adagrad", "adam"]


@dataclass(frozen=True, kw_only=True)
class EPSettings(GaussianAlgorithm):
    """Settings of expectation propagation; `GaussianAlgorithm` has those of the Gaussian family.

    Args:
        guide: an automatic Gaussian guide of Pyro, class or instance, in place of `covariance` (see `infer.families`);
            `FedEP` and `PVI` also take a function whose global sites are exponential families (see `infer.guided`).
        client: tilted inference: "newton", "identity" (I), "mcmc" (M), "laplace" (L), "ngvi" (V) or "svi"; see the
            modules of `infer.clients`, which say what the settings below mean to them.
        start: "laplace" (federated, with all clients), "prior", or "auto": the prior where it is proper and
            there are more than `full_dim` parameters.
        warm_tolerance: the federated Laplace approximation stops when its next step is shorter than this, in SDs;
            under an improper prior, at `FedLaplace`'s own tolerance.
        damping: δ; with an optimiser, its learning rate. None takes 1 for "newton", and else one over the clients of
            the round: q is then the geometric mean of their tilted distributions, which no noise of theirs compounds.
        min_fraction: a change of q is skipped where less than this share of it can be taken.
        margin: smallest eigenvalue that one round may leave of q's precision, relative to what it was.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        memory: "newton": rounds that its acceleration remembers (see `ops.anderson`), at least 2; None takes 4 for a
            full covariance and 20 for a diagonal one.
        longest_step: of the acceleration, in lengths of the undamped step; None takes 5 and 10,000.
        growth: the acceleration starts again where a step is this many times longer than one it remembers; diagonal
            steps of a part of the clients are halved there (see `ep_server`).
        reach: no such step goes beyond this many times √D SDs of q.
        server_optimiser: "none", "sgd", "adagrad" or "adam" on Σ Δ_k.
        client_optimiser: the same on each client's Δ_k.
        optimiser_momentum: of "sgd".
        optimiser_fudge: eps of "adagrad" and "adam".
        optimiser_betas: of "adam".
        local_steps: "newton": steps a round.
        chain_steps: "identity", "mcmc", "ngvi": steps of the chain a round.
        burn_in: the same: steps before the first sample.
        steps_per_sample: the same: steps between samples.
        step_size: the same: of the chain.
        momentum: the same: of the sampler "sgd".
        sampler: the same: "langevin" or "sgd".
        preconditioned: the same: whether the chain moves in units of the tilted curvature.
        batch_size: chains and "svi": rows a step; None takes all.
        shrinkage: "mcmc": ρ.
        least_factor: "mcmc": smallest correction of a sample precision's bias.
        scale: "identity": α_cov, the variance that one row leaves; None takes the samples' mean variance.
        curvature_steps: "laplace": Newton steps; "ngvi": T_NGVI.
        fractions: "laplace": what the line search tries.
        fisher_samples: "ngvi": N_NGVI, even.
        fisher_decay: "ngvi": β_NGVI.
        svi_steps: "svi": steps a round.
        svi_step_size: "svi": Adam's rate, in SDs of the tilted density.
        svi_samples: "svi": draws a step.
        adam: "svi": β_1, β_2 and ε.
    """

    guide: Any = None
    client: Literal["newton", "identity", "mcmc", "laplace", "ngvi", "svi"] = "newton"
    start: Literal["auto", "laplace", "prior"] = "auto"
    warm_tolerance: float = 0.5
    damping: float | None = None
    min_fraction: float = 1e-6
    margin: float = 0.05
    min_curvature: float = 1e-6
    memory: int | None = None
    longest_step: float | None = None
    growth: float = 2.0
    reach: float = 1.0
    server_optimiser: Optimiser = "none"
    client_optimiser: Optimiser = "none"
    optimiser_momentum: float = 0.9
    optimiser_fudge: float = 1e-5
    optimiser_betas: tuple[float, float] = (0.9, 0.999)
    local_steps: int = 1
    chain_steps: int = 1000
    burn_in: int = 100
    steps_per_sample: int = 1
    step_size: float = 1.0
    momentum: float = 0.9
    sampler: Literal["langevin", "sgd"] = "langevin"
    preconditioned: bool = True
    batch_size: int | None = None
    shrinkage: float = 1.0
    least_factor: float = 0.1
    scale: float | None = None
    curvature_steps: int = 10
    fractions: tuple[float, ...] = (1.0, 2.0, 0.5, 0.25, 0.1, 0.03, 0.01)
    fisher_samples: int = 16
    fisher_decay: float = 0.9
    svi_steps: int = 300
    svi_step_size: float = 0.03
    svi_samples: int = 8
    adam: tuple[float, float, float] = (0.9, 0.999, 1e-8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guide is not None and not is_hand_written(self.guide):
            object.__setattr__(self, "covariance", covariance_of(self, self.guide))
        self._check_choices()
        self._check_numbers()
        self._check_together()

    def _check_choices(self) -> None:
        check_choice(self, "client", tuple(CLIENTS))
        check_choice(self, "start", ("auto", "laplace", "prior"))
        check_choice(self, "sampler", ("langevin", "sgd"))
        check_choice(self, "server_optimiser", KINDS)
        check_choice(self, "client_optimiser", KINDS)

    def _check_numbers(self) -> None:
        check_between(self, "momentum", 0, 1, "[)")
        check_between(self, "margin", 0, 1, "[)")
        check_between(self, "fisher_decay", 0, 1, "[]")
        check_at_least(self, 2, "memory", allow_none=True)
        check_positive(self, "damping", "scale", "longest_step", allow_none=True)
        check_positive(
            self,
            "growth",
            "reach",
            "warm_tolerance",
            "least_factor",
            "min_fraction",
            "step_size",
            "shrinkage",
            "svi_step_size",
            "min_curvature",
        )
        check_at_least(
            self, 1, "local_steps", "chain_steps", "steps_per_sample", "curvature_steps", "svi_steps", "svi_samples"
        )
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "batch_size", allow_none=True)
        if self.fisher_samples < 2 or self.fisher_samples % 2:
            raise SettingError(f"{type(self).__name__}: fisher_samples must be even, received {self.fisher_samples}")

    def _check_together(self) -> None:
        if self.burn_in >= self.chain_steps:
            raise SettingError(
                f"{type(self).__name__}: burn_in must be smaller than chain_steps={self.chain_steps}, received "
                f"{self.burn_in}"
            )
        if self.server_optimiser == "none" and self.damping is not None:
            check_between(self, "damping", 0, 1)
        if self.damping is None and {self.server_optimiser, self.client_optimiser} != {"none"}:
            raise SettingError(f"{type(self).__name__}: an optimiser needs its learning rate, damping")

    def fraction_for(self, clients: int) -> float:
        """δ in a round of some clients."""
        if self.damping is not None:
            return self.damping
        return 1.0 if self.client == "newton" else 1.0 / clients

    def accelerated(self, q: Gaussian) -> tuple[int, float]:
        """Rounds that the acceleration remembers, and its longest step."""
        memory, longest = ACCELERATION["full" if q.dense else "diag"]
        return self.memory or memory, self.longest_step or longest
