"""A Pyro model as a log density over a flat, unconstrained vector, split into prior and row likelihoods.

    log p(z, y) = log_prior(z) + Σ_rows log_lik(z, row),      z = unconstrained latents, (D,)

`log_prior` holds the densities of all sites outside the partitioned plate and the log-Jacobians of the
transforms to the constrained space; it is counted once, wherever the rows are. `log_lik` holds the sites
inside the plate. All functions take one vector and are pure tensor functions: map them by
`torch.func.vmap`, differentiate them by `torch.func.grad`.

Latent sites inside the plate ("local") are no part of the vector: each row's are integrated out of its log_lik
(see `quadrature`). `joint.JointProblem` has them in the vector.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.factorisation import check_splits
from pyro_fed.density.checks.sites import describe
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.compiling.mapping import choose_mapping
from pyro_fed.density.latents.discrete import sum_out
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running.trace_sites import frame_of, is_deterministic, plate_of, sum_to_rows
from pyro_fed.density.starts import draw_starts
from pyro_fed.errors import ModelError


@dataclass(eq=False)
class Problem(BoundModel):
    """A bound model as densities of its flat vector, mapped and compiled.

    Built by `Federation`; `inspection.describe` has checked that the likelihood factorises over the rows.

    Attributes:
        compiler: how steps are mapped and compiled; `run` puts its own in place.
        progress: whether a long local step shows a progress bar of its own.
    """

    compiler: Compiler = field(init=False)
    progress: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.compiler = Compiler("off")
        self.layout = describe(self)
        check_splits(self)
        if self.local_dim:
            self.quadrature = self.quadrature.fitted(self)
        choose_mapping(self)
        held = sorted(name for name in self.constants if not self._is_centring(name))
        if held:
            warnings.warn(
                f"pyro.param statements {held} are held constant at their present values: give them priors to infer "
                "them",
                UserWarning,
                stacklevel=3,
            )

    def _is_centring(self, name: str) -> bool:
        """Whether a `pyro.param` is a `LocScaleReparam`'s degree of centring, any of which is the same model."""
        decentred = name.removesuffix("_centered") + "_decentered"
        return name.endswith("_centered") and decentred in {**self.layout.latents, **self.layout.local}

    # -- mapping and compiling -----------------------------------------------------------------------------
    def vmap(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`torch.func.vmap`, or a loop where the model cannot be vectorised."""
        return self.compiler.vmap(function, in_dims)

    def mapped(self, function: Callable[..., Any], in_dims: Any, calls: int = 1) -> Callable[..., Any]:
        """`function(problem, *args)` mapped over clients and compiled, see `Compiler.mapped`."""
        return self.compiler.mapped(function, self, in_dims, calls)

    def flat(self, function: Callable[..., Any], in_dims: Any, args: Any, calls: int) -> Callable[..., list[Tensor]]:
        """The same for arguments like `args`, as a function of their leaves, see `Compiler.flat`."""
        return self.compiler.flat(function, self, in_dims, args, calls)

    def scan(
        self, function: Callable[..., Any], carry: Any, const: Any, xs: Any, length: int, const_dims: Any = 0
    ) -> tuple[Any, Any]:
        """`carry, out = function(problem, carry, const, x)`, `length` times, see `Compiler.scan`."""
        return self.compiler.scan(function, self, carry, const, xs, length, const_dims)

    # -- densities ----------------------------------------------------------------------------------------
    def log_terms(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Log density site by site: outside the plate (), inside it each row's, (m,); the Jacobians under "".

        A row's term of a site in a nested plate is the sum over the rows there that belong to it.

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...), m >= 1.
            local: (m, local_dim) unconstrained latents of the rows.
            options: as for `execute`.
        """
        outside, inside = self._plate_terms(z, rows, local, **options)
        members = self.arguments.members(rows[: len(self.arguments.rows)])
        return outside, {
            name: members[plate].to_groups(terms) if plate in members else terms
            for name, (plate, terms) in inside.items()
        }

    def _plate_terms(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any
    ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
        """The same with the plate of rows, partitioned or nested, that each site inside is in, and its rows' terms."""
        trace, filler, _ = self.execute_at(z, rows, local, densities=True, **options)
        nothing = torch.zeros((), dtype=self.dtype, device=z.device)
        outside = {"": nothing + filler.log_jacobian}
        inside = {}
        for name, site in trace.nodes.items():
            if site["type"] != "sample" or "log_prob" not in site or is_deterministic(site):
                continue
            plate = plate_of(site, filler.plates)
            if plate is None:
                outside[name] = site["log_prob_sum"]
            else:
                inside[name] = plate
        sizes = {frame.name: frame.size for name in inside for frame in trace.nodes[name]["cond_indep_stack"]}
        summed, joint = sum_out(trace, inside, sizes) if self.layout.discrete else (set(), {})
        alone = {
            name: (plate, sum_to_rows(trace.nodes[name], frame_of(trace.nodes[name], plate).dim))
            for name, plate in inside.items()
            if name not in summed
        }
        if self.layout.local:
            alone[""] = self.plate, nothing.expand(len(rows[0])) + filler.row_jacobian
        return outside, alone | joint

    def log_parts(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Log prior with Jacobians, (), and log-likelihood of each row, (m,): z (D,), rows each (m, ...)."""
        if self.local_dim:
            return self.quadrature.log_parts(self, z, rows)
        return self.conditional_parts(z, rows)

    def conditional_parts(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same with the rows' own latents given, whose log prior is part of the rows' terms."""
        outside, inside = self.log_terms(z, rows, local)
        nothing = torch.zeros(len(rows[0]), dtype=self.dtype, device=z.device)
        return sum(outside.values(), nothing.new_zeros(())), sum(inside.values(), nothing)

    def log_prior(self, z: Tensor) -> Tensor:
        """Log prior of the unconstrained vector (with Jacobians): z (..., D) → (...)."""
        if z.dim() > 1:
            return self.vmap(self.log_prior)(z)
        return self.conditional_parts(z, tuple(leaf[:1] for leaf in self.rows))[0]

    def pointwise_log_lik(self, z: Tensor, rows: tuple[Tensor, ...] | None = None) -> Tensor:
        """Log-likelihood of each row: z (..., D) → (..., m). All pooled rows by default."""
        if z.dim() > 1:
            return self.vmap(lambda one: self.pointwise_log_lik(one, rows))(z)
        return self.log_parts(z, self.all_rows if rows is None else rows)[1]

    def site_log_lik(self, z: Tensor) -> dict[str, Tensor]:
        """Terms of each pooled row, of nested plates too, site by site: z (..., D) → (..., N).

        Where latents are integrated out the observed sites have one term together, under their joined names.
        """
        if z.dim() > 1:
            return self.vmap(self.site_log_lik)(z)
        if self.local_dim:
            return {"_".join(self.layout.observed): self.pointwise_log_lik(z)}
        return {name: terms for name, (_, terms) in self._plate_terms(z, self.all_rows)[1].items()}

    def term_plates(self) -> dict[str, str]:
        """The plate of rows, partitioned or nested, that each term of `site_log_lik` runs over."""
        z = torch.zeros(self.dim, dtype=self.dtype, device=self.rows[0].device)
        if self.local_dim:
            return dict.fromkeys(self.site_log_lik(z), self.plate)
        return {name: plate for name, (plate, _) in self._plate_terms(z, self.all_rows)[1].items()}

    def log_lik(self, z: Tensor, batch: Batch | None = None) -> Tensor:
        """Weighted sum of the rows' log-likelihoods: z (..., D) → (...). All pooled rows by default."""
        if z.dim() > 1:
            return self.vmap(lambda one: self.log_lik(one, batch))(z)
        if batch is None:
            return self.pointwise_log_lik(z).sum()
        return (self.pointwise_log_lik(z, batch.rows) * batch.weight).sum()

    def log_joint(self, z: Tensor, batch: Batch, temperature: float = 1.0) -> Tensor:
        """log_prior + log_lik / temperature in one execution of the model: z (D,) → ()."""
        log_prior, pointwise = self.log_parts(z, batch.rows)
        return log_prior + (pointwise * batch.weight).sum() / temperature

    # -- values -------------------------------------------------------------------------------------------
    def constrain(self, z: Tensor, rows: tuple[Tensor, ...] | None = None) -> dict[str, Tensor]:
        """Values of the flat vector's and of deterministic sites in their own (constrained) space.

        Deterministic sites that depend on latents which are integrated out are left out.

        Args:
            z: (..., D).
            rows: rows that deterministic sites inside the plate are computed on; all by default.

        Returns:
            site name → `(..., *site shape)`.
        """
        if z.dim() > 1:
            return self.vmap(lambda one: self.constrain(one, rows))(z)
        rows = self.all_rows if rows is None else rows
        trace, filler, _ = self.execute_at(z, rows)
        values = {name: filler.values[name] for name in self.sites}
        return values | {name: trace.nodes[name]["value"] for name in self.reported}

    def sample_prior(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws of the unconstrained vector from the prior, (num_samples, D).

        Raises:
            ModelError: an improper prior cannot be sampled; use `init`.
        """
        if self.layout.improper:
            raise ModelError(
                f"sites {sorted(self.layout.improper)} have improper priors and cannot be sampled: start from "
                "`init(...)`, which draws them uniformly on the unconstrained scale"
            )
        return self.init(num_samples, generator)

    def init(
        self,
        num_samples: int,
        generator: torch.Generator,
        strategy: Callable[..., Any] | None = None,
        radius: float = 2.0,
    ) -> Tensor:
        """Starting points of finite log density, (num_samples, D), see `starts.draw_starts`."""
        return draw_starts(self, num_samples, generator, strategy, radius)
