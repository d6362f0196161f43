"""Whether the tests find an error in an equation that the five papers publish: a sign, a factor or an index.

    python -m benchmarks.papers.mutations [--only WORDS] [--list]

Each mutation replaces one token of one function in a copy of the package, in a temporary folder, and runs the test file
that has the equation's oracle. It prints "caught" where that file fails, else "NOT CAUGHT", and ends with 1 where one
was not. The oracles pass on the copy as it is, which is tested first. About ten seconds a mutation on one core;
`--only` takes the equations whose names have these words. Mutations of a package that was changed since must name
their tokens anew: a token that does not stand exactly once in its function is an error.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import arviz  # noqa: F401 - what the tests import besides the package is imported once, and not for each mutation
import pyro.infer  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    """One token for another in a function, "file.py:Class.method" below `pyro_fed`, where it stands once."""

    function: str
    old: str
    new: str

    def mutated(self, package: Path) -> tuple[Path, str, str]:
        """The file's path, its text, and its text with the other token."""
        name, function = self.function.split(":")
        path = package / name
        text = path.read_text(encoding="utf-8")
        first, last = _lines_of(text, function)
        lines = text.splitlines(keepends=True)
        body = "".join(lines[first:last])
        if body.count(self.old) != 1:
            raise ValueError(f"{self.function}: {self.old!r} stands {body.count(self.old)} times; expected once")
        return path, text, "".join(lines[:first]) + body.replace(self.old, self.new) + "".join(lines[last:])

    def apply(self, package: Path) -> tuple[Path, str]:
        """Write the mutated file; its path and its text before."""
        path, text, mutated = self.mutated(package)
        _write(path, mutated)
        return path, text


@dataclass(frozen=True)
class Equation:
    """What a paper publishes, the tests of it below `tests`, and its mutations: function, old and new token."""

    name: str
    tests: tuple[str, ...]
    mutations: tuple[tuple[str, str, str], ...]


def _lines_of(text: str, function: str) -> tuple[int, int]:
    """The first line and the one after the last of a function, from 0; without its docstring."""
    node: ast.AST = ast.parse(text)
    for name in function.split("."):
        kinds = ast.ClassDef | ast.FunctionDef
        node = next(child for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and child.name == name)
    assert isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
    return node.body[1 if has_docstring else 0].lineno - 1, node.end_lineno


