"""Modes that a result misses: maxima of the posterior with mass but no draws.

Chains that begin at the draws do not reach a mode beyond a valley. So climbs of the log density begin at points away
from the draws: draws of the prior (if it is proper), draws of a Student's t around the result, `AROUND_WIDTH` times as
wide, `images` of a draw, and modes found by the audits of a plan's earlier stages. Climbs from some of the draws find
the modes that the result has. A mode counts as missed if no draw climbs to it, and no draw is nearer to it than
`SAME_MODE_SDS` + √D of the mode's own SDs.

**Modes without draws.** Let M be the mass of a mode by Laplace's approximation, c = M / Σ M its share, and u its
distance from the result's mean in SDs. Then the result's mean is off by c u and its variance by c (1 - c) u². The
limits are those of the chains' estimates. Laplace's masses may be wrong by a factor `LAPLACE_MASS_FACTOR`, so that c /
`LAPLACE_MASS_FACTOR` must still matter. A mode with more than `NEGLIGIBLE_MASS` and no draw is always reported.

**Modes with a wrong share of the draws.** If Laplace's masses do not decide, the masses are estimated by importance
weights (`climbs`), with more points if a difference that would matter may be chance. Let e be the share of the draws
that are nearest to a mode. Then the mean is off by Σ (c - e) u and the variance by Σ (c - e) u², where each difference
is first reduced by three standard errors. Weights may fail for one mode, for example for slabs with ridges beside a
spike. Then its log mass is half-way between the weights' and Laplace's, and its error is log `LAPLACE_MASS_FACTOR` plus
half the distance between the two. Laplace's masses are first scaled to agree with the weights for the other modes.

**Many rows.** The climbs use few of the rows (`target`), whose modes are near those of all. Newton steps with all rows
continue from these modes.

**Symmetries.** Modes of equal mass may be images of one another, as under a relabelling of a mixture's components
(`density.symmetry`). A run then spreads its draws over all of them. If draws cannot be spread, the finding states that
one of the modes predicts as well as all.

A plateau or a long tail has no maximum: chains find it, climbs do not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.audit.evidence import DISTRIBUTION_DRAWS, MAX_GROUPS, Evidence
from pyro_fed.audit.modes.climbs import (
    MAX_CLIMB_STEPS,
    SAME_MODE_SDS,
    Mode,
    add_mode,
    log_mass_by_weights,
    mode_by_newton,
    modes_by_climbs,
    nearest,
)
from pyro_fed.audit.target import OUTWARD_FACTOR, Target, on_rows_alone
from pyro_fed.audit.weighted_points import POINTS_A_ROUND
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import (
    MATTERS,
    NEAR_LIMIT_SHARE,
    NEGLIGIBLE,
    NEGLIGIBLE_MASS,
    SD_MATTERS,
    STANDARD_ERRORS,
)
from pyro_fed.density import symmetry
from pyro_fed.density.checks.points import NUM_DRAWS
from pyro_fed.ops.adaptive_importance import FREEDOM
from pyro_fed.ops.entries import CANDIDATES, far_apart
from pyro_fed.ops.importance import systematic
from pyro_fed.ops.student import Mixture
from pyro_fed.policy.audit import CHAINS, affords, climbs

#: Width of the points around the draws, in the draws' SDs.
AROUND_WIDTH = 5.0
#: Largest factor by which Laplace's masses may be wrong.
LAPLACE_MASS_FACTOR = 3.0
#: A draw belongs to no known mode if it is more than this many times as far from each mode as the mode's own draws are.
UNKNOWN_MODE_DISTANCE = 3.0
#: Number of restarts of Newton steps towards a mode. Each squares the error before.
NEWTON_RESTARTS = 3


def missed_modes(evidence: Evidence, strict: bool = False) -> list[Finding]:
    """One finding on modes without draws or with wrong shares of them, or none; `strict`: also near the limits."""
    target, dim = evidence.target, evidence.problem.dim
    if target is None:
        return []
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 1)
    few_rows = on_rows_alone(target)
    numbers = climbs(evidence.problem.traits, few_rows.far_evaluations, MAX_CLIMB_STEPS)
    if numbers is None:
        return []
    white = target.white(evidence.points)
    from_prior, from_around, from_draws = numbers
    at = torch.linspace(0, len(white) - 1, from_draws).long()
    start_draws = white[at]
    distant = _distant_points(evidence, target, from_prior, from_around, generator)
    distant.append(target.white(evidence.problem.images(evidence.points[at[0]].to(evidence.problem.dtype))))
    if evidence.record.modes:  # found by the audit of an earlier stage
        distant.append(target.white(torch.stack(evidence.record.modes)))
    modes, ends = _modes_and_climb_ends(evidence, target, few_rows, torch.cat([start_draws, *distant]))
    _add_modes_of_draws(evidence, target, few_rows, modes, white)
    if evidence.weighted_points is not None:
        weights, points = evidence.weighted_points.weights, evidence.weighted_points.white
        resampled = points[systematic(weights, CHAINS, generator)]  # as many as chains begin at
        _add_modes_of_draws(evidence, target, few_rows, modes, resampled)
    add_symmetries(evidence, modes)
    climbers = [ends[number] for number in range(from_draws) if number in ends]
    has_draws = [
        bool((mode.distance(white) < SAME_MODE_SDS + dim**0.5).any())
        or any(float(mode.distance(end[None])) < SAME_MODE_SDS for end in climbers)
        for mode in modes
    ]
    order = sorted(range(len(modes)), key=lambda i: (has_draws[i], -modes[i].log_mass))
    evidence.record.modes[:] = [target.model(modes[i].at[None])[0] for i in order[:MAX_GROUPS]]
    if len(modes) < 2 or not any(has_draws):
        return []
    limit_share = NEAR_LIMIT_SHARE if strict else 1.0
    shares = torch.softmax(torch.tensor([mode.log_mass for mode in modes], dtype=torch.float64), 0)
    lost = torch.where(torch.tensor(has_draws), 0.0, shares)
    if _matters(target, modes, lost / LAPLACE_MASS_FACTOR, limit_share):
        return [_no_draws_finding(evidence, target, modes, has_draws, shares)]
    if not affords(evidence.problem.traits, POINTS_A_ROUND * len(modes)):
        return []
    return _wrong_shares_findings(evidence, target, modes, has_draws, white, generator, strict)


def _modes_and_climb_ends(
    evidence: Evidence, target: Target, few_rows: Target, start: Tensor
) -> tuple[list[Mode], dict[int, Tensor]]:
    """Modes, and each climb's end by its number; climbs begin with `few_rows`, the posterior by few rows."""
    rough, ends = modes_by_climbs(few_rows, start)
    if few_rows is target:
        return rough, ends
    exact = [_mode_of_all_rows(evidence, target, mode) for mode in rough]
    modes: list[Mode] = []
    for mode in exact:
        add_mode(modes, mode)
    exact_ends = {}
    for number, end in ends.items():
        mode_of_all_rows = exact[int(torch.stack([mode.distance(end[None])[0] for mode in rough]).argmin())]
        if mode_of_all_rows is not None:
            exact_ends[number] = mode_of_all_rows.at
    return modes, exact_ends


