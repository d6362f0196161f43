"""Modes that a result misses: maxima of the posterior, found from far away, that hold mass where no draw is.

Chains that begin at the draws see no mode that is beyond a valley. So points that lie apart from them (draws of the
prior where it is proper, and of a Student's t around the result, `SPREAD` times as wide) climb the log density f, by
BFGS in the result's whitened coordinates,

    w ← w + α B ∇f(w),     B an inverse curvature from the score's changes along the way,  α halved until f rises

and some of the draws climb with them, to the modes that the result has. Where a climb ends with |∇f| small, and the
curvature H there (differences of scores) is positive definite, there is a mode, of mass

    log M = f - log |H| / 2                                            (Laplace)

up to a constant. One is missed if it is none of the modes that draws climb to and no draw is within `NEAR` of its own
SDs. With c its share of the mass, M / Σ M over all modes, and u how far it is in the result's SDs, the result's mean is
off by c u, and its variance by c (1 - c) u²: the same limits hold as for all that is `moved`.

Laplace's masses may be wrong by a factor `ROUGH`: c must matter with that much less. A plateau or a long tail has no
maximum and is none: what it holds beyond the draws is found by chains. Modes that are one another's relabelling (equal
in mass, and in the values of every site but for their order) are what a mixture's posterior has by nature: for
predictions one is as good as all, and the sentence says so.

A result that is a point has no draws to judge. It is judged by its distance from the mode that it climbs to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.motion import DENSITIES
from pyro_fed.audit.target import Target
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS

#: Climbs from the prior, from around the result, and from its draws.
FROM_PRIOR, FROM_AROUND, FROM_DRAWS = 16, 8, 4
#: How much wider than the draws the points around them are, and the freedom of their Student's t.
SPREAD, FREEDOM = 5.0, 5
#: Steps of a climb, and the gradient's length, in the metric of B, at which it has arrived.
CLIMB, ARRIVED = 60, 0.05
#: Longest step, in the result's SDs (from far away a quarter of the distance), and how often it is cut to a fifth.
LONGEST, SHORTENED = 3.0, 6
#: Modes nearer to each other than this, in the SDs of either, are one; draws nearer to a mode than that have seen it.
NEAR = 2.0
#: Half the distance over which scores are compared for the curvature, in the result's SDs.
APART = 1e-3
#: Factor by which Laplace's masses may be wrong.
ROUGH = 3.0
#: More parameters than this are not searched: a curvature there costs as many scores.
LARGEST_DIM = 50
#: Modes of equal mass, to within so much of log M, may be each other's relabelling; and how equal their values are.
EQUAL_MASS, EQUAL = 0.1, 0.05


@dataclass(frozen=True)
class Mode:
    """A maximum.

    Args:
        at: w (D,).
        log_mass: log M.
        precision: H (D, D).
    """

    at: Tensor
    log_mass: float
    precision: Tensor

    def distance(self, white: Tensor) -> Tensor:
        """Of points w (S, D), in SDs of this mode: (S,)."""
        away = white - self.at
        return torch.einsum("sd,de,se->s", away, self.precision, away).clamp_min(0).sqrt()


def missed(evidence: Evidence) -> list[str]:
    """Modes that no draw is near.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none.
    """
    target, dim = evidence.target, evidence.problem.dim
    if target is None or dim > LARGEST_DIM or evidence.problem.looped:
        return []
    if evidence.problem.evaluations * CLIMB * (FROM_PRIOR + FROM_AROUND + FROM_DRAWS) > DENSITIES:
        return []
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 1)
    white = target.white(evidence.points)
    own = white[torch.linspace(0, len(white) - 1, FROM_DRAWS).long()]
    ends, arrived = climbed(target, torch.cat([own, *_far(evidence, target, generator)]))
    modes: list[Mode] = []
    for end in ends[arrived]:
        if not any(float(mode.distance(end[None])) < NEAR for mode in modes):
            mode = mode_at(target, end)
            if mode is not None and not any(_same(mode, other) for other in modes):
                modes.append(mode)
    climbers = ends[:FROM_DRAWS][arrived[:FROM_DRAWS]]
    seen = [
        bool((mode.distance(white) < NEAR + dim**0.5).any() or (mode.distance(climbers) < NEAR).any()) for mode in modes
    ]
    if all(seen) or not any(seen):
        return []
    log_masses = torch.tensor([mode.log_mass for mode in modes], dtype=torch.float64)
    unseen = [mode for mode, near in zip(modes, seen, strict=True) if not near]
    if _matters(target, unseen, torch.softmax(log_masses, 0)[~torch.tensor(seen)]):
        return [_sentence(evidence, target, modes, seen, torch.softmax(log_masses, 0))]
    return []


def off_mode(evidence: Evidence) -> list[str]:
    """A point that is not the posterior's mode, as near as it may be.

    Args:
        evidence: the result.

    Returns:
        One sentence, or none: of distributions, and of points from which no climb arrives.
    """
    problem, points = evidence.problem, evidence.flat.double()
    if evidence.algorithm.draws_are != "point" or problem.dim > LARGEST_DIM or problem.looped:
        return []
    if problem.evaluations * (CLIMB + problem.dim) > DENSITIES:
        return []
    target = Target.around(problem, points.mean(0), evidence.temperature)
    ends, arrived = climbed(target, target.white(points.mean(0)[None]))
    mode = mode_at(target, ends[0]) if bool(arrived[0]) else None
    if mode is None:
        return []
    sd = torch.linalg.inv(mode.precision).diagonal().sqrt()
    away = ((target.white(points) - mode.at) / sd).abs().amax(0)
    if not float(away.max()) > MATTERS:
        return []
    without = ", and prior=True, without which it is not what it aims at" if not _prior(evidence) else ""
    return [
        f"this point is not the posterior's mode: '{problem.name_of(int(away.argmax()))}' is {float(away.max()):.2f} "
        f"posterior SDs (by Laplace) from it. Take more rounds, with fewer steps each or shorter ones{without}; FedEP "
        "and FedLaplace give SDs too"
    ]


def _prior(evidence: Evidence) -> bool:
    """Whether a point's algorithm takes the prior into account."""
    return bool(getattr(evidence.algorithm, "prior", True))