def _write(path: Path, text: str) -> None:
    """Write a module, and remove what Python has compiled of it, which may be of the same second and length."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


STEIN = "infer/papers/test_stein_recursions.py"
LANGEVIN = "infer/langevin/test_recursions.py"
PARTICLES, PAPER, PARALLEL, UNCONSTRAINED = (
    f"infer/{name}.py:" for name in ("stein/particles", "papers/dsvgd", "papers/parallel_dsvgd", "papers/udsvgd")
)
KERNELS, KDE, STEPS, EP = "ops/kernel_base.py:", "ops/stein.py:", "ops/step_sizes.py:", "infer/ep/"
TILTED, GRADIENTS = "infer/ep/tilted/", "infer/langevin/gradients.py:"
AVERAGED, VR_FALD = "infer/langevin/averaged.py:", "infer/langevin/vr_fald.py:"
HAMILTONIAN, TRAJECTORIES = "infer/langevin/test_fedhmc.py", "infer/langevin/trajectories.py:"
KERNEL = "ops/hamiltonian.py:"

EQUATIONS = (
    # -- Kassab and Simeone -------------------------------------------------------------------------------------
    Equation(
        "Kassab and Simeone, Eq. (8): the SVGD direction",
        ("ops/test_ops_stein.py", "-k", "direction or velocity"),
        (
            (f"{KERNELS}ScalarKernel.velocity", "+ repulsion", "- repulsion"),
            (f"{KERNELS}ScalarKernel.velocity", "particles.shape[-2]", "(particles.shape[-2] - 1)"),
            (f"{KERNELS}RadialKernel.gram_and_repulsion", "2.0 *", "1.0 *"),
            (f"{KERNELS}RadialKernel.gram_and_repulsion", "y, x)", "x, y)"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Section 7: AdaGrad with momentum",
        (STEIN, "-k", "algorithm_3"),
        (
            (f"{STEPS}AdaGrad.step", "(1.0 - self.momentum)", "(1.0 + self.momentum)"),
            (f"{STEPS}AdaGrad.step", "rate * direction", "-rate * direction"),
            (f"{STEPS}AdaGrad.step", "state.steps == 0", "state.steps == 1"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Algorithm 3: SVGD",
        (STEIN, "-k", "algorithm_3"),
        (
            ("infer/papers/svgd.py:PaperSVGD._scores", "self.temperature", "1.0"),
            ("infer/papers/svgd.py:PaperSVGD._scores", "log_joint(z, batch, self.temperature)", "log_lik(z, batch)"),
            (f"{PARTICLES}ParticleAlgorithm.move", "particles + step_factor", "particles - step_factor"),
            (
                "infer/papers/svgd.py:PaperSVGD.local_step",
                "entries_as(AdaGradState, local)",
                "self.start_optimiser(before)",
            ),
        ),
    ),
    Equation(
        "Kassab and Simeone, Eq. (13) and (14): the tilted target",
        (STEIN, "-k", "algorithm_1"),
        (
            (f"{PAPER}SiteParticles.tilted_scores", "- self.site_score", "+ self.site_score"),
            (f"{PAPER}SiteParticles.tilted_scores", "/ self.temperature", "* self.temperature"),
            (f"{PAPER}SiteParticles.tilted_scores", "(1.0 - is_prior) * density", "density"),
            (f"{PAPER}SiteParticles.tilted_scores", "is_prior * log_prior", "log_prior"),
            (f"{PAPER}SiteParticles.tilted_scores", "q.particles", "particles"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Algorithm 1, Eq. (17): distillation",
        (STEIN, "-k", "algorithm_1"),
        (
            (f"{PAPER}PaperDSVGD._distill_step", "+ self.site_score", "- self.site_score"),
            (f"{PAPER}PaperDSVGD._distill_step", "- self.global_score", "+ self.global_score"),
            (f"{PAPER}PaperDSVGD._distill_step", "kde_score(local, particles,", "kde_score(local, q.particles,"),
            (f"{PAPER}PaperDSVGD.local_step", "site.site, self", "q.particles, self"),
            (f"{PAPER}PaperDSVGD.site_score", "torch.zeros_like(score)", "score"),
            (f"{PAPER}SiteParticles.global_score", "torch.where(q.is_prior,", "torch.where(~q.is_prior,"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Algorithm 4, Eq. (10) and (15): sites of U-DSVGD",
        (STEIN, "-k", "algorithm_4"),
        (
            (f"{UNCONSTRAINED}UDSVGD.site_score", "score + torch.where", "score - torch.where"),
            (f"{UNCONSTRAINED}UDSVGD.site_score", "where(site.from_prior", "where(~site.from_prior"),
            (f"{UNCONSTRAINED}UDSVGD.site_score", "site.before[0]", "site.after[0]"),
            (f"{KDE}buffer_score_ratio", "- kde_score", "+ kde_score"),
            (f"{UNCONSTRAINED}Turns.with_turn", "q.particles[:, None]", "particles[:, None]"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Algorithm 5, Eq. (28) and (29): the server of Parallel-DSVGD",
        (STEIN, "-k", "algorithm_5"),
        (
            (f"{PARALLEL}PaperParallelDSVGD._server_step", "+ likelihood", "- likelihood"),
            (f"{PARALLEL}PaperParallelDSVGD._server_step", ".sum(0)", ".mean(0)"),
            (f"{PARALLEL}PaperParallelDSVGD._server_step", "prior_scores(problem, particles) + ", ""),
            (f"{PARALLEL}PaperParallelDSVGD._server_step", "visited[:, None, None]", "~visited[:, None, None]"),
            (f"{PARALLEL}PaperParallelDSVGD.combine", "sites[clients]", "sites[: len(clients)]"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Section 7: the kernel density estimate",
        ("ops/test_ops_kde.py",),
        (
            (f"{KDE}kde_score", "/ bandwidth**2", "/ bandwidth"),
            (f"{KDE}kde_score", "x, centres) /", "centres, x) /"),
            (f"{KDE}_log_kernels", "-0.5", "-1.0"),
            (f"{KDE}kde_share", "log_mean - math.log(floor)", "math.log(floor) - log_mean"),
        ),
    ),
    Equation(
        "Kassab and Simeone, Algorithm 2: PVI",
        (f"{EP}test_recursion.py", "-k", "partitioned"),
        (
            (f"{TILTED}newton.py:Newton.infer", "q_hat.quotient(received.cavity)", "q_hat.quotient(received.q)"),
            (f"{TILTED}newton.py:Newton._free_energy_ascent", ".product(received.cavity)", ".product(received.q)"),
            (f"{EP}expectation_propagation.py:EP.cavity", ".quotient(site)", ""),
        ),
    ),
    # -- Yang, Liu and Kassab -----------------------------------------------------------------------------------
    Equation(
        "Yang et al., Eq. (8) to (10): the discrepancy",
        ("ops/test_ops_stein.py", "-k", "matrix or statistic or ksd"),
        (
            (f"{KERNELS}ScalarKernel.stein_matrix", "+ first", "- first"),
            (f"{KERNELS}ScalarKernel.stein_matrix", "+ self.trace", "- self.trace"),
            (f"{KERNELS}ScalarKernel.stein_matrix", "particles, right)", "particles, left)"),
            (f"{KERNELS}RadialKernel.trace", "-4.0", "-2.0"),
        ),
    ),
    Equation(
        "Yang et al., Algorithm 1, Eq. (17): selection by KSD",
        ("algorithm/test_selection.py", "-k", "tilted or follows or unlike"),
        (
            (
                f"{PAPER}SiteParticles._tilted_ksd",
                "particles, q, site, batch)",
                "particles + 1, q, site, batch)",
            ),
            (f"{PAPER}SiteParticles.tilted_scores", "/ self.temperature", "* self.temperature"),
            (
                "algorithm/schedule.py:Informed.choose",
                "np.where(left, weights, 0.0)",
                "np.where(left, weights**2, 0.0)",
            ),
            ("algorithm/schedule.py:Informed.choose", "p=odds / odds.sum()", "p=odds[::-1] / odds.sum()"),
        ),
    ),
    Equation(
        "Yang et al., Algorithm 2, Eq. (19), (21) and (24): selection by HIP",
        ("algorithm/test_selection.py", "-k", "hip_is or follows"),
        (
            (f"{PARTICLES}ParticleAlgorithm.importance", "scores.mean(0)", "scores.sum(0)"),
            (f"{PARTICLES}ParticleAlgorithm.importance", "particles, own, together", "particles, own, own"),
            (f"{PARTICLES}ParticleAlgorithm.importance", ".clamp_min(0)", ".abs()"),
            (f"{PAPER}SiteParticles.indicate", '"scores": scores / self', '"scores": scores * self'),
        ),
    ),
    # -- Guo et al. ---------------------------------------------------------------------------------------------
    Equation(
        "Guo et al., Algorithms 1, 3 and 4: cavities, changes and messages",
        (f"{EP}test_recursion.py", "-k", "rounds_are or optimisers"),
        (
            (f"{EP}expectation_propagation.py:EP.cavity", ".quotient(site)", ".product(site)"),
            (f"{EP}expectation_propagation.py:EP.local_step", "new_site.quotient(site)", "new_site"),
            (f"{EP}expectation_propagation.py:EP.client_steps", '.power(feedback["fraction"])', ""),
            (f"{EP}steps.py:Backtracked.step", "changes.power(fractions)", "changes"),
            (f"{EP}expectation_propagation.py:EP.settle", "product(damped_change)", "quotient(damped_change)"),
            (f"{TILTED}base.py:site_from", "tilted.quotient(cavity)", "tilted"),
        ),
    ),
    Equation(
        "Guo et al., Section 2.2.3: optimisers of server and clients",
        (f"{EP}test_recursion.py", "-k", "optimisers"),
        (
            (f"{EP}steps.py:Optimised.step", "(len(changes.eta) - 1)", "len(changes.eta)"),
            (f"{EP}steps.py:optimised_site_steps", "change.eta[k]", "change.eta[0]"),
            (f"{EP}settings.py:Optimising.feedback", "1.0 / len(clients)", "1.0"),
            ("infer/averaging/optim.py:Optimiser.step", "-deltas[name]", "deltas[name]"),
        ),
    ),
    Equation(
        "Guo et al., Section 2.2.4: the average site of FedSEP",
        (f"{EP}test_recursion.py", "-k", "optimisers"),
        (
            (f"{EP}fedep.py:FedSEP.download", 'int(shared["num_clients"])', "len(clients)"),
            (f"{EP}fedep.py:FedSEP.download", '.quotient(gaussian(shared, "prior_"))', ""),
            (f"{EP}fedep.py:FedSEP.old_site", 'gaussian(received, "average_")', "gaussian(received)"),
        ),
    ),
    Equation(
        "Guo et al., Algorithm 2: SG-MCMC, a sample an epoch",
        (f"{EP}test_published_forms.py", "-k", "epoch"),
        (
            (f"{TILTED}chain.py:Chain._step", "+ const.eta -", "- const.eta -"),
            (f"{TILTED}chain.py:Chain._step", "1.0 / const.num_rows", "2.0 / const.num_rows"),
            (f"{TILTED}chain.py:Chain._step", "self.momentum) * velocity", "self.momentum) ** 2 * velocity"),
            (f"{TILTED}chain.py:Chain._ends", "length - 1", "length - 2"),
        ),
    ),
    Equation(
        "Guo et al., Section 2.2.2: (I) the scaled identity and (M) samples with shrinkage",
        (f"{EP}test_published_forms.py", "-k", "identity"),
        (
            (f"{TILTED}chain.py:Identity.infer", "data.num_rows.double()", "1.0 / data.num_rows.double()"),
            (f"{TILTED}chain.py:_with_rows", "cavity.precision + ", ""),
            (
                f"{TILTED}chain.py:MCMC.infer",
                "weight * _diagonal(factor) + (1 - weight)",
                "(1 - weight) * _diagonal(factor) + weight",
            ),
            (f"{TILTED}chain.py:MCMC.infer", "max(1, count - 1)", "count"),
        ),
    ),
    Equation(
        "Guo et al., Eq. (4): (L) the Fisher information",
        (f"{EP}test_published_forms.py", "-k", "equation_4"),
        (
            (f"{TILTED}chain.py:Fisher.infer", "self.fisher_scale * fisher", "fisher"),
            (f"{TILTED}chain.py:_tilted", "fisher + cavity", "fisher - cavity"),
            (f"{TILTED}chain.py:_tilted", "times(q.precision, mean)", "times(cavity.precision, mean)"),
        ),
    ),
    Equation(
        "Guo et al., Section 2.2.2: the Fisher information, with labels from the model",
        (f"{EP}test_published_forms.py", "-k", "fisher_information"),
        (
            ("density/derivatives/other_curvatures.py:fisher_information", "probs * batch", "1.0 * batch"),
            ("density/derivatives/other_curvatures.py:fisher_information", "scores.square()", "scores"),
            ("density/derivatives/other_curvatures.py:_quadrature", "node * base.scale", "node"),
        ),
    ),
    Equation(
        "Guo et al., Algorithm 5: (V) natural gradients",
        (f"{EP}test_published_forms.py", "-k", "algorithm_5"),
        (
            (
                f"{TILTED}chain.py:NGVI.infer",
                "self.fisher_decay * fisher + (1 - self.fisher_decay) * average",
                "(1 - self.fisher_decay) * fisher + self.fisher_decay * average",
            ),
            (f"{TILTED}chain.py:NGVI.infer", "(1 - self.fisher_decay)", "(1 + self.fisher_decay)"),
            (f"{TILTED}chain.py:NGVI.infer", "spread_points(tilted,", "spread_points(received.q,"),
            (f"{TILTED}chain.py:NGVI.infer", "range(self.fisher_steps)", "range(self.fisher_steps - 1)"),
            (f"{TILTED}chain.py:NGVI.infer", "mean[None], batch", "received.q.mean()[None], batch"),
        ),
    ),
    Equation(
        "Reddi et al., Algorithm 2, the baseline of Guo et al.: FedAvg with an adaptive server",
        ("infer/test_averaging_recursions.py", "-k", "fedavg_is"),
        (
            ("infer/averaging/fedavg.py:FedAvg.combine", "weights.unsqueeze(-1)", "(1 / len(weights))"),
            ("infer/averaging/fedavg.py:FedAvg.combine", "self.damping * delta", "delta"),
            ("infer/averaging/fedavg.py:FedAvg.combine", "within(shared, OPTIM), self.damping", "{}, self.damping"),
            ("infer/averaging/local_sgd.py:LocalSGD._bounded_step", "self.momentum * velocity + score", "score"),
        ),
    ),
    Equation(
        "Swaroop et al.: FedLap's steps of ADMM",
        ("infer/test_admm_and_baselines.py", "-k", "rounds_are_admm"),
        (
            (f"{EP}fedlap.py:FedLap.new_sites", "-cavity.score(mode)", "cavity.score(mode)"),
            (f"{EP}fedlap.py:FedLap.new_sites", "tilted.score(m)", "cavity.score(m)"),
            (f"{EP}fedlap.py:FedLap.combine", '["gap"].sum()', '["gap"].mean()'),
        ),
    ),
    Equation(
        "Al-Shedivat et al. and Tresp, as Guo et al. have them: cavities of FedPA and BCM",
        (f"{EP}test_recursion.py", "-k", "rounds_are"),
        (
            (f"{EP}fedpa.py:FedPA.cavity", "flat_like(site)", "gaussian(received)"),
            (f"{EP}fedpa.py:BCM.cavity", 'gaussian(received, "prior_")', 'gaussian(received, "prior_").power(0.5)'),
            (f"{EP}fedpa.py:FedPA.cavity", "flat_like(site)", "gaussian(received).power(0.1)"),
        ),
    ),
    # -- El Mekkaoui et al. -------------------------------------------------------------------------------------
    Equation(
        "El Mekkaoui et al., Eq. (1) and (2): SGLD",
        (LANGEVIN, "-k", "sgld_is_equations_1"),
        (
            ("ops/langevin.py:drifted", "0.5 *", "1.0 *"),
            ("ops/langevin.py:drifted", "position + ", "position - "),
            ("ops/langevin.py:injected", "root *", "root**2 *"),
            (f"{GRADIENTS}MinibatchScore.estimate", "log_prior + ", ""),
        ),
    ),
    Equation(
        "El Mekkaoui et al., Eq. (3) and (4): DSGLD",
        (LANGEVIN, "-k", "dsgld"),
        (
            (f"{GRADIENTS}MinibatchScore.estimate", "self.inverse_f *", "1.0 *"),
            (
                f"{GRADIENTS}MinibatchScore.estimate",
                "log_prior + self.inverse_f *",
                "self.inverse_f * log_prior + self.inverse_f *",
            ),
            ("infer/langevin/visits.py:new_clients", "1 / visit_share,", "visit_share,"),
            ("infer/langevin/visits.py:StepSizes.of_visit", "done + torch", "0 * done + torch"),
        ),
    ),
    Equation(
        "El Mekkaoui et al., Algorithm 1, Eq. (5) to (7): the conducive gradient",
        (LANGEVIN, "-k", "algorithm_1"),
        (
            (f"{GRADIENTS}conducive_gradients", "product.score(at) - own", "product.score(at) + own"),
            (f"{GRADIENTS}conducive_gradients", "product.precision - own", "product.precision + own"),
            (f"{GRADIENTS}conducive_gradients", "1 / visit_shares", "visit_shares"),
            (f"{GRADIENTS}conducive_gradients", "weight * (product.precision", "(product.precision"),
            (f"{GRADIENTS}ConduciveGradient.at", "self.value - change", "self.value + change"),
            (f"{GRADIENTS}ConduciveScore.estimate", "score + self", "score - self"),
            (f"{GRADIENTS}conducive_gradients", "sites.product_over()", "sites.product_over().power(1 / len(shares))"),
        ),
    ),
    Equation(
        "SVRG-LD and SGLD-CV: control variates",
        (LANGEVIN, "-k", "control_variate"),
        (
            (f"{GRADIENTS}ControlVariateScore.estimate", "here - there", "here + there"),
            (f"{GRADIENTS}ControlVariateScore.estimate", "+ self.inverse_f * self.anchor", "+ self.anchor"),
            (f"{GRADIENTS}ControlVariateScore.estimate", "prior_weight * log_prior", "log_prior"),
        ),
    ),
    Equation(
        "SAGA-LD",
        ("infer/langevin/test_saga_ld.py", "-k", "algorithm_1"),
        (
            (f"{GRADIENTS}SagaScore.estimate", "- memory.table[picks.position]", "+ memory.table[picks.position]"),
            (f"{GRADIENTS}SagaScore.estimate", "self.inverse_f * memory", "0 * memory"),
            (f"{GRADIENTS}SagaScore.estimate", "+ change.sum(0)", "- change.sum(0)"),
        ),
    ),
    Equation(
        "Deng et al.: federated averaging Langevin dynamics",
        (LANGEVIN, "-k", "fald"),
        (
            (f"{AVERAGED}AveragedLangevin.clients_noise", "rsqrt()", "sqrt()"),
            (
                f"{AVERAGED}AveragedLangevin.chain_shares",
                "f / f.sum(-1, keepdim=True)",
                "f / f.sum(-1, keepdim=True) * 0 + 1 / f.shape[-1]",
            ),
            (f"{AVERAGED}average", "value * with", "value / with"),
        ),
    ),
    Equation(
        "Plassier et al.: VR-FALD*",
        (LANGEVIN, "-k", "vr_fald"),
        (
            (f"{VR_FALD}VRFALD.clients_noise", "self.shared_noise**0.5 *", "self.shared_noise *"),
            (f"{VR_FALD}VRFALD.clients_noise", "(1 - self.shared_noise)", "(1 + self.shared_noise)"),
            (f"{VR_FALD}VRFALD.local_step", "share * shared", "shared"),
            (
                f"{VR_FALD}VRFALD.local_step",
                'shared["reference"], arrival.position',
                "arrival.position, arrival.position",
            ),
            (f"{VR_FALD}VRFALD.local_step", "score_of_all_rows)", "share * score_of_all_rows)"),
            (f"{VR_FALD}VRFALD.combine", ".sum(1)", ".mean(1)"),
            (f"{VR_FALD}VRFALD.combine", 'Reference(shared["position"]', 'Reference(0 * shared["position"]'),
            (f"{VR_FALD}VRFALD.combine", 'shared["noise_key"] + 1', 'shared["noise_key"]'),
        ),
    ),
    # -- Wang et al. --------------------------------------------------------------------------------------------
    Equation(
        "Wang et al., Eq. (3): the local update",
        ("infer/peers/test_p2p_exact.py", "-k", "equation_3"),
        (
            (
                "infer/peers/p2p_vi.py:P2PVI._tilted_step",
                "change**weight, can_backtrack",
                "change ** (2 * weight), can_backtrack",
            ),
            (
                "infer/peers/p2p_vi.py:P2PVI.weight",
                'self.weighting == "exact"',
                'self.weighting != "exact"',
            ),
            ("infer/peers/peer_sites.py:Turn.rows", "position[:, -1] + 1", "position[:, -1]"),
        ),
    ),
    Equation(
        "Wang et al., Tables I and II: the decay of the rate",
        ("infer/peers/test_p2p_exact.py", "-k", "decay or first_step"),
        (
            ("infer/peers/p2p_vi.py:P2PVI._tilted_step", "turn.pace * self.solver.round_decay", "turn.pace"),
            ("infer/peers/p2p_vi.py:P2PVI._tilted_step", "old_site, turn.pace)", "old_site, None)"),
        ),
    ),
    Equation(
        "Wang et al., Eq. (4) and (8): consensus on natural parameters",
        ("infer/peers/test_p2p_exact.py", "-k", "equation_3"),
        (
            ("graph/mixing.py:mix", "weights.astype(", "weights.T.astype("),
            (
                "infer/peers/peer_gaussian.py:PeerBeliefs.combine",
                "mix(weights, value) for",
                'value if name == "eta" else mix(weights, value) for',
            ),
            ("graph/consensus.py:shifted_weights", "return weights\n", "return 0.9 * weights\n"),
        ),
    ),
    Equation(
        "Wang et al., Eq. (6): a finite set",
        ("infer/peers/test_push_sum_and_finite.py", "-k", "recursion or bayes_rule"),
        (
            ("infer/papers/p2p_finite.py:P2PFinite.local_step", "belief + log_lik", "belief - log_lik"),
            (
                "infer/papers/p2p_finite.py:P2PFinite.local_step",
                'self.weighting == "exact" else 1.0',
                'self.weighting == "paper" else 1.0',
            ),
            (
                "infer/papers/p2p_finite.py:P2PFinite.combine",
                'mix(weights, messages["log_belief"])',
                'mix(weights, messages["log_belief"].exp()).log()',
            ),
        ),
    ),
    Equation(
        "Lian et al., [22] of Wang et al.: federated averaging over a graph",
        ("infer/test_averaging_recursions.py", "-k", "agents"),
        (
            ("infer/peers/p2p_fedavg.py:P2PFedAvg.combine", 'mix(weights, messages["point"])', 'messages["point"]'),
            ("infer/peers/p2p_fedavg.py:P2PFedAvg.local_step", 'shared["point"] + ', 'shared["point"] - '),
            ("infer/peers/p2p_fedavg.py:P2PFedAvg.consensus_steps", "self.gossip_steps", "1"),
        ),
    ),
    Equation(
        "Boyd et al., [29] of Wang et al.: gossip of pairs",
        ("graph/test_varying.py", "-k", "one_gossip_pair"),
        (("graph/varying.py:GossipPairs.weights", "0.5", "0.4"),),
    ),
    Equation(
        "Dai et al., Algorithm 1, a comparator of Kassab and Simeone: particle mirror descent",
        ("infer/papers/test_comparators.py", "-k", "mirror_descent or draws_of_the_estimate"),
        (
            ("infer/papers/pmd.py:PMD._step", "target - log_q", "target + log_q"),
            ("infer/papers/pmd.py:Estimate.draws", "self.root.mT", "self.root"),
        ),
    ),
    Equation(
        "Gershman et al., Section 3, a comparator of Kassab and Simeone: nonparametric variational inference",
        ("infer/papers/test_comparators.py", "-k", "one_component or component_s_density"),
        (
            ("infer/papers/npv.py:_variance_bound", "0.5 * level", "level"),
            (
                "infer/papers/npv.py:_log_overlap",
                "logaddexp(level[:, None], level[None, :])",
                "maximum(level[:, None], level[None, :])",
            ),
        ),
    ),
    # -- Neal ---------------------------------------------------------------------------------------------------
    Equation(
        "Neal, Eq. (5.18) to (5.20): the leapfrog step",
        (HAMILTONIAN, "-k", "recursion or inverse"),
        (
            (f"{TRAJECTORIES}Trajectory.launched", "step / 2)", "step)"),
            (f"{TRAJECTORIES}Trajectory.launched", "half), step)", "half), -step)"),
            (f"{TRAJECTORIES}Trajectory.stepped", "score), self.step)", "score), -self.step)"),
            (f"{TRAJECTORIES}Trajectory.stepped", "momentum), self.step)", "momentum), self.step / 2)"),
            (f"{TRAJECTORIES}Trajectory.stepped", "times_transposed(", "times("),
        ),
    ),
    Equation(
        "Neal, Section 5.2.3, and Blanes et al.: steps of an integrator",
        ("ops/test_hamiltonian.py",),
        (
            (f"{KERNEL}kicked", "momentum + time", "momentum - time"),
            (f"{KERNEL}drifted", "position + time", "position - time"),
            (f"{KERNEL}trajectory", "splitting.kicks[0] * step", "step"),
            (f"{KERNEL}trajectory", "drift * step", "step"),
            (f"{KERNEL}trajectory", "kick * step", "-kick * step"),
            (f"{KERNEL}Splitting.stages", "self.kicks[-1] + self.kicks[0]", "self.kicks[0]"),
            (f"{KERNEL}Splitting.stages", "self.drifts * num_steps", "self.drifts[::-1] * (num_steps + 1)"),
            (f"{KERNEL}_three_stage", "1 - 2 * drift", "1 - drift"),
            (f"{KERNEL}_three_stage", "kick, 0.5 - kick, 0.5 - kick, kick", "kick, 0.5 - kick, 0.5 + kick, -kick"),
        ),
    ),
    Equation(
        "Neal, Eq. (5.13) to (5.15): the energy, and the acceptance",
        ("ops/test_hamiltonian.py",),
        (
            (f"{KERNEL}kinetic_energy", "sum(-1) / 2", "sum(-1)"),
            (f"{KERNEL}energy_fall", "value_rise - kinetic_rise", "value_rise + kinetic_rise"),
            (f"{KERNEL}energy_fall", "nan=-torch.inf", "nan=torch.inf"),
            (f"{KERNEL}acceptance", "fall.exp()", "(-fall).exp()"),
            (f"{KERNEL}transition", "end.value.double() - start", "start.value.double() - end"),
            (f"{KERNEL}transition", "uniform < chance", "uniform > chance"),
            (f"{KERNEL}fresh_momenta", "2 * uniform - 1", "uniform"),
        ),
    ),
    Equation(
        "Neal, Section 5.3.2: the acceptance of a trajectory's end",
        (HAMILTONIAN, "-k", "recursion or inverse"),
        (
            (f"{TRAJECTORIES}Trajectory.energy_gain", "self.step / 2", "self.step"),
            (f"{TRAJECTORIES}Trajectory.energy_gain", "value - self.value", "self.value - value"),
            (f"{TRAJECTORIES}Trajectory.energy_gain", "- self.kinetic", "+ self.kinetic"),
            (f"{TRAJECTORIES}Trajectory.launched", "kinetic_energy(momentum)", "kinetic_energy(half)"),
            ("infer/langevin/fedhmc.py:FedHMC._ended", "uniform < acceptance", "uniform > acceptance"),
            ("infer/langevin/fedhmc.py:FedHMC.combine", "state.prior_value +", "-state.prior_value +"),
            ("infer/langevin/fedhmc.py:FedHMC.combine", "state.prior_score +", "-state.prior_score +"),
            (f"{TRAJECTORIES}Trajectory.accepted", "torch.where(accept, value, self.value)", "value"),
        ),
    ),
    Equation(
        "the acceptance of trajectories on a Gaussian, by which steps are tuned",
        (HAMILTONIAN, "-k", "recursion or wanted_acceptance"),
        (
            (f"{TRAJECTORIES}first_step", "8 *", "4 *"),
            (f"{TRAJECTORIES}retuned_step", "root(wanted) / root(observed)", "root(observed) / root(wanted)"),
            (f"{TRAJECTORIES}retuned_factor", "(1 - weight) * factor @", "factor @"),
            (f"{TRAJECTORIES}retuned_factor", "count / (count + dim)", "count / (count - dim)"),
        ),
    ),
)


class Copy:
    """The repository in a temporary folder: the package is a copy, the rest links."""

    def __init__(self, folder: Path) -> None:
        """Copy the package and its tests."""
        self.folder = folder
        for part in ROOT.iterdir():
            if part.name in ("pyro_fed", "tests"):
                shutil.copytree(part, folder / part.name)
            elif not part.name.startswith(".") and part.name != "out":
                (folder / part.name).symlink_to(part)

    def passes(self, tests: tuple[str, ...]) -> bool:
        """Whether the tests pass on the copy, in a process of their own that has PyTorch imported already."""
        arguments = ["-x", "-q", "-p", "no:cacheprovider", f"tests/{tests[0]}", *tests[1:]]
        said = self.folder / "said.txt"
        process = os.fork()
        if not process:
            with said.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(self.folder)
            sys.path[:] = [str(self.folder), *(part for part in sys.path if part not in ("", str(ROOT)))]
            os._exit(pytest.main(arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise RuntimeError(f"pytest {' '.join(arguments)} ended with {code}:\n{said.read_text(encoding='utf-8')}")
        return code == pytest.ExitCode.OK

    def catches(self, mutation: Mutation, tests: tuple[str, ...]) -> bool:
        """Whether the tests fail on the mutated copy, which is as before after them."""
        path, text = mutation.apply(self.folder / "pyro_fed")
        try:
            return not self.passes(tests)
        finally:
            _write(path, text)


def main() -> int:
    """Try the mutations; 1 where one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="equations whose names have these words")
    parser.add_argument("--list", action="store_true", help="print the mutations and try none")
    chosen = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = None if chosen.list else Copy(Path(folder))
        for equation in (equation for equation in EQUATIONS if chosen.only.lower() in equation.name.lower()):
            print(equation.name, flush=True)
            if copy is not None and not copy.passes(equation.tests):
                raise RuntimeError(f"{' '.join(equation.tests)} fails on the package as it is")
            for mutation in (Mutation(*parts) for parts in equation.mutations):
                caught = copy is None or copy.catches(mutation, equation.tests)
                missed += not caught
                word = "" if copy is None else "caught      " if caught else "NOT CAUGHT  "
                print(f"  {word}{mutation.function}: {mutation.old!r} -> {mutation.new!r}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
