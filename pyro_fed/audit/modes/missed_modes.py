"""Modes that a result misses: maxima of the posterior that hold mass where there is no draw.

Chains that begin at the draws do not see a mode beyond a valley. So the log density is climbed from points away from
the draws: draws of the prior (if it is proper), draws of a Student's t around the result, `AROUND_WIDTH` times as wide,
`images` of a draw, and modes that the audits of a plan's earlier stages have found. Climbs from some of the draws find
the modes that the result has. A mode counts as missed if no draw climbs to it, and no draw is nearer to it than
`SAME_MODE_SDS` + √D of the mode's own SDs.

**Modes without a draw.** Let M be the mass of a mode by Laplace's approximation, c = M / Σ M its share, and u its
distance from the result's mean in SDs. Then the result's mean is off by c u and its variance by c (1 - c) u². The
limits are those of the chains' estimates. Laplace's masses may be wrong by a factor `LAPLACE_MASS_FACTOR`, so that c /
`LAPLACE_MASS_FACTOR` must still matter. A mode with more than `NEGLIGIBLE_MASS` and no draw is always reported.

**Modes without their share of the draws.** If Laplace's masses do not decide, the masses are estimated by importance
weights (`climbs`), with more points if a difference that would matter may be chance. Let e be the share of the draws
that are nearest to a mode. Then the mean is off by Σ (c - e) u and the variance by Σ (c - e) u², where each difference
is first made smaller by three standard errors. Weights may fail for one mode, for example of several slabs with ridges
beside a spike. Then the logarithm of its mass is taken half-way between the weights' and Laplace's (scaled first so
that Laplace's masses of the other modes agree with their weights), and its error is log `LAPLACE_MASS_FACTOR` plus half
of the distance between the two.

**Many rows.** The climbs use few of the rows (`target`), whose modes are near those of all. Newton's steps with all
rows go on from there.

**Symmetries.** Modes of equal mass may be images of one another, as by a relabelling of a mixture's components
(`density.symmetry`). A run then moves its draws to all of them; of draws that cannot be moved, the finding states that
one of the modes predicts as well as all.

A plateau or a long tail has no maximum and is not found here, but by chains.
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

#: How much wider than the draws the points around them are.
AROUND_WIDTH = 5.0
#: Factor by which Laplace's masses may be wrong.
LAPLACE_MASS_FACTOR = 3.0
#: A draw belongs to none of the known modes if it is more than this many times as far from each of them as a mode's own
#: draws are. As many are looked for among the draws as there may be groups.
UNKNOWN_MODE_DISTANCE = 3.0
#: How often Newton's steps towards a mode begin anew, each time with the square of the error before.
NEWTON_RESTARTS = 3


def missed_modes(evidence: Evidence, strict: bool = False) -> list[Finding]:
    """One finding on modes without draws or without their shares of them, also near the limits if `strict`; or none."""
    target, dim = evidence.target, evidence.problem.dim
    if target is None:
        return []
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 1)
    few = on_rows_alone(target)
    numbers = climbs(evidence.problem.traits, few.far_evaluations, MAX_CLIMB_STEPS)
    if numbers is None:
        return []
    white = target.white(evidence.points)
    from_prior, from_around, from_draws = numbers
    at = torch.linspace(0, len(white) - 1, from_draws).long()
    own = white[at]
    far = _distant_points(evidence, target, from_prior, from_around, generator)
    far.append(target.white(evidence.problem.images(evidence.points[at[0]].to(evidence.problem.dtype))))
    if evidence.record.modes:  # modes that the audit of an earlier stage has found
        far.append(target.white(torch.stack(evidence.record.modes)))
    modes, ends = _modes_and_climb_ends(evidence, target, few, torch.cat([own, *far]))
    _add_those_of_draws(evidence, target, few, modes, white)
    if evidence.weighted_points is not None:
        weights, points = evidence.weighted_points.weights, evidence.weighted_points.white
        resampled = points[systematic(weights, CHAINS, generator)]  # as many as chains begin at
        _add_those_of_draws(evidence, target, few, modes, resampled)
    evidence.record.modes[:] = [target.model(mode.at[None])[0] for mode in modes[:MAX_GROUPS]]
    add_symmetries(evidence, modes)
    climbers = [ends[number] for number in range(from_draws) if number in ends]
    seen = [
        bool((mode.distance(white) < SAME_MODE_SDS + dim**0.5).any())
        or any(float(mode.distance(end[None])) < SAME_MODE_SDS for end in climbers)
        for mode in modes
    ]
    if len(modes) < 2 or not any(seen):
        return []
    part = NEAR_LIMIT_SHARE if strict else 1.0
    shares = torch.softmax(torch.tensor([mode.log_mass for mode in modes], dtype=torch.float64), 0)
    lost = torch.where(torch.tensor(seen), 0.0, shares)
    if _matters(target, modes, lost / LAPLACE_MASS_FACTOR, part):
        return [_without_draws(evidence, target, modes, seen, shares)]
    if not affords(evidence.problem.traits, POINTS_A_ROUND * len(modes)):
        return []
    return _wrong_shares(evidence, target, modes, seen, white, generator, strict)


def _modes_and_climb_ends(
    evidence: Evidence, target: Target, few: Target, start: Tensor
) -> tuple[list[Mode], dict[int, Tensor]]:
    """Modes, and each climb's end by its number; `few`, the posterior by few rows, is climbed first."""
    rough, ends = modes_by_climbs(few, start)
    if few is target:
        return rough, ends
    exact = [_exact(evidence, target, mode) for mode in rough]
    modes: list[Mode] = []
    for mode in exact:
        add_mode(modes, mode)
    found = {}
    for number, end in ends.items():
        there = exact[int(torch.stack([mode.distance(end[None])[0] for mode in rough]).argmin())]
        if there is not None:
            found[number] = there.at
    return modes, found