def _far(evidence: Evidence, target: Target, generator: torch.Generator) -> list[Tensor]:
    """Points apart from the draws: of the prior where it is proper, and of a Student's t around them."""
    shape = FROM_AROUND, evidence.problem.dim
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    chi = torch.randn(FROM_AROUND, FREEDOM, generator=generator, dtype=torch.float64).square().mean(1, keepdim=True)
    around = SPREAD * normal / chi.sqrt()
    if evidence.problem.layout.improper:
        return [around]
    return [around, target.white(evidence.problem.init(FROM_PRIOR, generator))]


def _matters(target: Target, unseen: list[Mode], shares: Tensor) -> bool:
    """Whether modes with these shares of the mass move a mean or an SD by what matters."""
    away = target.along(torch.stack([mode.at for mode in unseen]))
    share = (shares / ROUGH)[:, None]
    mean = share.T @ away
    variance = 1 + share.T @ away.square() - mean.square()
    return bool((mean.abs() > MATTERS * variance.sqrt()).any() or (variance > SD_MATTERS**2).any())


def _same(one: Mode, other: Mode) -> bool:
    return min(float(one.distance(other.at[None])), float(other.distance(one.at[None]))) < NEAR


def _sentence(evidence: Evidence, target: Target, modes: list[Mode], seen: list[bool], shares: Tensor) -> str:
    """What to say of modes that are missed."""
    problem = evidence.problem
    lost = float(shares[~torch.tensor(seen)].sum())
    values = problem.constrain(target.model(torch.stack([m.at for m in modes])).to(problem.dtype), problem.fewest_rows)
    places = {name: values[name].reshape(len(modes), -1).double() for name in problem.sites}
    found = [i for i, near in enumerate(seen) if near]
    if all(any(_relabelled(modes, places, i, j) for j in found) for i, near in enumerate(seen) if not near):
        return (
            f"the posterior has {len(modes)} modes that differ by the order of their components alone, and these draws "
            "are of one order: they predict as well as all, but means and SDs of single components, and the evidence, "
            "are those of this order. Order the components in the model, or read them so"
        )
    worst = max((i for i, near in enumerate(seen) if not near), key=lambda i: float(shares[i]))
    name = max(places, key=lambda n: float((places[n][worst] - places[n][found[0]]).abs().max() / _spread(evidence, n)))
    shown = ", ".join(f"{x:.3g}" for x in places[name][worst][:4].tolist())
    return (
        f"the posterior has another mode, with about {100 * lost:.2g} % of its mass (by Laplace), where "
        f"none of these draws is: '{name}' is {shown} there. DSVGD searches for modes and gives each its share of "
        "particles; means and SDs of one mode are not the posterior's"
    )


