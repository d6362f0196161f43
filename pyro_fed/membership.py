"""Clients that join and leave for good: their sites are put in or taken out of an earlier run's answer.

Where every client keeps a site, the answer is q ∝ t_0 Π_k t_k, so that a client is unlearned by leaving out its site
and letting the others settle:

    pf.run(pf.FedEP(), fed, checkpoint="before")
    pf.run(pf.FedEP(), fed.without("3"), start="before")

The second run ends where a run on the remaining clients ends; it only gets there in fewer rounds. What has left the
server already, messages and draws of the first run, is not taken back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pyro_fed import partition
from pyro_fed.algorithm import Algorithm, Start
from pyro_fed.checkpoint import describe_model, latest
from pyro_fed.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from pyro_fed.density.rows.arguments import Arguments
    from pyro_fed.federation import Federation


def without(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The federation of the other clients; see `Federation.without`."""
    unknown = sorted(set(names) - set(federation.client_names))
    if unknown:
        raise DataError(f"there are no clients {unknown}; the clients are {federation.client_names[:20]}")
    keep = [k for k, name in enumerate(federation.client_names) if name not in names]
    problem, arguments = federation.problem, federation.problem.arguments
    reason = _why_not(keep, arguments)
    if reason:
        raise DataError(f"clients {list(names)} cannot be left out: {reason}")
    index = torch.cat([federation.client_rows[k] for k in keep])
    args, kwargs = arguments.rebuild([leaf[index] for leaf in arguments.rows])
    sizes = [len(federation.client_rows[k]) for k in keep]
    rows = iter(range(len(index)))
    coords = {n: [v[i] for i in index] if n == problem.plate else v for n, v in federation.coords.items()}
    rest = type(federation)(
        problem.model,
        args,
        kwargs,
        plate=problem.plate,
        partition=partition.Explicit([[next(rows) for _ in range(size)] for size in sizes]),
        shard=arguments.row_names,
        dtype=problem.dtype,
        dims=federation.dims,
        coords=coords,
        quadrature=problem.quadrature,
    )
    rest.client_names = [federation.client_names[k] for k in keep]
    return rest


def _why_not(keep: list[int], arguments: Arguments) -> str:
    if not keep:
        return "nobody would be left"
    if arguments.nested_plates:
        return "nested rows follow its groups: make a federation of the groups that remain, with `start=` as here"
    return "" if arguments.sharded else "the model indexes its own data: no argument is split by rows"


def hand_over(algorithm: Algorithm, federation: Federation, folder: Path) -> Start:
    """The final states of an earlier run, with the sites of this federation's clients.

    Args:
        algorithm: the earlier run's, with the same settings.
        federation: its clients are matched to the earlier ones by name; new ones begin with a flat site.
        folder: the earlier run's checkpoint.

    Raises:
        CheckpointError: the folder holds no state, or that of another algorithm or model.
        SettingError: the algorithm's clients keep no sites.
    """
    marks, saved = latest(folder)
    for name, mine in {"algorithm": repr(algorithm), "model": describe_model(federation)}.items():
        if marks.get(name) != mine:
            raise CheckpointError(
                f"{folder} cannot be the start: its {name} is {marks.get(name)!r}, this run's is {mine!r}"
            )
    before = json.loads(marks["clients"])
    origin = torch.tensor([before.index(name) if name in before else -1 for name in federation.client_names])
    return Start(*algorithm.regroup(federation.problem, saved.shared, saved.local, origin))