def _add_those_of_draws(evidence: Evidence, target: Target, few: Target, modes: list[Mode], white: Tensor) -> None:
    """Add the modes of those draws (S, D) that are far from all known modes, one after the other."""
    dim = white.shape[1]
    while modes and len(modes) < MAX_GROUPS:
        far = torch.stack([mode.distance(white) for mode in modes]).amin(0)
        if not float(far.max()) > UNKNOWN_MODE_DISTANCE * (SAME_MODE_SDS + dim**0.5):
            return
        known, mode = len(modes), mode_by_newton(few, white[int(far.argmax())])
        if mode is not None and few is not target:
            mode = _exact(evidence, target, mode)
        add_mode(modes, mode)
        if len(modes) == known:  # the farthest draw is in the tail of a known mode
            return


def _exact(evidence: Evidence, target: Target, rough: Mode) -> Mode | None:
    """The mode of the posterior of all rows, from one found with few rows; None if Newton's steps lead to none."""
    near = evidence.few_rows_target
    if near is not None and near.few is not None:
        found = mode_by_newton(near, rough.at)
        if found is not None and bool(found.at.norm() < OUTWARD_FACTOR * len(found.at) ** 0.5):
            return found
    return mode_by_newton(target, rough.at)


def _wrong_shares(
    evidence: Evidence,
    target: Target,
    modes: list[Mode],
    seen: list[bool],
    white: Tensor,
    generator: torch.Generator,
    strict: bool,
) -> list[Finding]:
    """One finding on modes whose share of the draws is not their share of the mass, by importance weights; or none."""
    held = torch.bincount(nearest(modes, white), minlength=len(modes)) / len(white)
    part = NEAR_LIMIT_SHARE if strict else 1.0

    def counts(more: Tensor) -> bool:
        return bool(((held == 0) & (more > NEGLIGIBLE_MASS)).any()) or _matters(target, modes, more, part)

    for points in (POINTS_A_ROUND, DISTRIBUTION_DRAWS):
        if points > POINTS_A_ROUND and not affords(evidence.problem.traits, points * len(modes)):
            break
        mass, error, told = _log_masses(target, modes, points, generator)
        shares = torch.softmax(mass, 0)
        fewest, most = _bounds(mass, error * (not strict))
        more = shares - held
        plain = (fewest - held).clamp_min(0) + (most - held).clamp_max(0)
        if not counts(more) or (bool(told.all()) and counts(plain)):
            break
    by = "by importance weights" if bool(told.all()) else "by importance weights and Laplace"
    if not counts(plain):
        return []
    if not all(seen):
        return [_without_draws(evidence, target, modes, seen, shares, by)]
    lacking = plain if _matters(target, modes, plain, part) else torch.where(held == 0, plain, 0.0)
    at = int((lacking if bool((lacking > 0).any()) else lacking.abs()).argmax())
    name, shown = _place(evidence, target, modes[at], modes[0 if at else 1])
    bound, share = "", float(shares[at])
    if not bool(told.all()):
        bound, limit = ("least", fewest) if float(plain[at]) > 0 else ("most", most)
        share = float(limit[at])
    return [
        sentences.mode_shares_are_wrong(
            modes=len(modes),
            site=name,
            value=shown,
            of_draws=float(held[at]),
            of_mass=share,
            bound=bound,
            by=by,
            lost=float(shares[~torch.tensor(seen)].sum()),
            cures=[_cure(evidence)],
        )
    ]


