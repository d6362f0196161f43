"""A guide's part inside the plate: q(u_k | y_k, x) of a client's own latents, with parameters that never leave it.

    A_k(z, ψ_k) = E[log p(y_k, u_k | x) - log q_ψk(u_k | y_k, x)]       u_k by ε_k of the client, x the values at z

Its gradient in z is client k's score in place of that of log p_k, and its gradient in ψ_k moves the client's own
parameters. The guide is amortised: a function of the rows, such as a network. A guide with parameters for each row
would need to know which rows a client has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running.handlers import run_model
from pyro_fed.density.running.trace_sites import Message, frame_of, sum_to_rows
from pyro_fed.density.starts import mapped_draws
from pyro_fed.guides.guide_sites import sampled_sites
from pyro_fed.guides.program import GuideProgram, flat


class _Substituted(Messenger):
    """Give global sites their values, and draw those inside the plate."""

    def __init__(self, values: Mapping[str, Tensor], plate: str, constants: dict[str, Any]) -> None:
        super().__init__()
        self.values, self.plate, self.constants = values, plate, constants

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] in self.values:
            msg["value"], msg["done"] = self.values[msg["name"]], True


def local_gradients(
    program: GuideProgram, own: Tensor, points: Tensor, batch: Batch, seed: int
) -> tuple[Tensor, Tensor]:
    """Gradients of one client's A_k, a mean over draws, in the draws (S, D), times S, and in ψ_k, float64.

    `own` is ψ_k, `points` are z (S, D), and `seed` is that of ε_k.
    """
    with program.at(program.start, seed, own), torch.enable_grad():
        z = points.detach().clone().requires_grad_()

        def value(one: Tensor) -> Tensor:
            return local_bound(program, one, batch)

        found = mapped_draws(value, z) if program.mappable else None
        if found is None:
            found = torch.stack([value(one) for one in z])
        by_point, *by_leaf = torch.autograd.grad(
            found.sum(), [z, *program.own_leaves], allow_unused=True, materialize_grads=True
        )
    return by_point.double(), flat(by_leaf) / len(points)


def local_bound(program: GuideProgram, z: Tensor, batch: Batch) -> Tensor:
    """log p(y_k, u_k | x) - log q(u_k | y_k, x) of one draw of u_k, summed over rows, (), within `at`; z is (D,)."""
    problem, rows = program.problem, batch.rows
    drawn = drawn_inside(program, problem.execute_at(z, rows).filler.values, rows)
    values = {name: drawn.nodes[name]["value"] for name in problem.layout.local}
    given = problem.from_vector(z, rows)

    def source(msg: Message, transform: Any) -> Tensor:
        if msg["name"] not in values:
            return given(msg, transform)
        found: Tensor = transform.inv(values[msg["name"]])
        return found

    _, inside = problem.terms_of(problem.execute(source, rows, densities=True), rows)
    drawn.compute_log_prob()
    frames = [(node, frame_of(node, problem.plate)) for node in sampled_sites(drawn).values()]
    log_q = [sum_to_rows(node, frame.dim) for node, frame in frames if frame is not None]
    terms = torch.stack([term for site, term in inside.items() if site]).sum(0) - torch.stack(log_q).sum(0)
    return (terms * batch.weight).sum()


def drawn_inside(program: GuideProgram, values: Mapping[str, Tensor], rows: tuple[Tensor, ...]) -> Any:
    """The trace of a guide on some rows (m, ...), with its global sites' values given; within the program's `at`."""
    problem = program.problem
    sharded = bool(problem.arguments.rows)
    args, kwargs = problem.arguments.rebuild(rows if sharded else ())
    return run_model(
        program.guide,
        args,
        kwargs,
        _Substituted({name: values[name] for name in problem.sites}, problem.plate, problem.bound.constants),
        indices=torch.arange(len(rows[0])) if sharded else rows[0],
        dtype=problem.dtype,
        members=problem.arguments.members(rows),
    ).trace
