"""Symmetries of the posterior, from modes of equal mass that are images of each other, see `density.symmetry`."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.modes.climbs import Mode, mode_by_newton
from pyro_fed.audit.target import Target
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density import symmetry
from pyro_fed.density.symmetry import Symmetry

#: Points at which a map is compared with the identity; and how often Newton's steps towards a mode begin anew, each
#: time with the square of the error before.
POINTS, REFINEMENTS = 8, 3


def add_symmetries(evidence: Evidence, modes: list[Mode]) -> None:
    """Add the maps between modes of equal mass under which the posterior is the same to the record's symmetries.

    A map that follows from those in the record is not added.
    """
    known = evidence.record.symmetries
    alike = [[other for other in modes if _equal(one, other)] for one in modes]
    if all(len(each) == 1 for each in alike):
        return
    problem = evidence.problem.doubled()
    target = Target.of(problem, evidence.flat, evidence.temperature)
    places: dict[int, Tensor] = {}

    def place(mode: Mode) -> Tensor:
        if id(mode) not in places:
            places[id(mode)] = target.model(_refined(target, mode).at[None])[0]
        return places[id(mode)]

    points = _points(evidence, target)
    for number, mode in enumerate(modes):
        for other in (one for one in modes[:number] if _equal(one, mode)):
            found = symmetry.between(problem, place(other), place(mode))
            if found is None or _follows(found, known):
                continue
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


def _refined(target: Target, mode: Mode) -> Mode:
    """The mode, to the precision of float64."""
    for _ in range(REFINEMENTS):
        mode = mode_by_newton(target, mode.at) or mode
    return mode


def _points(evidence: Evidence, target: Target) -> Tensor:
    """Points (M, D) that have nothing to do with modes: draws of the prior, or around the result if it is improper."""
    if evidence.from_prior is not None:
        return evidence.from_prior[:POINTS].double()
    generator = seeding.torch_generator(evidence.seed, seeding.AUDIT, 9)
    return target.model(2 * torch.randn(POINTS, evidence.problem.dim, generator=generator, dtype=torch.float64))


def _follows(found: Symmetry, known: list[Symmetry]) -> bool:
    """Whether a map is a product of known ones."""
    group = symmetry.group_of(known) if known else []
    return group is None or any(found.key == one.key for one in group)
