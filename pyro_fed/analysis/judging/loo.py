"""Leave-one-out prediction by Pareto smoothed importance sampling, and whether it can be relied on."""

from __future__ import annotations

import numpy as np

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.ops.arviz_versions import leave_out_weights
from pyro_fed.ops.importance import LARGEST_PARETO_K
from pyro_fed.results.inference_data import InferenceData

#: With fewer draws PSIS has no tail of large weights to fit: it takes the largest fifth, and at least five of them.
FEWEST_DRAWS_FOR_LOO = 25
#: Rows with a large Pareto k give a warning if leaving them out lowers the sum of log densities, by their unreliable
#: weights, by more than this share of its standard error. It is a quarter, since such weights show too small a loss.
SHARE_THAT_MATTERS = 0.25


def loo(idata: InferenceData) -> tuple[dict[str, float], list[Finding]]:
    """`elpd_loo`, `elpd_loo_se` and `bad_pareto_k`, the number of rows with a large Pareto k, by PSIS-LOO.

    With a note on these rows, if there are any. There are no figures if the result has no group `log_likelihood`, has
    too few draws, or is a single point.
    """
    if "log_likelihood" not in idata:
        return {}, []
    terms = [
        value.values.reshape(-1, int(np.prod(value.shape[2:]))) for value in idata["log_likelihood"].data_vars.values()
    ]
    total = sum(terms[1:], terms[0]) if len({one.shape for one in terms}) == 1 else np.concatenate(terms, 1)
    if len(total) < FEWEST_DRAWS_FOR_LOO:
        return {}, []
    lost = ~np.isfinite(total)
    if lost.any():
        return {}, [
            sentences.loo_not_finite(
                draws=int(lost.any(1).sum()),
                of_draws=len(total),
                rows=int(lost.any(0).sum()),
                of_rows=total.shape[1],
            )
        ]
    if np.ptp(total, axis=0).max() == 0:
        return {}, []  # a single point, repeated: nothing can be left out
    smoothed, k = leave_out_weights(total)
    bad = k > LARGEST_PARETO_K
    without = np.logaddexp.reduce(total + smoothed, 0)
    costs = np.logaddexp.reduce(total, 0) - np.log(len(total)) - without
    values = {
        "elpd_loo": float(without.sum()),
        "elpd_loo_se": float((len(without) * without.var()) ** 0.5),
        "bad_pareto_k": int(bad.sum()),
    }
    if not bad.any():
        return values, []
    found, rows = int(bad.sum()), len(bad)
    cost, error = float(costs[bad].sum()), values["elpd_loo_se"]
    if cost <= SHARE_THAT_MATTERS * error:
        share = cost / error if error else 0.0
        return values, [sentences.loo_rows_beyond(rows=found, of_rows=rows, limit=LARGEST_PARETO_K, share=share)]
    return values, [sentences.loo_not_reliable(rows=found, of_rows=rows, limit=LARGEST_PARETO_K)]