def _log_masses(
    target: Target, modes: list[Mode], points: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Log masses of modes, their possible errors, and whether importance weights determine them, (M,) each."""
    found = [log_mass_by_weights(target, modes, number, points, generator) for number in range(len(modes))]
    mass, error = torch.tensor(found, dtype=torch.float64).T
    told = STANDARD_ERRORS * error < math.log(LAPLACE_MASS_FACTOR)  # else Laplace's masses are as exact
    rough = torch.tensor([mode.log_mass for mode in modes], dtype=torch.float64)
    rough += (mass - rough)[told].mean() if bool(told.any()) else 0.0
    between = (mass - rough).abs() / 2
    off = torch.where(told, STANDARD_ERRORS * error, math.log(LAPLACE_MASS_FACTOR) + between)
    return torch.where(told, mass, (mass + rough) / 2), off, told


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


def _matters(target: Target, modes: list[Mode], more: Tensor, part: float) -> bool:
    """Whether a mean or an SD moves by more than a part of what matters, if the modes' shares grow by `more` (M,)."""
    away = target.along(torch.stack([mode.at for mode in modes]))
    mean = more @ away
    variance = 1 + more @ away.square() - mean.square()
    moves = bool((mean.abs() > part * MATTERS * variance.clamp_min(0).sqrt()).any())
    most = SD_MATTERS ** (2 * part)
    return moves or bool(((variance > most) | (variance < 1 / most)).any())


def _without_draws(
    evidence: Evidence, target: Target, modes: list[Mode], seen: list[bool], shares: Tensor, by: str = "by Laplace"
) -> Finding:
    """The finding on modes without draws; `seen` is whether each mode has draws, `shares` are their masses' (M,)."""
    lost = float(shares[~torch.tensor(seen)].sum())
    found = [i for i, near in enumerate(seen) if near]
    missed = [mode for mode, near in zip(modes, seen, strict=True) if not near]
    if all_relabelled(evidence, target, [modes[i] for i in found], missed):
        return sentences.modes_relabelled(modes=len(modes), lost=lost)
    worst = max((i for i, near in enumerate(seen) if not near), key=lambda i: float(shares[i]))
    name, shown = _place(evidence, target, modes[worst], modes[found[0]])
    return sentences.mode_without_draws(site=name, value=shown, lost=lost, by=by, cures=[_cure(evidence)])


def _cure(evidence: Evidence) -> str:
    """A sentence, without its full stop, on algorithms that find several modes."""
    if evidence.algorithm.draws_are == "particles":
        return "Its search has not found all of them: try more particles or another seed, or a model with one mode"
    if "DSVGD" in evidence.record.planned:
        return cures.LEFT_TO_TRY
    return "DSVGD searches for modes and gives each its share of particles"


def _place(evidence: Evidence, target: Target, one: Mode, other: Mode) -> tuple[str, str]:
    """The site by which a mode differs most from another, in SDs of its draws, and its values there."""
    problem = evidence.problem
    at = target.model(torch.stack([one.at, other.at])).to(problem.dtype)
    values = problem.constrain(at, problem.fewest_rows)
    own = {name: values[name].reshape(2, -1).double() for name in problem.sites}
    tiny = torch.finfo(torch.float64).tiny

    def distance(name: str) -> float:
        site = problem.sites[name]
        sds = evidence.flat[:, site.start : site.start + site.size].double().std(0)
        return float((own[name][0] - own[name][1]).abs().max() / max(float(sds.max()), tiny))

    name = max(own, key=distance)
    return name, ", ".join(f"{x:.3g}" for x in own[name][0][:4].tolist())


def add_symmetries(evidence: Evidence, modes: list[Mode]) -> None:
    """Add the new maps between modes of equal mass under which the posterior is the same to the record's symmetries."""
    known = evidence.record.symmetries
    alike = [[other for other in modes if _equal(one, other)] for one in modes]
    if all(len(each) == 1 for each in alike):
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

    points = _points(evidence, target)
    for number, mode in enumerate(modes):
        for other in (one for one in modes[:number] if _equal(one, mode)):
            found = symmetry.between(problem, place(other), place(mode))
            group = symmetry.group_of(known) if known else []
            if found is None or group is None or any(found.key == one.key for one in group):
                continue  # none, or a product of known ones
            if symmetry.holds(problem, found, points, lambda z: target.values(target.white(z))):
                known.append(found)


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
        alike = [start for one, start in zip(seen, starts, strict=True) if _equal(one, mode)]
        return any(bool(((each(start) - end).abs() < spread).all()) for start in alike for each in group)

    return all(is_image(mode, end) for mode, end in zip(missed, ends, strict=True))


def _equal(one: Mode, other: Mode) -> bool:
    """Whether two modes have the same mass."""
    return abs(one.log_mass - other.log_mass) <= NEGLIGIBLE


def _points(evidence: Evidence, target: Target) -> Tensor:
    """Points (M, D) that have nothing to do with modes: draws of the prior, or around the result if it is improper."""
    if evidence.from_prior is not None:
        return evidence.from_prior[:NUM_DRAWS].double()
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 9)
    shape = NUM_DRAWS, evidence.problem.dim
    return target.model(2 * torch.randn(shape, generator=generator, dtype=torch.float64))
