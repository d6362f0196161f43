"""The noise of differential privacy in a result: its size, and draws whose spread includes it.

The server's last state contains noise of a known distribution, which draws of this state do not show. New noise is
therefore drawn many times and added by the algorithm, as in one more round in which clients send nothing new. These
states scatter around the last state as it scatters around the state without noise, so that draws from all of them have
both spreads. Only the released state is used, so that this costs no privacy.

An algorithm may know how much of the noise of T rounds remains in its state (`Contributions.noise_left`). Otherwise the
variances of all rounds are summed. This is an upper bound, because messages cancel part of the noise if clients start
from what they received.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import SiteKeeping
from pyro_fed.algorithm.combination import Middle
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.contributions import NoisyRound
from pyro_fed.algorithm.privacy import Private
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.local import expected_reply

#: Number of states to which noise is added.
REPLAYS = 100
#: Largest norm of the last release, as a share of `norm`, for which messages count as not shortened: at convergence
#: honest messages are near zero. With `FedEP`, `FedSEP` and `FedPA` from the prior, 60 clients of 20 rows and norms of
#: 0.1 to 2, SDs are 1.8 to 4.3 times too wide if the share is 0.7 or more, and at most 1.3 times if it is 0.4 or less.
SHORTENED_SHARE = 0.5


class Noisy(NamedTuple):
    """Draws (chain, draw, D) whose spread includes the noise, doubts, and the noise's largest SD in posterior SDs."""

    draws: Tensor
    findings: list[Finding]
    noise: float


def with_noise(algorithm: Algorithm, context: Context, shared: State, draws: Tensor, num_draws: int) -> Noisy:
    """Draws whose spread includes the noise of a private run, from draws (chain, draw, D) of the last state."""
    states = _noise_replays(algorithm, context, shared)
    samples = []
    for state in states:
        generator = seeding.torch_generator(context.seed, seeding.DRAWS)  # common random numbers for all states
        try:
            state = algorithm.conclude(context.problem, state)
            samples.append(algorithm.sample(state, num_draws, generator).to(draws.dtype))
        except ImproperGaussianError:
            continue
    name = context.problem.name_of
    if not samples:
        return Noisy(draws, [sentences.noise_leaves_no_distribution()], math.inf)
    means = torch.stack([one.double().flatten(0, 1).mean(0) for one in samples])
    noise = (means - means.mean(0)).square().mean(0).sqrt()
    if algorithm.draws_are == "point":
        worst = int(noise.argmax())
        doubt = sentences.noise_of_the_point(parameter=name(worst), sd=float(noise[worst]))
        return Noisy(draws, [doubt], float(noise[worst]))
    sds = draws.double().flatten(0, 1).std(0)
    ratio = (noise / sds).nan_to_num(nan=math.inf)
    worst, count = int(ratio.argmax()), len(samples)
    spread = torch.empty_like(samples[0])
    for i, one in enumerate(samples):
        spread[:, i::count] = one[:, i::count]
    if float(ratio[worst]) <= MATTERS:
        return Noisy(spread, [], float(ratio[worst]))
    wider = float((spread.double().flatten(0, 1).std(0) / sds)[worst])
    doubt = sentences.noise_moves_means(parameter=name(worst), sds=float(ratio[worst]), wider=wider)
    return Noisy(spread, [doubt], float(ratio[worst]))


def still_shortened(context: Context) -> list[Finding]:
    """A doubt if the norm of the last release is near `norm`, so that messages were still shortened."""
    private, worked = cast_checked(context.combination, Private), [one for one in context.record.rounds if one.clients]
    if not worked or worked[-1].reach < SHORTENED_SHARE:
        return []
    return [sentences.messages_still_shortened(reach=worked[-1].reach, norm=private.norm)]


def _noise_replays(algorithm: Algorithm, context: Context, shared: State) -> list[State]:
    """`REPLAYS` states, each after one further round of noise alone."""
    private, problem = cast_checked(context.combination, Private), context.problem
    name = type(algorithm).__name__  # without earlier phases, which only gave the start
    worked = [one for one in context.record.rounds if one.phase == name and one.clients]
    if not worked:
        return [shared]
    figures = [one for one in context.record.figures if one]
    rounds = [NoisyRound(len(one.clients), found) for one, found in zip(worked, figures, strict=True)]
    clients = torch.arange(rounds[-1].clients)
    before = algorithm.prepare(problem, shared)
    nothing = _zero_messages(algorithm, context, before, clients)
    number = context.federation.num_clients
    algorithm, factor = algorithm.contributions().noise_left(rounds, number)
    generator = seeding.torch_generator(context.seed, seeding.DRAWS, 1)
    anew = _NoiseAlone(sd=factor * private.noise_multiplier * private.norm, generator=generator)
    shares = torch.full((len(clients),), 1 / len(clients), dtype=problem.dtype)
    after = (algorithm.combine(before, anew(nothing), shares) for _ in range(REPLAYS))
    return [algorithm.refine(problem, one) for one in after]


@dataclass(frozen=True, kw_only=True)
class _NoiseAlone(Middle):
    """The mean of messages with noise as in `Private`, but not secret; `sd` is the SD of the noise in their sum."""

    private = True

    sd: float
    generator: torch.Generator

    def middle(self, messages: Tensor) -> Tensor:
        noise = torch.randn(messages.shape[1], generator=self.generator, dtype=messages.dtype)
        return messages.mean(0) + self.sd / len(messages) * noise.to(messages.device)


def _zero_messages(algorithm: Algorithm, context: Context, shared: State, clients: Tensor) -> State:
    """Messages of zeros, (C, ...)."""
    data, received = context.federation.client_data(), algorithm.download(shared, clients)
    work = Work(len(context.record.rounds), context.seed, clients.tolist(), received)
    # Only the shapes of these states matter.
    _, local = algorithm.init(context.problem, context.federation.num_clients, torch.Generator().manual_seed(0), None)
    spec, *_ = expected_reply(algorithm, context.problem, data, local, work)
    found = {name: torch.zeros(len(clients), *expected.shape, dtype=expected.dtype) for name, expected in spec.items()}
    return algorithm.clippable_part(found) if isinstance(algorithm, SiteKeeping) else found
