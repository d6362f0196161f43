"""A Pyro model as a log density over a flat, unconstrained vector, split into prior and row likelihoods.

    log p(z, y) = log_prior(z) + Σ_rows log_lik(z, row),      z = unconstrained latents, (D,)

`log_prior` is the sum of the log densities of all sites outside the partitioned plate and the log-Jacobians of the
transforms to the constrained space. It is counted once for all clients. `log_lik` is the sum of the log densities of
the sites inside the plate. All functions are pure functions of tensors and of one vector: map them by
`torch.func.vmap`, differentiate them by `torch.func.grad`.

Latent sites inside the plate ("local") are not part of the vector. They are integrated out of the log_lik of their row
(see `quadrature`). `forms.JointProblem` has them in the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.plates import size_differs_error
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.latents.discrete import sum_out
from pyro_fed.density.latents.quadrature import NearbyModes, Quadrature
from pyro_fed.density.layout import Layout, Site
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.torch_modes import Writable
from pyro_fed.density.running.trace_sites import Message, frame_of, is_deterministic, plate_of, sum_to_rows
from pyro_fed.density.starts import central_start, draw_starts, feasible, images_of, regular_start
from pyro_fed.density.traits import Traits
from pyro_fed.errors import DataError, ModelError
from pyro_fed.ops.batched import or_looped

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Problem:
    """A model's densities, as functions of its flat vector, mapped and compiled.

    `Federation` makes it by `build`, which checks the model. A problem does not change: `dataclasses.replace` returns a
    new one, for example with another compiler. (The compiler stores compiled steps.)

    Attributes:
        bound: the model and its arguments.
        layout: the model's sites.
        num_rows: rows of all clients; more than those of `bound` if other processes hold some.
        num_clients: number of clients that share the rows, which determines the total cost of a message.
        quadrature: rule that integrates out latent sites inside the plate.
        compiler: maps and compiles steps.
        writes: whether the model writes into its own new tensors, see `torch_modes.Writable`.
        progress: whether a long local step shows a progress bar of its own.
        device: device of clients' steps; the tensors of this problem are on the CPU, see `placed`.
        labels: names of a site's entries along each dimension; None for numbered entries.
        describe: makes the record of the model's traits; set by `build`.
        begin: (D,), a point at which searches for a mode begin; None: `starts.regular_start`.

    Example:
        >>> problem = pf.Federation(model, (x, y), plate="data", num_clients=10).problem
        >>> z = problem.init(5, torch.Generator().manual_seed(0))              # (5, D)
        >>> problem.log_prior(z) + problem.log_lik(z)                           # (5,)
        >>> problem.constrain(z)["beta"]                                        # (5, *shape of site beta)
    """

    bound: BoundModel
    layout: Layout
    num_rows: int
    quadrature: Quadrature = field(default_factory=Quadrature)
    compiler: Compiler = field(default_factory=lambda: Compiler("off"))
    writes: bool = False
    progress: bool = False
    device: torch.device = CPU
    num_clients: int = 1
    labels: Mapping[str, tuple[Sequence[Any] | None, ...]] = field(default_factory=dict)
    describe: Callable[[Problem], Traits] | None = field(default=None, repr=False)
    begin: Tensor | None = None

    # -- the model and its data ------------------------------------------------------------------------------
    @property
    def model(self) -> Callable[..., Any]:
        """The ordinary Pyro model."""
        return self.bound.model

    @property
    def arguments(self) -> Arguments:
        """The model's arguments, pooled, with the row-sharded leaves marked."""
        return self.bound.arguments

    @property
    def forward_mode(self) -> bool:
        """Whether second derivatives are taken by forward over reverse mode."""
        return bool(self.bound.forward_mode)

    @property
    def plate(self) -> str:
        """Name of the partitioned plate."""
        return self.bound.plate

    @property
    def dtype(self) -> torch.dtype:
        """Floating dtype of the unconstrained vector."""
        return self.bound.dtype

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Row tensors: the sharded arguments, or the row numbers if the model indexes its own data."""
        return self.bound.rows

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows in one call of the model: those of nested plates in their original order."""
        return self.bound.all_rows

    @property
    def fewest_rows(self) -> tuple[Tensor, ...]:
        """A few rows, on which a run of the model has every site of the flat vector."""
        return tuple(leaf[:1] for leaf in self.rows)

    # -- shape of the vector ---------------------------------------------------------------------------------
    @property
    def sites(self) -> dict[str, Site]:
        """Latent sites of the flat vector, by name, in its order."""
        return self.layout.latents

    @cached_property
    def dim(self) -> int:
        """D, the length of the flat unconstrained vector."""
        return sum(site.size for site in self.sites.values())

    def site_of(self, number: int) -> Site:
        """The site of an entry of the flat vector.

        Args:
            number: 0..D-1.
        """
        return next(site for site in self.sites.values() if site.start <= number < site.start + site.size)

    def name_of(self, number: int) -> str:
        """Name of an entry of the flat vector: `tau`, `beta[age]`, `L[2, 0]`, as in ArviZ's tables.

        Entries are numbered if the unconstrained value has another shape than the value (a simplex, a Cholesky factor).

        Args:
            number: 0..D-1.
        """
        site = self.site_of(number)
        if site.unconstrained_shape == site.shape:
            return self.entry_of(site, number - site.start)
        return site.name if site.size == 1 else f"{site.name}[{number - site.start}]"

    def entry_of(self, site: Site, number: int) -> str:
        """Name of an entry of a site's value, see `name_of`.

        Args:
            site: one of `sites`.
            number: of the entry, in row-major order.
        """
        if not site.shape:
            return site.name
        places = np.unravel_index(number, site.shape)
        entry_names = self.labels.get(site.name, (None,) * len(places))
        indices = (
            place if names is None else names[int(place)] for names, place in zip(entry_names, places, strict=True)
        )
        return f"{site.name}[{', '.join(map(str, indices))}]"

    @property
    def local_dim(self) -> int:
        """Latents of one row that are integrated out of its likelihood."""
        return sum(site.row_size for site in self.layout.local.values())

    @property
    def reported(self) -> dict[str, Site]:
        """Deterministic sites whose values the flat vector determines."""
        undetermined = self.layout.depends_on_local | self.layout.depends_on_discrete
        return {name: site for name, site in self.layout.reported.items() if name not in undetermined}

    # -- cost of a density -------------------------------------------------------------------------------------
    @property
    def widest(self) -> int:
        """Rows of the partitioned plate, or of the largest plate nested in it."""
        return max(self.num_rows, *(len(part) for part in self.arguments.members(self.arguments.all_rows).values()), 0)

    @property
    def num_nodes(self) -> int:
        """Nodes of the quadrature: the number of densities of a row in one log-likelihood."""
        return self.quadrature.num_nodes(self.local_dim) if self.local_dim else 1

    @property
    def evaluations(self) -> int:
        """Densities of rows computed in one log-likelihood of all data."""
        return self.widest * self.num_nodes

    @cached_property
    def traits(self) -> Traits:
        """The model's traits, on which choices of settings depend."""
        if self.describe is None:
            raise TypeError("this problem cannot tell its traits: make it by `pyro_fed.density.build`")
        return self.describe(self)

    # -- running the model -------------------------------------------------------------------------------------
    def execute(
        self, source: Source, rows: tuple[Tensor, ...], *, densities: bool = False, **options: Any
    ) -> Execution:
        """Run the model on some rows with latents from `source`, and compute the sites' log densities if `densities`.

        With densities, discrete latents take all of their values at once, except those in `discrete=`.

        Args:
            source: returns a latent's unconstrained value.
            rows: row tensors, each (m, ...), m >= 1.
            densities: compute the sites' log densities.
            options: as for `BoundModel.execute`.
        """
        enumerate_at = self.layout.first_enum_dim if densities else None
        return self.bound.execute(source, rows, densities=densities, enumerate_at=enumerate_at, **options)

    def execute_at(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any) -> Execution:
        """Run the model with latents from the flat vector z (D,) and, for these rows, `local` (m, local_dim).

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...).
            local: (m, local_dim) unconstrained latents of the rows; zero by default.
            options: as for `execute`.
        """
        with self._written((z, *rows, local)):
            return self.execute(self.from_vector(z, rows, local), rows, **options)

    def _written(self, mapped: Iterable[Any]) -> AbstractContextManager[Any]:
        """The context in which the model can be run under `vmap` on mapped tensors."""
        return Writable(mapped) if self.writes else nullcontext()

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,), and for these rows from `local` (m, local_dim), zero by default.

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...).
            local: (m, local_dim) unconstrained latents of the rows.
        """
        block = z.new_zeros(len(rows[0]), self.local_dim) if local is None else local

        def source(msg: Message, _transform: Any) -> Tensor:
            if msg["name"] in self.layout.local:
                return self.layout.local[msg["name"]].of_rows(block)
            site = self.sites[msg["name"]]
            if tuple(msg["fn"].shape()) != site.shape:
                raise size_differs_error(msg["name"], site.shape, tuple(msg["fn"].shape()))
            return z[site.start : site.start + site.size].reshape(site.unconstrained_shape)

        return source

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """The flat vector (D,) of constrained values of all latent sites.

        Args:
            values: site name → value of the site's shape.

        Raises:
            DataError: a site is missing.
        """
        missing = [name for name in self.sites if name not in values]
        if missing:
            raise DataError(f"no value for latent sites {missing}; the model has {list(self.sites)}")

        def source(msg: Message, transform: Any) -> Tensor:
            value = torch.as_tensor(values[msg["name"]]).double()  # float64: a simplex's last part is a difference
            z: Tensor = transform.inv(value.reshape(msg["fn"].shape()))
            return z.to(self.dtype)

        with self._written(values.values()):
            return self.collect(source)

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,) of the values that `source` returns for the latent sites.

        Args:
            source: returns a latent site's unconstrained value from its message and transform.
        """
        parts: dict[str, Tensor] = {}

        def recording(msg: Message, transform: Any) -> Tensor:
            if msg["name"] not in self.sites:
                return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=self.dtype)
            z = source(msg, transform)
            parts[msg["name"]] = z.reshape(-1)
            return z

        self.execute(recording, self.fewest_rows)
        return torch.cat([parts[name] for name in self.sites])

    # -- mapping and compiling -----------------------------------------------------------------------------
    @property
    def looped(self) -> bool:
        """Whether `vmap` is a loop over ordinary runs of the model."""
        return self.compiler.level == "loop"

    def doubled(self) -> Problem:
        """These densities computed in float64, without compilation."""
        return replace(self, bound=self.bound.doubled(), compiler=Compiler("loop" if self.looped else "off"))

    def placed(self) -> Problem:
        """These densities with all tensors on `device`; the problem itself if that is the CPU."""
        if self.device == CPU:
            return self
        own_compiler, device_compiler = self.compiler, self.compiler.of_form(f"on {self.device}")
        compiler = replace(
            device_compiler,
            level=own_compiler.level,
            auto=own_compiler.auto,
            rounds=own_compiler.rounds,
            seconds=own_compiler.seconds,
        )
        return replace(self, bound=self.bound.on(self.device), compiler=compiler)

    def vmap(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`torch.func.vmap`, or a loop if the model cannot be vectorised.

        Args:
            function: of tensors and pytrees of them.
            in_dims: as for `torch.func.vmap`; axes are 0 or None.
        """
        return or_looped(self.compiler.vmap(function, in_dims), function, in_dims)

    @property
    def in_units_of_scale(self) -> tuple[str, ...]:
        """Names of the sites in units of their scale, see `NonCentred`; none in the model's own form."""
        return ()

    def mapped(self, function: Callable[..., Any], in_dims: Any, calls: int = 1) -> Callable[..., Any]:
        """`function(problem, *args)` mapped over clients and compiled, see `Compiler.mapped`.

        Args:
            function: pure and hashable, of this problem and pytrees of tensors.
            in_dims: client axes of the pytrees.
            calls: number of its calls in a round.
        """
        return self.compiler.mapped(function, self, in_dims, calls)

    def flat(self, function: Callable[..., Any], in_dims: Any, args: Any, calls: int) -> Callable[..., list[Tensor]]:
        """`mapped` for arguments like `args`, as a function of their leaves, see `Compiler.flat`.

        Args:
            function: as for `mapped`.
            in_dims: as for `mapped`.
            args: pytrees with the structure of all later ones.
            calls: as for `mapped`.
        """
        return self.compiler.flat(function, self, in_dims, args, calls)

    def scan(
        self, function: Callable[..., Any], carry: Any, const: Any, xs: Any, length: int, const_dims: Any = 0
    ) -> tuple[Any, Any]:
        """`carry, out = function(problem, carry, const, x)`, `length` times, see `Compiler.scan`.

        Args:
            function: one client's step, pure and hashable.
            carry: pytree with a leading client axis (C, ...).
            const: pytree that does not change over the steps.
            xs: pytree of inputs of each step, (length, C, ...), or ().
            length: number of steps.
            const_dims: client axes of `const`: 0 for all of it, or a pytree of the same structure with 0 for a tensor
                with a client axis, None for a tensor that all clients share, and `BATCHES` for a batch, such as
                `{"center": 0, "batch": BATCHES}` for `{"center": shared["point"], "batch": data.full_batch()}`.
        """
        return self.compiler.scan(function, self, carry, const, xs, length, const_dims)

    def scans(
        self,
        function: Callable[..., Any],
        carry: Any,
        const: Any,
        xs: Any,
        at: Tensor,
        const_dims: Any = 0,
        every: Any = 1,
    ) -> tuple[Any, Any]:
        """Successive scans, each with the constants of other clients, see `Compiler.scans`.

        Args:
            function: one client's step, pure and hashable.
            carry: pytree with a leading client axis (C, ...).
            const: pytree of K clients that does not change over a scan's steps.
            xs: pytree of inputs of each step, (B T, C, ...).
            at: (B, C) number of the client in `const` whose constants each client of a scan uses.
            const_dims: client axes of `const`.
            every: stride of the stored steps of each output.
        """
        return self.compiler.scans(function, self, carry, const, xs, at, const_dims, every)

    # -- densities ----------------------------------------------------------------------------------------
    def log_terms(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Log density site by site: () outside the plate, (m,) by rows inside it; the log-Jacobians under "".

        For a site in a nested plate, the term of a row is the sum over the nested rows of that row.

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...), m >= 1.
            local: (m, local_dim) unconstrained latents of the rows.
            options: as for `execute`.
        """
        return self.terms_of(self.execute_at(z, rows, local, densities=True, **options), rows)

    def terms_of(self, execution: Execution, rows: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """`log_terms` of a run of the model with densities on these rows.

        Args:
            execution: with densities.
            rows: the row tensors of the run, each (m, ...).
        """
        outside, inside = self._plate_terms(execution, rows)
        members = self.arguments.members(rows[: len(self.arguments.rows)])
        return outside, {
            name: members[plate].to_groups(terms) if plate in members else terms
            for name, (plate, terms) in inside.items()
        }

    def _plate_terms(
        self, execution: Execution, rows: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
        """`terms_of`, where each site inside has the name of its plate of rows, partitioned or nested."""
        trace, filler, _ = execution
        zero = torch.zeros((), dtype=self.dtype, device=rows[0].device)
        outside = {"": zero + filler.log_jacobian}
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
        summed_sites, joint_terms = sum_out(trace, inside, sizes) if self.layout.discrete else (set(), {})
        site_terms = {
            name: (plate, sum_to_rows(trace.nodes[name], frame_of(trace.nodes[name], plate).dim))
            for name, plate in inside.items()
            if name not in summed_sites
        }
        if self.layout.local:
            site_terms[""] = self.plate, zero.expand(len(rows[0])) + filler.row_jacobian
        return outside, site_terms | joint_terms

    def plate_terms(self, z: Tensor, rows: tuple[Any, ...]) -> dict[str, tuple[str, Tensor]]:
        """The plate of rows of each site inside the plate, and the terms of these rows, at z (D,).

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...), m >= 1.
        """
        return self._plate_terms(self.execute_at(z, rows, densities=True), rows)[1]

    def log_parts(self, z: Tensor, rows: tuple[Tensor, ...], near: NearbyModes | None = None) -> tuple[Tensor, Tensor]:
        """Log prior with Jacobians, (), and log-likelihood of each row, (m,): z (D,), rows each (m, ...).

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...).
            near: modes of the rows' own latents near z, if known.
        """
        if self.local_dim:
            return self.quadrature.log_parts(self, z, rows, near)
        return self.conditional_parts(z, rows)

    def conditional_parts(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_parts` at given values of the rows' own latents; the rows' terms include the log prior of these.

        Args:
            z: (D,) unconstrained vector.
            rows: row tensors, each (m, ...).
            local: (m, local_dim) unconstrained latents of the rows; zero by default.
        """
        outside, inside = self.log_terms(z, rows, local)
        if not inside:
            inside = {"": torch.zeros(len(rows[0]), dtype=self.dtype, device=z.device)}
        return reduce(add, outside.values()), reduce(add, inside.values())

    def log_prior(self, z: Tensor) -> Tensor:
        """Log prior of the unconstrained vector (with Jacobians): z (..., D) → (...).

        Args:
            z: (..., D) unconstrained vectors.
        """
        if z.dim() > 1:
            many: Tensor = self.vmap(self.log_prior)(z)
            return many
        return reduce(add, self.log_prior_terms(z).values())

    def log_prior_terms(self, z: Tensor) -> dict[str, Tensor]:
        """Log density of each site outside the plate, at its constrained value; the log-Jacobians under "".

        Args:
            z: (..., D) unconstrained vectors.

        Returns:
            site name → (...); their sum is `log_prior`.
        """
        if z.dim() > 1:
            many: dict[str, Tensor] = self.vmap(self.log_prior_terms)(z)
            return many
        return self.log_terms(z, tuple(leaf[:1] for leaf in self.rows))[0]

    def pointwise_log_lik(self, z: Tensor, rows: tuple[Tensor, ...] | None = None) -> Tensor:
        """Log-likelihood of each row: z (..., D) → (..., m). All pooled rows by default.

        Args:
            z: (..., D) unconstrained vectors.
            rows: row tensors, each (m, ...).
        """
        if z.dim() > 1:
            many: Tensor = self.vmap(lambda one: self.pointwise_log_lik(one, rows))(z)
            return many
        return self.log_parts(z, self.all_rows if rows is None else rows)[1]

    def site_log_lik(self, z: Tensor) -> dict[str, Tensor]:
        """Terms of each pooled row, including those of nested plates, site by site: z (..., D) → (..., N).

        If latents are integrated out, the observed sites have one joint term, under their joined names.

        Args:
            z: (..., D) unconstrained vectors.
        """
        if z.dim() > 1:
            many: dict[str, Tensor] = self.vmap(self.site_log_lik)(z)
            return many
        if self.local_dim:
            return {"_".join(self.layout.observed): self.pointwise_log_lik(z)}
        return {name: terms for name, (_, terms) in self.plate_terms(z, self.all_rows).items()}

    def term_plates(self) -> dict[str, str]:
        """The plate of rows, partitioned or nested, of each term of `site_log_lik`."""
        z = torch.zeros(self.dim, dtype=self.dtype, device=self.rows[0].device)
        if self.local_dim:
            return dict.fromkeys(self.site_log_lik(z), self.plate)
        return {name: plate for name, (plate, _) in self.plate_terms(z, self.all_rows).items()}

    def log_lik(self, z: Tensor, batch: Batch | None = None) -> Tensor:
        """Weighted sum of the rows' log-likelihoods: z (..., D) → (...). All pooled rows by default.

        Args:
            z: (..., D) unconstrained vectors.
            batch: rows and their weights.
        """
        if z.dim() > 1:
            many: Tensor = self.vmap(lambda one: self.log_lik(one, batch))(z)
            return many
        if batch is None:
            return self.pointwise_log_lik(z).sum()
        return (self.log_parts(z, batch.rows, *batch.near)[1] * batch.weight).sum()

    def log_joint(self, z: Tensor, batch: Batch, temperature: float = 1.0) -> Tensor:
        """log_prior + log_lik / temperature in one execution of the model: z (D,) → ().

        Args:
            z: (D,) unconstrained vector.
            batch: rows and their weights.
            temperature: inverse of the likelihood's power.
        """
        log_prior, pointwise = self.log_parts(z, batch.rows)
        return log_prior + (pointwise * batch.weight).sum() / temperature

    # -- values -------------------------------------------------------------------------------------------
    def constrain(self, z: Tensor, rows: tuple[Tensor, ...] | None = None) -> dict[str, Tensor]:
        """Values of the flat vector's sites and of deterministic sites in their constrained space.

        Deterministic sites that depend on integrated latents are omitted.

        Args:
            z: (..., D).
            rows: rows for deterministic sites inside the plate; all by default.

        Returns:
            site name → `(..., *site shape)`.
        """
        if z.dim() > 1:
            many: dict[str, Tensor] = self.vmap(lambda one: self.constrain(one, rows))(z)
            return many
        rows = self.all_rows if rows is None else rows
        trace, filler, _ = self.execute_at(z, rows)
        values = {name: filler.values[name] for name in self.sites}
        return values | {name: trace.nodes[name]["value"] for name in self.reported}

    @cached_property
    def transformed(self) -> Tensor:
        """Whether each entry of the flat vector is a transform of its site's value, such as a logarithm, (D,) bool."""
        z = torch.full((self.dim,), 0.1, dtype=self.dtype)  # any point other than 0, where exp(z) - 1 equals z
        with torch.no_grad():
            values = self.constrain(z, self.fewest_rows)
        is_transformed = torch.ones(self.dim, dtype=torch.bool)
        for name, site in self.sites.items():
            value, part = values[name].reshape(-1), slice(site.start, site.start + site.size)
            if len(value) == site.size:
                is_transformed[part] = value.to(z) != z[part]
        return is_transformed

    def images(self, point: Tensor) -> Tensor:
        """Points (R, D) with the values of a point (D,) reordered or with other signs; see `starts.images_of`."""
        values = self.constrain(point, self.fewest_rows)
        return images_of(point, values, self.sites, self.transformed, self.unconstrain)

    def sample_prior(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws of the unconstrained vector from the prior, (num_samples, D).

        Args:
            num_samples: S.
            generator: source of randomness.

        Raises:
            ModelError: an improper prior cannot be sampled; use `init`.
        """
        if self.layout.improper:
            raise ModelError(
                f"sites {sorted(self.layout.improper)} have improper priors and cannot be sampled: start from "
                "`init(...)`, which draws them uniformly on the unconstrained scale"
            )
        return self.init(num_samples, generator)

    @cached_property
    def regular_start(self) -> Tensor:
        """`begin`, or else zeros (D,) or another point with finite derivatives; see `starts.regular_start`."""
        return regular_start(self) if self.begin is None else self.begin

    def central_start(self, generator: torch.Generator) -> Tensor:
        """A start (D,) for gradient methods: near the prior's mean, or zeros if a flat prior has no mean.

        For a network whose gradients vanish there it is farther from the mean; see `starts.central_start`.

        Args:
            generator: source of randomness.
        """
        if self.layout.improper:
            return self.regular_start
        return central_start(self, generator, self.traits.layers)

    def feasible(self, points: Tensor, draw: Callable[[], Tensor]) -> Tensor:
        """Points (S, D) with finite log density; draws replace the others, see `starts.feasible`.

        Args:
            points: (S, D).
            draw: returns a new point (D,).

        Raises:
            ModelError: no draw has a finite log density.
        """
        return feasible(self, points, draw)

    def init(
        self,
        num_samples: int,
        generator: torch.Generator,
        strategy: Callable[..., Any] | None = None,
        radius: float = 2.0,
        checked: bool = True,
    ) -> Tensor:
        """Starting points (num_samples, D) with finite log density, see `starts.draw_starts`.

        Args:
            num_samples: S.
            generator: source of randomness.
            strategy: one of Pyro's `init_to_*`; None draws from the prior.
            radius: without a strategy, improper sites start uniformly on (-radius, radius), unconstrained.
            checked: whether the log density must be finite there.

        Raises:
            ModelError: no draw has a finite log density.
        """
        return draw_starts(self, num_samples, generator, strategy, radius, checked)
