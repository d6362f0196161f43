"""The end of a run: draws of the result, what speaks against it, and the result itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import DrawStats
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.audit import Evidence
from pyro_fed.audit import audit as audited
from pyro_fed.conventions import seeding
from pyro_fed.errors import DivergenceError
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import to_inference_data
from pyro_fed.runtime.collecting import collected, integration_notes
from pyro_fed.runtime.context import Context


@dataclass
class Finish:
    """What is done with a run's last state.

    Args:
        algorithm: what was run.
        context: the run.
        num_draws: draws of a density.
        log_likelihood: whether to compute the pointwise log-likelihood.
        collect_local: whether to collect the rows' latents.
        audit: whether to judge the result by the model's densities.
    """

    algorithm: Algorithm
    context: Context
    num_draws: int
    log_likelihood: bool
    collect_local: bool
    audit: bool

    def __call__(self, shared: State) -> InferenceData:
        """The judged result; what speaks against it is said."""
        draws = self.drawn(shared)
        self.judge(shared, draws)
        self.context.record.notes += self.context.record.failed()
        say(self.context.record.said())
        return self.result(shared, draws)

    def drawn(self, shared: State) -> Tensor:
        """Draws (chain, draw, D), unconstrained.

        Raises:
            KeyboardInterrupt: the run was interrupted before there was a distribution.
            ImproperGaussianError: there is none.
            DivergenceError: its draws are not finite.
        """
        generator = seeding.torch_generator(self.context.seed, seeding.DRAWS)
        try:
            draws = self.algorithm.sample(shared, self.num_draws, generator).to(self.context.problem.dtype)
        except ImproperGaussianError as error:
            if self.context.record.interrupted:
                raise KeyboardInterrupt("interrupted before there was a distribution to draw from") from error
            raise
        if not bool(torch.isfinite(draws).all()):
            raise DivergenceError(
                f"{type(self.algorithm).__name__}: the draws of the last state are not finite: it is no distribution, "
                "or one far beyond the range of its numbers. Take smaller steps, give parameters of very different "
                "scales a common one, or use dtype=torch.float64"
            )
        return draws

    def judge(self, shared: State, draws: Tensor) -> None:
        """Add to the record what speaks against the result."""
        context, record = self.context, self.context.record
        own = self.algorithm.warnings(record, context.problem)
        record.doubts += own
        said = any(sentence.startswith("not converged") for sentence in own)  # by the algorithm, with its reason
        if record.converged is False and not said and "change" in record.latest:
            change = record.latest["change"]
            record.doubts.append(f"not converged after {len(record.figures)} rounds: the last change was {change:.3g}")
        if context.problem.local_dim:
            record.doubts += integration_notes(context.problem, draws.flatten(0, 1))
        whole = context.federation.holds_data and context.combination is None and not record.failed()
        if self.audit and whole:  # else the result is not meant to be the posterior of all rows
            record.audited = True
            evidence = Evidence(
                self.algorithm, context.federation, context.problem, shared, draws, record, context.seed
            )
            record.doubts += audited(evidence)
            record.measured = evidence.measured

    def result(self, shared: State, draws: Tensor) -> InferenceData:
        """The draws and the record as InferenceData."""
        context = self.context
        federation, problem = context.federation, context.problem
        stats = self.algorithm.sample_stats(shared, draws) if isinstance(self.algorithm, DrawStats) else {}
        if problem.local_dim and self.collect_local and federation.holds_data:
            federation, problem, draws = collected(federation, problem, draws, context.seed)
        return to_inference_data(
            self.algorithm,
            federation,
            problem,
            draws,
            stats,
            context.record,
            context.seed,
            self.log_likelihood,
            self.collect_local,
        )


def say(sentences: list[str]) -> None:
    """Warn of each, where the user calls `run`."""
    for sentence in sentences:
        warnings.warn(sentence, UserWarning, stacklevel=4)
