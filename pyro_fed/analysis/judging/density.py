"""A result's draws judged by the model's own density, on the unconstrained scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.judging import distances, doubts
from pyro_fed.analysis.judging.draws import Draws, blocks, labels_of
from pyro_fed.analysis.judging.ksd import discrepancy
from pyro_fed.audit import audit_draws
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.compiling.process import compile_problem
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DivergenceError
from pyro_fed.federation.federation import Federation
from pyro_fed.infer.laplace.fedlaplace import PooledLaplace
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.entries import evenly
from pyro_fed.results.inference_data import InferenceData, flag
from pyro_fed.results.to_arviz import unconstrained_draws
from pyro_fed.runtime.run import final_state


def against_density(
    idata: InferenceData, federation: Federation, sds: Tensor | None
) -> tuple[dict[str, Any], list[Finding]]:
    """Figures and findings by KSD, the prior's count, the spread and the audit; a finding alone if scores fail."""
    problem = federation.problem
    draws = on_unconstrained_scale(
        thin_posterior(idata, distances.MAX_COMPARED_DRAWS), problem, str(idata.attrs.get("draws_are", ""))
    )
    if outside := _outside_support_sentence(draws, problem.dtype):
        return {}, [sentences.draws_unusable(why=outside)]
    if still := _constant_parameter_sentence(draws):
        return {}, [sentences.no_uncertainty(what=still)]
    z = torch.from_numpy(draws.flat)
    with torch.no_grad():
        prior, likelihood = (part.double() for part in distances.scores(problem, z.to(problem.dtype)))
    total = prior + likelihood
    lost = ~total.isfinite()
    if bool(lost.any()):
        where, many = draws.labels[int(lost.any(0).int().argmax())], int(lost.any(1).sum())
        return {}, [sentences.scores_not_finite(parameter=where, draws=many, of_draws=len(z))]
    count = doubts.prior_count(z, prior, likelihood)
    both = np.concatenate([draws.values, total.numpy().reshape(draws.values.shape)], 2)
    distance = discrepancy(z, total, blocks(both, draws.kind))
    values = {
        "ksd": distance.value,
        "ksd_limit": distance.limit,
        "prior_count": count.value,
        "prior_count_se": count.error,
    }
    findings = doubts.density_findings(count, distance, draws.labels[distance.farthest])
    if sds is not None:
        findings += doubts.spread_findings(z, sds)
    if not flag(idata.attrs, "audited"):
        whole = on_unconstrained_scale(idata, problem, draws.kind)
        # A problem that no run has compiled is compiled here. Others keep the level that worked in their run.
        traced = compile_problem(problem, "auto", 1, progress=False) if problem.compiler.level == "off" else problem
        moved = torch.from_numpy(whole.values).to(problem.dtype)
        findings += audit_draws(federation, moved, draws.kind or "chains", traced)
    return values, findings


def on_unconstrained_scale(idata: InferenceData | dict[str, xr.Dataset], problem: Problem, kind: str) -> Draws:
    """The draws, on the unconstrained scale, of a result that has all the model's sites; `kind` as in `Draws`."""
    with torch.no_grad():
        flat = unconstrained_draws(idata, problem).double().numpy()
    posterior = idata["posterior"]
    labels = [label for name, site in problem.sites.items() for label in labels_of(name, site.unconstrained_shape)]
    return Draws(flat.reshape(posterior.sizes["chain"], posterior.sizes["draw"], -1), labels, kind)


def transformed_columns(draws: Draws, constrained: Draws) -> Draws | None:
    """The columns of unconstrained draws that differ from the constrained draws; None if no column differs."""
    same = {label: constrained.values[..., i] for i, label in enumerate(constrained.labels)}
    kept = [
        i
        for i, label in enumerate(draws.labels)
        if label not in same or not np.allclose(same[label], draws.values[..., i], rtol=1e-5)
    ]
    return Draws(draws.values[..., kept], [draws.labels[i] for i in kept], draws.kind) if kept else None


def _outside_support_sentence(draws: Draws, dtype: torch.dtype) -> str:
    """A sentence on draws outside the support of a site, whose unconstrained values are not finite; "" without any."""
    lost = ~np.isfinite(draws.flat)
    if not lost.any():
        return ""
    where = draws.labels[int(lost.any(0).argmax())]
    return (
        f"{lost.any(1).sum()} of {len(lost)} draws lie outside the support of '{where}', or on its edge in "
        f"{str(dtype).removeprefix('torch.')}, so KSD and the prior's count cannot be computed"
    )


def _constant_parameter_sentence(draws: Draws) -> str:
    """A sentence on a parameter that is the same in all draws; "" without any."""
    still = np.ptp(draws.flat, axis=0) == 0
    if not still.any():
        return ""
    return f"'{draws.labels[int(still.argmax())]}' is the same in all draws: it has no uncertainty"


def thin_posterior(idata: InferenceData, count: int) -> dict[str, xr.Dataset]:
    """The group `posterior` alone, with about `count` draws evenly spaced over every chain, at least two of each."""
    posterior = group_of(idata, "posterior")
    each = max(2, count // posterior.sizes["chain"])
    return {"posterior": posterior.isel(draw=evenly(posterior.sizes["draw"], each).numpy())}


def laplace_sds(federation: Federation) -> Tensor | None:
    """SDs (D,) of the pooled Laplace approximation, unconstrained; None without a mode or an invertible Hessian."""
    try:
        found = final_state(PooledLaplace(), federation)
    except DivergenceError:
        return None
    if not found.converged:
        return None
    sds = gaussian(found.shared).to_full().moments()[1].diagonal().sqrt()
    return sds if bool(sds.isfinite().all()) else None
