"""Quadrature over latents inside the partitioned plate, row by row.

    log p(y_i | θ) = log ∫ exp f_i(θ, x) dx,    f_i = log p(x | θ) + log |dx'/dx| + log p(y_i | θ, x)

x (d,) are the unconstrained latents of one element of the plate. Given θ the elements are independent, so that each
integral has few dimensions and is computed by the client that holds the row. Adaptive quadrature (Naylor & Smith 1982;
Pinheiro & Bates 1995) places the nodes by the mode m and the curvature H = C C' at the mode,

    log p(y_i | θ) ≈ log Σ_s w_s exp(f_i(θ, m + C⁻ᵀ u_s) + |u_s|²/2) - log |C| + d/2 log 2π

where (u_s, w_s) is a Gauss-Hermite rule for N(0, I), or standardised Sobol points if a product rule would be too large.
The rule is exact for a Gaussian x | θ, y_i. With one node it is Laplace's approximation. If these nodes are inaccurate,
such as in the tails of a Beta or Gamma latent of small shape, `tails` places the nodes of a single latent. Rows with
several modes given θ, such as the two signs of x in y = x², have nodes around each mode (`modes`).

The settings of a model are chosen when the problem is built, at random θ. Modes take a fixed number of Newton steps,
for compilation: the number that they need plus one. An error of a mode costs accuracy, not correctness. If f_i is a
parabola, one step leads to its mode from any start, and three nodes per dimension suffice, two for scores alone.
Otherwise the number of nodes is chosen by a row's log marginal likelihood for one latent, and by its score and
curvature for several.

**Derivatives** in θ keep the nodes fixed, since an accurate rule is accurate for nodes nearby. The gradient is then
Fisher's identity, E[∇f_i | y_i], and the Hessian Louis's identity. For a Gaussian x | θ, y_i, three nodes per dimension
give both exactly, and Sobol points give only the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.utils import _pytree as pytree

from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import FEW_DRAWS, FEW_ROWS, RADIUS, ROWS_TOGETHER, points_within_radius
from pyro_fed.density.latents.modes import (
    MAX_STARTS,
    Ascent,
    Centre,
    LatentAscent,
    Rows,
    log_shares,
    modes_at_points,
    needed_starts,
    one_mode_each,
    without_failed_ascents,
)
from pyro_fed.density.latents.tails import Line, Profile, line
from pyro_fed.density.rounding import rounding_of
from pyro_fed.density.starts import draw_starts
from pyro_fed.errors import SettingError
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.matrices import log_det_lower, solve_lower, solve_lower_transposed
from pyro_fed.ops.points import standardised_sobol

#: What a model needs is found at so many θ, uniform on (-RADIUS, RADIUS), and at `FEW_ROWS` rows; the number of modes,
#: and the nodes of several latents, at the first `FEW_DRAWS` of these θ and as many rows as there are θ.
PROBES = 16
#: Nodes per dimension for a Gaussian and its first two derivatives; and the distance from the mode, in SDs, at which a
#: log density is compared with a parabola.
GAUSSIAN_ORDER, GAUSSIAN_REACH = 3, 3.0
#: Nodes per dimension for a Gaussian and its first derivatives.
SCORE_ORDER = 2
#: Rules that are tried if it is no parabola, in nodes a dimension; for several latents in models of at most so many
#: parameters.
ORDERS, MAX_PROBED_DIM = (5, 7, 9, 11, 13), 32
#: The fewest nodes that are placed by tails, and how many times as many the rule has that others are compared with.
MIN_TAIL_NODES, FINER_RULE_FACTOR = 7, 4
#: Start of the mode search for such latents: log densities with a kink at zero have no curvature there.
ASCENT_OFFSET = 0.05
#: Newton steps from the modes at one θ, moved along their slopes, to those at another of the same posterior, at most.
NEAR_STEPS = 3


class Nodes(NamedTuple):
    """Nodes (Q, m, d) at which the log joint densities of m rows are evaluated, and their log weights (Q, m)."""

    place: Tensor
    log_weight: Tensor


class NearbyModes(NamedTuple):
    """Modes and nodes of m rows near A points θ, see `ascent_starts`."""

    theta: Tensor  # (A, D)
    place: Tensor  # the modes there, (A, m, d)
    slope: Tensor  # how they move with θ, (A, m, d, D), or (A, m, d, 0) where modes are needed at these points alone
    steps: Tensor  # shares of the Newton steps from there to the modes at another θ, (k,): 1, or 0 where fewer do
    nodes: tuple[Tensor, ...] = ()  # a rule for N(0, I) that does, (Q, d), log weights (Q,), -inf for padding; or ()

    def modes(self, theta: Tensor) -> Tensor:
        """Approximate modes (m, d) at θ (D,), from the nearest of the points."""
        away = theta - self.theta
        if len(away) == 1:
            return self.place[0] + self.slope[0] @ away[0, : self.slope.shape[-1]]
        at = away.square().sum(-1).argmin().unsqueeze(0)
        place, slope, away = (part.index_select(0, at).squeeze(0) for part in (self.place, self.slope, away))
        return place + slope @ away[: slope.shape[-1]]


@dataclass(frozen=True, kw_only=True)
class Quadrature(metaclass=Checked):
    """Settings for the integration and the draws of latents inside the partitioned plate.

    Args:
        order: nodes a dimension; fewer if their product would be more than `max_nodes`. None takes 3 if the latents are
            Gaussian given the rest. Otherwise it takes as many as `node_tolerance` asks for, or `max_order`.
        max_order: see `order`.
        tails: for one latent a row and at least 7 nodes: place the nodes by the density's tails, in place of
            Gauss-Hermite nodes by its curvature. None does so if only the latter err by more than `node_tolerance`, at
            random θ.
        offset: from zero, where the ascent to the first mode of a row's latents begins, in no two latents alike. None
            takes 0, or 0.05 where nodes are placed by tails, and where a density or a derivative is not finite at zero.
        starts: places from which modes of a row's latents are looked for, besides zero: unconstrained, a tuple of d
            numbers each. Each mode that is found is integrated by nodes of its own. () stands for a single mode; None
            finds at random θ whether there are more, and where.
        node_tolerance: how far the score of the log marginal likelihood may be from that by the next rule, in SDs, and
            its curvature relatively, at random θ; of one latent, a row's log marginal likelihood.
        gaussian_tolerance: how far a Gaussian's log density may be from a parabola.
        max_nodes: nodes a row; where they do not make three a dimension, so many Sobol points are taken.
        mode_steps: Newton steps to the mode of each row's latents; None counts what the model needs, at most
            `max_mode_steps`, to come within `mode_tolerance` posterior SDs. With fewer, and few nodes, integrals depend
            on where ascents begin; the result then has a doubt. Of 1, with at most 3 nodes a dimension, the mode is
            that of the parabola where the ascent starts, as of latents that are Gaussian given the rest.
        max_mode_steps: see `mode_steps`.
        mode_tolerance: see `mode_steps`.
        shorten: a Newton step that does not go uphill is tried again at this fraction.
        floor: smallest pivot of a curvature that is not positive definite, relative to its largest entry.
        draw_steps: Metropolis-Hastings steps behind each draw of the latents, at most: fewer where proposals are so
            near their density that these forget the start.
        degrees: of freedom of the t distribution that proposes them.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Naylor & Smith (1982), Applied Statistics 31. Pinheiro & Bates (1995), JCGS 4.

    Example:
        >>> rule = pf.Quadrature(order=11, max_nodes=1024)
        >>> fed = pf.Federation(model, (y,), plate="group", num_clients=10, quadrature=rule)
    """

    order: int | None = None
    max_order: int = 21
    tails: bool | None = None
    offset: float | None = None
    starts: tuple[tuple[float, ...], ...] | None = None
    node_tolerance: float = 1e-3
    gaussian_tolerance: float = 1e-3
    max_nodes: int = 256
    mode_steps: int | None = None
    max_mode_steps: int = 12
    mode_tolerance: float = 1e-2
    shorten: float = 0.25
    floor: float = 1e-6
    draw_steps: int = 16
    degrees: int = 7

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_order", "max_mode_steps", "draw_steps", "degrees")
        check_at_least(self, 1, "order", "mode_steps", allow_none=True)
        check_at_least(self, 2, "max_nodes")
        check_positive(self, "node_tolerance", "gaussian_tolerance", "mode_tolerance", "shorten", "floor")
        starts = self.starts or ()
        places = all(isinstance(one, tuple) and len(one) == len(starts[0]) for one in starts)
        if len(starts) > MAX_STARTS or not (places and all(math.isfinite(x) for one in starts for x in one)):
            raise SettingError(
                f"Quadrature: starts must be at most {MAX_STARTS} places, tuples of as many finite numbers each as a "
                f"row has latents, such as ((-2.0,), (2.0,)); received {self.starts}"
            )

    def fitted(self, problem: RowDensities) -> Quadrature:
        """These settings with open ones, such as `order` and `mode_steps`, chosen for the model, given in float64.

        Rounding of a group's sum over thousands of rows would look like an error of the nodes.
        """
        theta = points_within_radius(PROBES, problem.dim).to(problem.bound.dtype)
        few = min(FEW_ROWS, max(FEW_DRAWS, ROWS_TOGETHER * problem.num_rows // problem.widest))
        at = evenly(problem.bound.num_rows, few).unique()
        rows = tuple(leaf[at] for leaf in problem.rows)
        rule, theta, start = self._at_finite_starts(problem, theta, rows)
        steps, modes = rule._ascend(problem, theta, rows, start)
        chosen_rule = replace(rule, mode_steps=steps)._for_modes(problem, theta, rows, modes)
        centres = modes_at_points(problem, chosen_rule, theta, rows) if chosen_rule.starts else one_mode_each(modes)
        if self.order is None:
            gaussian = not chosen_rule.starts and chosen_rule._is_gaussian(problem, theta, rows, centres)
            order = (
                min(GAUSSIAN_ORDER, self.max_order)
                if gaussian
                else chosen_rule._order_by_derivatives(problem, theta, rows)
            )
            one_step = gaussian and self.mode_steps is None and steps == 2
            chosen_rule = replace(chosen_rule, order=order, mode_steps=1 if one_step else steps)
        if self.tails is None:
            chosen_rule = replace(chosen_rule, tails=chosen_rule.needs_tails(problem, theta, rows, centres))
        if self.order is None and not chosen_rule.by_tails(problem.local_dim):
            return replace(chosen_rule, order=chosen_rule._order_by_values(problem, theta, rows, centres))
        if self.tails is None and chosen_rule.tails and not self.mode_steps:  # the ascent starts elsewhere
            counting = replace(chosen_rule, mode_steps=None)
            steps, _ = counting._ascend(problem, theta, rows, counting._start_ascents(problem, theta, rows))
            return replace(chosen_rule, mode_steps=steps)
        return chosen_rule

    def _at_finite_starts(self, problem: RowDensities, theta: Tensor, rows: Rows) -> tuple[Quadrature, Tensor, Ascent]:
        """These settings, θ (S, D) and finite starts of ascents there, if need be beside zero or at prior draws."""
        start = self._start_ascents(problem, theta, rows)
        finite = _is_finite(start)
        if bool(finite.all()):
            return self, theta, start
        draws = draw_starts(problem, PROBES, torch.Generator().manual_seed(0), None, RADIUS, checked=False)
        theta = torch.cat([theta, draws])
        rules = [self] if self.offset is not None else [self, replace(self, offset=ASCENT_OFFSET)]
        tried = [(rule, rule._start_ascents(problem, theta, rows)) for rule in rules]
        rule, start = max(tried, key=lambda one: int(_is_finite(one[1]).sum()))
        finite = _is_finite(start) if bool(_is_finite(start).any()) else torch.ones_like(finite)
        return rule, theta[finite], pytree.tree_map(lambda part: part[finite], start)

    def _for_modes(self, problem: RowDensities, theta: Tensor, rows: Rows, modes: Centre) -> Quadrature:
        """With the places from which all modes at θ (S, D) are found, where rows have several beside `modes`."""
        dim = problem.local_dim
        if self.starts and len(self.starts[0]) != dim:
            raise SettingError(
                f"Quadrature: starts are places of {len(self.starts[0])} numbers, and a row has {dim} latents: "
                f"{sorted(problem.layout.local)}, unconstrained"
            )
        if self.starts is not None:
            return self
        at = evenly(len(rows[0]), PROBES).unique()
        few = tuple(leaf[at] for leaf in rows)
        known = one_mode_each(Centre(*(part[:FEW_DRAWS, at] for part in modes)))
        return replace(self, starts=needed_starts(problem, self, theta[:FEW_DRAWS], few, known))

    def _log_marginals(self, problem: RowDensities, theta: Tensor, rows: Rows, centres: Centre) -> Tensor:
        """The rows' log marginal likelihoods at θ (S, D), (S, m), by nodes at these modes, (S, J, m, ...)."""
        log_marginals: Tensor = problem.vmap(
            lambda one, centre: torch.logsumexp(self.log_masses(problem, one, rows, centre)[1], 0)
        )(theta, centres)
        return log_marginals

    def needs_tails(self, problem: RowDensities, theta: Tensor, rows: Rows, centres: Centre) -> bool:
        """Whether `max_order` nodes placed by the curvature err at θ (S, D), and those placed by tails do not."""
        if problem.local_dim > 1 or self.places(1) < MIN_TAIL_NODES:
            return False
        usual, tails = (replace(self, tails=by_tails) for by_tails in (False, True))
        finer_rule = replace(
            tails, order=FINER_RULE_FACTOR * self.places(1), max_nodes=FINER_RULE_FACTOR * self.max_nodes
        )
        converged = bool(centres.decrement.isfinite().all()) and not bool(centres.can_rise(self.mode_tolerance).any())
        of_tails = centres if converged else modes_at_points(problem, tails, theta, rows)
        exact = finer_rule._log_marginals(problem, theta, rows, of_tails)
        largest_rule = replace(usual, order=min(self.places(1), self.max_order))
        error = self._largest_error(largest_rule._log_marginals(problem, theta, rows, centres), exact)
        if error == 0:
            return False
        if self.places(1) > self.max_order:
            error = self._largest_error(usual._log_marginals(problem, theta, rows, centres), exact)
        return self._largest_error(tails._log_marginals(problem, theta, rows, of_tails), exact) <= error

    def _order_by_values(self, problem: RowDensities, theta: Tensor, rows: Rows, centres: Centre) -> int | None:
        """The fewest nodes of `ORDERS` by which a row's log marginal likelihood, of one latent, is that by `order`."""
        tried = [order for order in ORDERS if order < self.places(problem.local_dim)]
        if problem.local_dim > 1 or self.starts or not tried:
            return self.order

        def values(order: int) -> Tensor:
            return replace(self, order=order)._log_marginals(problem, theta, rows, centres)

        exact = self._log_marginals(problem, theta, rows, centres)
        return next((order for order in tried if self._largest_error(values(order), exact) == 0), self.order)

    def _largest_error(self, found: Tensor, exact: Tensor) -> float:
        """The largest difference from known values beyond `node_tolerance` and rounding; 0 if there is none."""
        known = exact.isfinite()
        errors = (found - exact).nan_to_num(nan=math.inf).abs()
        beyond = torch.where(errors > self.node_tolerance + rounding_of(exact), errors, 0.0)[known]
        return float(beyond.max()) if bool(known.any()) else 0.0

    def _order_by_derivatives(self, problem: RowDensities, theta: Tensor, rows: Rows) -> int:
        """The fewest nodes a dimension of `ORDERS` whose score and curvature at θ (S, D) are those of the next rule."""
        dim = problem.local_dim
        most = replace(self, order=self.max_order)
        tried = [order for order in ORDERS if order <= most.places(dim)]
        if dim == 1 or problem.dim > MAX_PROBED_DIM or len(tried) < 2:
            return self.max_order
        at = evenly(len(rows[0]), PROBES).unique()
        theta, rows = theta[:FEW_DRAWS], tuple(leaf[at] for leaf in rows)
        unit = torch.eye(problem.dim, dtype=theta.dtype, device=theta.device)

        def derivatives(order: int) -> tuple[Tensor, Tensor]:
            rule = replace(self, order=order)

            def log_lik(z: Tensor) -> Tensor:
                return rule.log_parts(problem, z, rows)[1].sum()

            def at(one: Tensor) -> tuple[Tensor, Tensor]:
                score, pull = vjp(grad(log_lik), one)[:2]
                return score, problem.vmap(lambda v: pull(v)[0])(unit)

            score, curvature = problem.vmap(at)(theta)
            return score.double(), curvature.double()

        found = derivatives(tried[0])
        for order, finer in pairwise(tried):
            (score, curvature), found = found, derivatives(finer)
            values, vectors = torch.linalg.eigh(-0.5 * (found[1] + found[1].mT))
            whitening = vectors / (1 + values.abs()).sqrt().unsqueeze(1)  # as under a prior of unit scale
            off = torch.linalg.vector_norm(whitening.mT @ (found[0] - score).unsqueeze(-1), dim=(1, 2))
            bent = torch.linalg.matrix_norm(whitening.mT @ (found[1] - curvature) @ whitening, 2)
            if bool((torch.maximum(off, bent) <= self.node_tolerance).all()):
                return order
        return self.max_order

    def _start_ascents(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Ascent:
        """Starts of the mode searches at several θ (S, D)."""
        newton = self.newton_ascent
        starts: Ascent = problem.vmap(lambda one: newton.start_at(problem, one, rows, self.start(problem, one, rows)))(
            theta
        )
        return starts

    def _ascend(self, problem: RowDensities, theta: Tensor, rows: Rows, state: Ascent) -> tuple[int, Centre]:
        """Newton steps to the modes at several θ (S, D), and one more, and what they lead to, (S, m, ...)."""
        newton = self.newton_ascent
        step = problem.vmap(lambda one, state: newton.step(problem, one, rows, state))
        steps, most = 1, self.mode_steps or self.max_mode_steps
        while steps < most and (self.mode_steps or bool(newton.centre_of(state).can_rise(self.mode_tolerance).any())):
            state, steps = step(theta, state), steps + 1
        return steps, newton.centre_of(step(theta, state))

    def _is_gaussian(self, problem: RowDensities, theta: Tensor, rows: Rows, centres: Centre) -> bool:
        """Whether log joint densities are parabolas, `GAUSSIAN_REACH` SDs from the modes at θ, up to rounding."""
        axes = torch.eye(problem.local_dim, dtype=problem.bound.dtype)
        lines = torch.cat([axes, axes.mean(0, keepdim=True)])
        directions = GAUSSIAN_REACH * torch.cat([lines, -lines]) / lines.norm(dim=1).repeat(2).unsqueeze(1)

        def distance(one: Tensor, centre: Centre) -> Tensor:
            top = problem.conditional_parts(one, rows, centre.mode)[1]

            def along(direction: Tensor) -> Tensor:
                away = solve_lower_transposed(centre.factor, direction.expand_as(centre.mode))
                return problem.conditional_parts(one, rows, centre.mode + away)[1]

            apart = (problem.vmap(along)(directions) - top + 0.5 * GAUSSIAN_REACH**2).abs()
            beyond: Tensor = apart - rounding_of(top)
            return beyond.amax()

        found = problem.vmap(distance)(theta, Centre(*(part[:, 0] for part in centres)))
        return bool((found <= self.gaussian_tolerance).all())

    @property
    def by_parabola(self) -> bool:
        """Whether modes are those of parabolas, see `mode_steps`."""
        few = self.order is not None and self.order <= GAUSSIAN_ORDER
        return few and self.mode_steps == 1 and not self.starts

    def by_tails(self, dim: int) -> bool:
        """Whether nodes are placed by tails, see `tails`."""
        return bool(self.tails) and dim == 1 and self.places(1) >= MIN_TAIL_NODES

    def nodes(self, dim: int) -> tuple[Tensor, Tensor]:
        """The rule for N(0, I): nodes (Q, d) and log weights (Q,), float64."""
        order = self.places(dim)
        most = self.order or self.max_order
        return gauss_hermite(order, dim) if order >= min(3, most) else sobol(self.max_nodes // 2 * 2, dim)

    def places(self, dim: int) -> int:
        """Nodes a dimension that a product rule may have, at most `order`."""
        most = self.order or self.max_order
        return max([n for n in range(1, most + 1) if n**dim <= self.max_nodes])

    def num_nodes(self, dim: int) -> int:
        """Q, the number of evaluations of a row's density in one integral."""
        one = self.places(dim) if self.by_tails(dim) else len(self.nodes(dim)[0])
        return one * (1 + len(self.starts or ()))

    # -- the integral -----------------------------------------------------------------------------------------
    def log_parts(
        self, problem: RowDensities, theta: Tensor, rows: Rows, near: NearbyModes | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log prior (), and each row's log marginal likelihood (m,), at θ (D,); ascents begin at zero, or by `near`."""
        nodes = self.nodes_at(problem, theta, rows, near)
        prior, values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place))(nodes.place)
        return prior[0], torch.logsumexp(values + nodes.log_weight, 0)

    def nodes_at(self, problem: RowDensities, theta: Tensor, rows: Rows, near: NearbyModes | None = None) -> Nodes:
        """The nodes of the rows' latents at θ (D,), those of one mode after the other; constants for derivatives."""
        if near is not None:
            return self.nodes_at_modes(problem, theta, rows, self.centre_near(problem, theta, rows, near), near)
        if self.starts:
            return self._nodes_around_each(problem, theta, rows, self.centres(problem, theta, rows))
        return self.nodes_around(problem, theta, rows, self.centre(problem, theta, rows))

    def nodes_at_modes(
        self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre, near: NearbyModes
    ) -> Nodes:
        """`nodes_at` at modes that are known: the nodes that are enough near this θ, or the usual."""
        return by_curvature(centre, *near.nodes) if near.nodes else self.nodes_around(problem, theta, rows, centre)

    def nodes_in_curvature_units(self, problem: RowDensities, theta: Tensor, rows: Rows, near: NearbyModes) -> Nodes:
        """The nodes at θ (D,) in units of the curvatures there, for other θ: C'(x - m), and weights without |C|."""
        centre = self.centre_near(problem, theta, rows, near)
        nodes = self.nodes_around(problem, theta, rows, centre)
        return Nodes(centre.units_of(nodes.place), nodes.log_weight + log_det_lower(centre.factor))

    def nodes_around(
        self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre, part: tuple[Centre, int] | None = None
    ) -> Nodes:
        """The nodes around one mode of each row, or of its share of the density, as for `profile`."""
        dim = centre.mode.shape[-1]
        if self.by_tails(dim):
            nodes = self._line_nodes(self._line(problem, theta, rows, centre, part))
        else:
            nodes = by_curvature(centre, *self.nodes(dim))
        if part is None:
            return nodes
        shares = problem.vmap(lambda place: log_shares(part[0], place)[part[1]])(nodes.place)
        return nodes._replace(log_weight=nodes.log_weight + shares)

    def _nodes_around_each(self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre) -> Nodes:
        """The nodes around all modes of each row, those of one mode after the other."""
        each = [self.nodes_around(problem, theta, rows, centre.at(j), (centre, j)) for j in range(len(centre.mode))]
        return Nodes(*(torch.cat(parts) for parts in zip(*each, strict=True)))

    def log_masses(self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre) -> tuple[Tensor, Tensor]:
        """Log prior (), and the part of each row's log marginal likelihood that is each mode's, (J, m)."""
        nodes = self._nodes_around_each(problem, theta, rows, centre)
        prior, values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place))(nodes.place)
        return prior[0], torch.logsumexp((values + nodes.log_weight).unflatten(0, (len(centre.mode), -1)), 1)

    def _density(
        self, problem: RowDensities, theta: Tensor, rows: Rows, part: tuple[Centre, int] | None
    ) -> Callable[[Tensor], Tensor]:
        """Log joint densities of rows at places (m, d), or the share of them that is a mode's."""

        def at(place: Tensor) -> Tensor:
            value: Tensor = problem.conditional_parts(theta, rows, place)[1]
            return value + log_shares(part[0], place)[part[1]] if part else value

        return at

    def _line(
        self, problem: RowDensities, theta: Tensor, rows: Rows, centre: Centre, part: tuple[Centre, int] | None
    ) -> Line:
        """Where nodes are placed by tails."""
        density = self._density(problem, theta.detach(), rows, part)

        def look(places: Tensor) -> Tensor:
            values: Tensor = problem.vmap(lambda x: density(x.unsqueeze(-1)))(places)
            return values.detach()

        return line(look, centre.mode[:, 0], 1 / centre.factor[:, 0, 0], self.places(1))

    def _line_nodes(self, placed: Line) -> Nodes:
        """The nodes of a line of tails."""
        like = placed.centre
        share = torch.linspace(0, 1, self.places(1), dtype=like.dtype, device=like.device).unsqueeze(-1)
        place, log_slope = placed.at(share)
        return Nodes(place.unsqueeze(-1), log_slope + placed.log_step(len(share)))

    def profile(
        self,
        problem: RowDensities,
        theta: Tensor,
        rows: Rows,
        centre: Centre,
        part: tuple[Centre, int] | None = None,
    ) -> Profile:
        """Rows' densities along nodes placed by tails; of a `part`, all modes and one's number, its share alone."""
        placed = self._line(problem, theta, rows, centre, part)
        place, log_weight = self._line_nodes(placed)
        values = problem.vmap(self._density(problem, theta, rows, part))(place)
        return Profile(placed, values + log_weight - placed.log_step(len(place)))

    def centre(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Centre:
        """Modes and curvatures of the rows' latents at θ (D,), by Newton's method; constants for derivatives."""
        theta, newton = theta.detach(), self.newton_ascent
        start = self.start(problem, theta, rows)
        if self.by_parabola:
            return newton.parabola_top(newton.start_at(problem, theta, rows, start))
        return newton.ascend(problem, theta, rows, start, self.mode_steps or self.max_mode_steps)

    def centre_near(self, problem: RowDensities, theta: Tensor, rows: Rows, near: NearbyModes) -> Centre:
        """Modes of the rows' latents at θ (D,), from what is known near it, and curvatures a step before them."""
        here, newton = theta.detach(), self.newton_ascent
        state = newton.start_at(problem, here, rows, near.modes(here))
        *before, last = near.steps.unbind()
        for share in before:
            state = newton.step(problem, here, rows, state, share)
        end = newton.centre_of(state)  # of the last step nothing is looked at but its beginning
        step = last * solve_lower_transposed(end.factor, solve_lower(end.factor, state.here.score))
        return end._replace(mode=(end.mode + step).detach())

    def centres(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Centre:
        """All modes and curvatures at θ (D,), (J, m, ...): by ascent from zero, then from `starts`."""
        first = self.centre(problem, theta, rows)
        if not self.starts:
            return Centre(*(part.unsqueeze(0) for part in first))
        here = theta.detach()

        def ascend(start: Tensor) -> Centre:
            return self.newton_ascent.ascend(problem, here, rows, start.expand_as(first.mode), self.max_mode_steps)

        others = problem.vmap(ascend)(torch.tensor(self.starts, dtype=here.dtype, device=here.device))
        return without_failed_ascents(
            Centre(*(torch.cat([a.unsqueeze(0), b]) for a, b in zip(first, others, strict=True)))
        )

    @property
    def of_scores(self) -> Quadrature:
        """The rule for values and scores alone: fewer nodes where modes are those of parabolas."""
        return replace(self, order=min(SCORE_ORDER, self.order)) if self.by_parabola and self.order else self

    def from_places(self, starts: tuple[tuple[float, ...], ...]) -> Quadrature:
        """These settings with other `starts`."""
        return replace(self, starts=starts)

    @property
    def newton_ascent(self) -> LatentAscent:
        """The search for modes, with these settings."""
        return LatentAscent(self.shorten, self.floor)

    def start(self, problem: RowDensities, theta: Tensor, rows: Rows) -> Tensor:
        """Starts (m, d) of the rows' mode searches."""
        dim = problem.local_dim
        offset = (ASCENT_OFFSET if self.by_tails(dim) else 0.0) if self.offset is None else self.offset
        return (offset * (1 + torch.arange(dim, dtype=theta.dtype, device=theta.device) / dim)).expand(len(rows[0]), -1)


def _is_finite(start: Ascent) -> Tensor:
    """Whether log densities, scores and curvatures of all rows are finite at each θ, (S,)."""
    return torch.stack([part.isfinite().flatten(1).all(1) for part in start.here]).all(0)


def by_curvature(centre: Centre, units: Tensor, log_weights: Tensor) -> Nodes:
    """A rule for N(0, I), (Q, d) and log weights (Q,), at the modes of rows and in units of their curvatures there."""
    units, log_weights = units.to(centre.mode), log_weights.to(centre.mode)
    log_weight = (log_weights + 0.5 * units.square().sum(-1)).unsqueeze(-1) - log_det_lower(centre.factor)
    constant = 0.5 * units.shape[-1] * math.log(2 * math.pi)
    return Nodes(centre.places_at(units.unsqueeze(1)), log_weight + constant)


def gauss_hermite(order: int, dim: int) -> tuple[Tensor, Tensor]:
    """The product Gauss-Hermite rule for N(0, I): nodes (order^dim, dim) and log weights, float64."""
    nodes, log_weight = _product(order, dim)
    return torch.from_numpy(nodes), torch.from_numpy(log_weight)


@lru_cache(maxsize=16)
def _product(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The rule as arrays: a tensor that is made within `grad` cannot be cached."""
    line, weight = np.polynomial.hermite_e.hermegauss(order)
    index = np.indices((order,) * dim).reshape(dim, -1).T
    return line[index], np.log(weight / weight.sum())[index].sum(-1)


@lru_cache(maxsize=8)
def sobol(count: int, dim: int) -> tuple[Tensor, Tensor]:
    """An even number of standardised Sobol points (count, dim) and log weights, float64."""

    def made() -> tuple[Tensor, Tensor]:
        points = standardised_sobol(count, dim)
        return points, points.new_full((count,), -math.log(count))

    # In a thread without `vmap`, which refuses their random scrambling, and without `grad`, see `_product`.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(made).result()
