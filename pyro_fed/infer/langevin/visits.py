"""T steps of chains at clients: in one round, or in several rounds one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import LocalRounds
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, Minibatch, with_batches
from pyro_fed.infer.langevin.client_state import Arrival, ClientState, Visit
from pyro_fed.infer.langevin.gradients import Memory, Score
from pyro_fed.infer.langevin.integrator import Client, Integrator, LangevinState, StepInput, Trace
from pyro_fed.infer.langevin.minibatches import minibatches_at
from pyro_fed.infer.langevin.step_sizes import StepSizes


@dataclass(frozen=True)
class Visits:
    """The steps of chains at clients.

    Args:
        integrator: a step.
        step_sizes: T and h.
        stride: steps between positions that are sent.
        batch_size: m; None takes all rows.
    """

    integrator: Integrator
    step_sizes: StepSizes
    stride: int
    batch_size: int | None

    def one_round(
        self,
        problem: Problem,
        arrival: Arrival,
        client: ClientState,
        score: Score,
        data: ClientData,
        noise: Noise,
        memory: Memory = (),
    ) -> tuple[LangevinState, Visit, State]:
        """Make T steps of C chains at C clients: the chains' ends, the visits that are sent, and diagnostics.

        `noise` of all steps is (T, C, ...); `score` is the clients' estimate of the score, and `memory` is the
        estimate's.
        """
        steps = self.step_sizes.of_visit(arrival.steps, client.limit_step(arrival.step_size))
        rows, axes = with_batches(data, self.batch_size)
        end, trace = problem.scan(
            self.integrator.step,
            LangevinState(arrival.position, memory),
            Client(score, client.factor, rows),
            StepInput(noise["normal"], steps, self._picks(noise, data.num_rows)),
            len(steps),
            Client._make((0, 0, axes)),
        )
        sent = trace._replace(draw=trace.draw[self.stride - 1 :: self.stride])
        return end, self._sent(arrival.client, end.position, sent, steps), {"gradient_norm": trace.norm.mean(0)}

    def several_rounds(
        self,
        problem: Problem,
        arrival: Arrival,
        client: ClientState,
        score: Score,
        data: ClientData,
        noise: Noise,
        clients: Tensor,
        at: Tensor,
    ) -> LocalRounds:
        """Make the steps of C chains in R rounds; arguments as for `one_round`, of K clients, and `local_rounds`."""
        rounds, length = len(at), self.step_sizes.local_steps

        def in_turn(value: Tensor) -> Tensor:
            """(T, R C, ...) as (R T, C, ...)."""
            by_round: Tensor = value.unflatten(1, at.shape).transpose(0, 1)
            return by_round.flatten(0, 1)

        done = arrival.steps + length * torch.arange(rounds, device=at.device).unsqueeze(1)
        step_size = arrival.step_size.expand(at.shape)
        steps = self.step_sizes.of_visit(done, client.limit_step(step_size, at))
        rows, axes = with_batches(data, self.batch_size)
        picks = self._picks(noise, data.num_rows[at.flatten()])
        ends, trace = problem.scans(
            self.integrator.step,
            LangevinState(arrival.position),
            Client(score, client.factor, rows),
            StepInput(in_turn(noise["normal"]), in_turn(steps.flatten(1)), picks and Minibatch(*map(in_turn, picks))),
            at,
            Client._make((0, 0, axes)),
            (self.stride, 1),
        )
        began = torch.cat([arrival.position.unsqueeze(0), ends.position[:-1]])
        trace = Trace(*(value.unflatten(0, (rounds, -1)).transpose(0, 1) for value in trace))
        received = Arrival(began, clients, done, step_size)._asdict()
        visits = self._sent(clients, ends.position, trace, steps)
        return LocalRounds(received, visits._asdict(), {"gradient_norm": trace.norm.mean(0)})

    def _picks(self, noise: Noise, num_rows: Tensor) -> Any:
        """The minibatches of visits, (T, C, m), from `num_rows` (C,) of their clients; () if all rows are taken."""
        if self.batch_size is None:
            return ()
        return minibatches_at(noise["position"], noise["weight"], num_rows, self.step_sizes.local_steps)

    def _sent(self, client: Tensor, position: Tensor, trace: Trace, steps: Tensor) -> Visit:
        """The visits that are sent.

        Args:
            client: the clients' numbers, (C,), or of several rounds (R, C), and so on.
            position: where the chains end, (C, D).
            trace: of every `stride`-th step (T / stride, C, D), and the norms of all (T, C).
            steps: h, (T, C).
        """
        each = slice(self.stride - 1, None, self.stride)
        norms, steps = (value[each].movedim(0, -1) for value in (trace.norm, steps))
        return Visit(position, client, trace.draw.movedim(0, -2), norms, steps)