def _add_modes_of_draws(evidence: Evidence, target: Target, few_rows: Target, modes: list[Mode], white: Tensor) -> None:
    """Add the modes of the draws (S, D) that are far from all known modes, one after the other."""
    dim = white.shape[1]
    while modes and len(modes) < MAX_GROUPS:
        distances = torch.stack([mode.distance(white) for mode in modes]).amin(0)
        if not float(distances.max()) > UNKNOWN_MODE_DISTANCE * (SAME_MODE_SDS + dim**0.5):
            return
        known, mode = len(modes), mode_by_newton(few_rows, white[int(distances.argmax())])
        if mode is not None and few_rows is not target:
            mode = _mode_of_all_rows(evidence, target, mode)
        add_mode(modes, mode)
        if len(modes) == known:  # the farthest draw is in the tail of a known mode
            return


def _mode_of_all_rows(evidence: Evidence, target: Target, rough: Mode) -> Mode | None:
    """The mode of the posterior of all rows, from one found with few rows; None if Newton steps lead to none."""
    near = evidence.few_rows_target
    if near is not None and near.few is not None:
        mode = mode_by_newton(near, rough.at)
        if mode is not None and bool(mode.at.norm() < OUTWARD_FACTOR * len(mode.at) ** 0.5):
            return mode
    return mode_by_newton(target, rough.at)