def _spread(evidence: Evidence, name: str) -> float:
    site = evidence.problem.sites[name]
    return max(float(evidence.flat[:, site.start : site.start + site.size].double().std(0).max()), 1e-12)


def _relabelled(modes: list[Mode], places: dict[str, Tensor], i: int, j: int) -> bool:
    """Whether two modes are equal in mass, and in the values of every site but for their order."""
    if abs(modes[i].log_mass - modes[j].log_mass) > EQUAL_MASS:
        return False
    ordered = [(v[i].sort().values, v[j].sort().values) for v in places.values()]
    return all(torch.allclose(one, other, rtol=EQUAL, atol=EQUAL) for one, other in ordered)


def climbed(target: Target, start: Tensor) -> tuple[Tensor, Tensor]:
    """Where climbs from w (M, D) end, (M, D), and which of them have arrived, (M,)."""
    w = start
    value, score = target(w)
    count, dim = w.shape
    inverse = torch.eye(dim, dtype=w.dtype).repeat(count, 1, 1)
    step = torch.ones(count, dtype=w.dtype)
    longest = torch.full((count, 1), LONGEST, dtype=w.dtype)
    left_over = torch.full_like(step, torch.inf)
    for _ in range(CLIMB):
        direction = (inverse @ score[..., None])[..., 0]
        length = direction.norm(dim=1, keepdim=True)
        direction = direction * (torch.maximum(w.norm(dim=1, keepdim=True) / 4, longest) / length).clamp(max=1.0)
        trial = w + step[:, None] * direction
        risen, slope = target(trial)
        rose = (risen >= value) & risen.isfinite()
        s, y = trial - w, score - slope
        along = (s * y).sum(1)
        good = rose & (along > 1e-10 * s.norm(dim=1) * y.norm(dim=1))
        rho = torch.where(good, 1 / along, 0.0)[:, None, None]
        left = torch.eye(dim, dtype=w.dtype) - rho * s[:, :, None] * y[:, None, :]
        updated = left @ inverse @ left.mT + rho * s[:, :, None] * s[:, None, :]
        inverse = torch.where(good[:, None, None], updated, inverse)
        # A direction that does not rise even when it is short is forgotten.
        lost = ~rose & (step < 0.2**SHORTENED)
        inverse = torch.where(lost[:, None, None], torch.eye(dim, dtype=w.dtype), inverse)
        step = torch.where(rose | lost, 1.0, step / 5)
        w = torch.where(rose[:, None], trial, w)
        value = torch.where(rose, risen, value)
        score = torch.where(rose[:, None], slope, score)
        left_over = (score * (inverse @ score[..., None])[..., 0]).sum(1).clamp_min(0).sqrt()
        if bool((left_over < ARRIVED).all()):
            break
    return w, (left_over < ARRIVED) & value.isfinite()


def mode_at(target: Target, w: Tensor) -> Mode | None:
    """The mode at w (D,), polished by a Newton step; None where the curvature is not positive definite."""
    dim = len(w)
    eye = torch.eye(dim, dtype=w.dtype) * APART
    for _ in range(2):
        _, score = target(torch.cat([w + eye, w - eye]))
        gap = -(score[:dim] - score[dim:]) / (2 * APART)
        precision = (gap + gap.T) / 2
        factor, info = torch.linalg.cholesky_ex(precision)
        if int(info):
            return None
        step = torch.cholesky_solve(target(w[None])[1].T, factor)[:, 0]
        if float((precision @ step) @ step) > 1:
            return None
        w = w + step
    value = float(target(w[None])[0])
    if not math.isfinite(value):
        return None
    return Mode(w, value - float(factor.diagonal().log().sum()), precision)