def _wrong_shares_findings(
    evidence: Evidence,
    target: Target,
    modes: list[Mode],
    has_draws: list[bool],
    white: Tensor,
    generator: torch.Generator,
    strict: bool,
) -> list[Finding]:
    """One finding on modes whose shares of the draws and of the mass differ, by importance weights; or none."""
    draw_shares = torch.bincount(nearest(modes, white), minlength=len(modes)) / len(white)
    limit_share = NEAR_LIMIT_SHARE if strict else 1.0

    def counts(excess: Tensor) -> bool:
        return bool(((draw_shares == 0) & (excess > NEGLIGIBLE_MASS)).any()) or _matters(
            target, modes, excess, limit_share
        )

    for points in (POINTS_A_ROUND, DISTRIBUTION_DRAWS):
        if points > POINTS_A_ROUND and not affords(evidence.problem.traits, points * len(modes)):
            break
        mass, error, determined = _log_masses(target, modes, points, generator)
        shares = torch.softmax(mass, 0)
        lowest, highest = _bounds(mass, error * (not strict))
        excess = shares - draw_shares
        sure_excess = (lowest - draw_shares).clamp_min(0) + (highest - draw_shares).clamp_max(0)
        if not counts(excess) or (bool(determined.all()) and counts(sure_excess)):
            break
    by = "by importance weights" if bool(determined.all()) else "by importance weights and Laplace"
    if not counts(sure_excess):
        return []
    if not all(has_draws):
        return [_no_draws_finding(evidence, target, modes, has_draws, shares, by)]
    lacking = (
        sure_excess
        if _matters(target, modes, sure_excess, limit_share)
        else torch.where(draw_shares == 0, sure_excess, 0.0)
    )
    worst = int((lacking if bool((lacking > 0).any()) else lacking.abs()).argmax())
    name, values = _differing_site(evidence, target, modes[worst], modes[0 if worst else 1])
    bound, share = "", float(shares[worst])
    if not bool(determined.all()):
        bound, limit = ("least", lowest) if float(sure_excess[worst]) > 0 else ("most", highest)
        share = float(limit[worst])
    return [
        sentences.mode_shares_are_wrong(
            modes=len(modes),
            site=name,
            value=values,
            of_draws=float(draw_shares[worst]),
            of_mass=share,
            bound=bound,
            by=by,
            lost=float(shares[~torch.tensor(has_draws)].sum()),
            cures=[_cure(evidence)],
        )
    ]


def _log_masses(
    target: Target, modes: list[Mode], points: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Log masses of modes, their possible errors, and whether importance weights determine them, (M,) each."""
    estimates = [log_mass_by_weights(target, modes, number, points, generator) for number in range(len(modes))]
    mass, error = torch.tensor(estimates, dtype=torch.float64).T
    determined = STANDARD_ERRORS * error < math.log(LAPLACE_MASS_FACTOR)  # else Laplace's masses are as accurate
    laplace = torch.tensor([mode.log_mass for mode in modes], dtype=torch.float64)
    laplace += (mass - laplace)[determined].mean() if bool(determined.any()) else 0.0
    between = (mass - laplace).abs() / 2
    possible_error = torch.where(determined, STANDARD_ERRORS * error, math.log(LAPLACE_MASS_FACTOR) + between)
    return torch.where(determined, mass, (mass + laplace) / 2), possible_error, determined


def _bounds(mass: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest shares (M,) of modes whose log masses (M,) have errors up to `error` (M,)."""
    against = 1 - 2 * torch.eye(len(mass), dtype=mass.dtype)
    return (mass + against * error).softmax(1).diagonal(), (mass - against * error).softmax(1).diagonal()


def _distant_points(
    evidence: Evidence, target: Target, from_prior: int, from_around: int, generator: torch.Generator
) -> list[Tensor]:
    """Points of a Student's t around the draws, and draws of the prior, none if it is improper."""
    drawn, eye = torch.tensor([float(from_around)]), torch.eye(evidence.problem.dim, dtype=torch.float64)
    around = Mixture(drawn, torch.zeros_like(eye[:1]), AROUND_WIDTH * eye[None]).draws(FREEDOM, generator)
    if evidence.from_prior is None:
        return [around]
    drawn = evidence.from_prior[: CANDIDATES * from_prior]
    return [around, target.white(drawn[far_apart(drawn, from_prior)])]


def _matters(target: Target, modes: list[Mode], excess: Tensor, limit_share: float) -> bool:
    """Whether growth of the modes' shares by `excess` (M,) moves a mean or SD by `limit_share` of what matters."""
    away = target.along(torch.stack([mode.at for mode in modes]))
    mean = excess @ away
    variance = 1 + excess @ away.square() - mean.square()
    moves = bool((mean.abs() > limit_share * MATTERS * variance.clamp_min(0).sqrt()).any())
    max_variance = SD_MATTERS ** (2 * limit_share)
    return moves or bool(((variance > max_variance) | (variance < 1 / max_variance)).any())


def _no_draws_finding(
    evidence: Evidence, target: Target, modes: list[Mode], has_draws: list[bool], shares: Tensor, by: str = "by Laplace"
) -> Finding:
    """The finding on modes without draws, from whether each mode has draws, and the modes' shares of the mass (M,)."""
    lost = float(shares[~torch.tensor(has_draws)].sum())
    with_draws = [i for i, near in enumerate(has_draws) if near]
    missed = [mode for mode, near in zip(modes, has_draws, strict=True) if not near]
    if all_relabelled(evidence, target, [modes[i] for i in with_draws], missed):
        return sentences.modes_relabelled(modes=len(modes), lost=lost)
    worst = max((i for i, near in enumerate(has_draws) if not near), key=lambda i: float(shares[i]))
    name, values = _differing_site(evidence, target, modes[worst], modes[with_draws[0]])
    return sentences.mode_without_draws(site=name, value=values, lost=lost, by=by, cures=[_cure(evidence)])


def _cure(evidence: Evidence) -> str:
    """A sentence, without its full stop, on algorithms that find several modes."""
    if evidence.algorithm.draws_are == "particles":
        return "The search for modes has missed some: try more particles, another seed, or a model with one mode"
    if "DSVGD" in evidence.record.planned:
        return cures.LEFT_TO_TRY
    return "DSVGD searches for modes and gives each its share of particles"


def _differing_site(evidence: Evidence, target: Target, one: Mode, other: Mode) -> tuple[str, str]:
    """The site at which a mode differs most from another, in SDs of the draws, and the mode's values there."""
    problem = evidence.problem
    at = target.model(torch.stack([one.at, other.at])).to(problem.dtype)
    values = problem.constrain(at, problem.fewest_rows)
    site_values = {name: values[name].reshape(2, -1).double() for name in problem.sites}
    tiny = torch.finfo(torch.float64).tiny

    def distance(name: str) -> float:
        site = problem.sites[name]
        sds = evidence.flat[:, site.start : site.start + site.size].double().std(0)
        return float((site_values[name][0] - site_values[name][1]).abs().max() / max(float(sds.max()), tiny))

    name = max(site_values, key=distance)
    return name, ", ".join(f"{x:.3g}" for x in site_values[name][0][:4].tolist())


def add_symmetries(evidence: Evidence, modes: list[Mode]) -> None:
    """Add to the record's symmetries the new maps between modes of equal mass that leave the posterior invariant."""
    known = evidence.record.symmetries
    equal_modes = [[other for other in modes if _have_equal_mass(one, other)] for one in modes]
    if all(len(each) == 1 for each in equal_modes):
        return
    problem = evidence.problem.doubled()
    target = Target.of(problem, evidence.flat, evidence.temperature)
    places: dict[int, Tensor] = {}

    def place(mode: Mode) -> Tensor:
        if id(mode) not in places:
            refined = mode
            for _ in range(NEWTON_RESTARTS):
                refined = mode_by_newton(target, refined.at) or refined
            places[id(mode)] = target.model(refined.at[None])[0]
        return places[id(mode)]

    points = _points_apart(evidence, target)
    for number, mode in enumerate(modes):
        for other in (one for one in modes[:number] if _have_equal_mass(one, mode)):
            mapping = symmetry.between(problem, place(other), place(mode))
            group = symmetry.group_of(known) if known else []
            if mapping is None or group is None or any(mapping.key == one.key for one in group):
                continue  # no symmetry, or a product of known ones
            if symmetry.holds(problem, mapping, points, lambda z: target.values(target.white(z))):
                known.append(mapping)


def all_relabelled(evidence: Evidence, target: Target, seen: list[Mode], missed: list[Mode]) -> bool:
    """Whether each of the missed modes is the image of one with draws, under a symmetry in the record."""
    if not evidence.record.symmetries:
        return False
    group = symmetry.group_of(evidence.record.symmetries) or evidence.record.symmetries
    problem = evidence.problem.doubled()
    starts, ends = (
        symmetry.entries(problem, target.model(torch.stack([one.at for one in some]))) for some in (seen, missed)
    )
    spread = symmetry.entries(problem, evidence.flat.double()).std(0).clamp_min(torch.finfo(torch.float64).tiny)

    def is_image(mode: Mode, end: Tensor) -> bool:
        starts_of_equals = [start for one, start in zip(seen, starts, strict=True) if _have_equal_mass(one, mode)]
        return any(bool(((each(start) - end).abs() < spread).all()) for start in starts_of_equals for each in group)

    return all(is_image(mode, end) for mode, end in zip(missed, ends, strict=True))


def _have_equal_mass(one: Mode, other: Mode) -> bool:
    """Whether two modes have the same mass."""
    return abs(one.log_mass - other.log_mass) <= NEGLIGIBLE


def _points_apart(evidence: Evidence, target: Target) -> Tensor:
    """Points (M, D) that do not depend on modes: draws of the prior, or points around the result if it is improper."""
    if evidence.from_prior is not None:
        return evidence.from_prior[:NUM_DRAWS].double()
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 9)
    shape = NUM_DRAWS, evidence.problem.dim
    return target.model(2 * torch.randn(shape, generator=generator, dtype=torch.float64))
