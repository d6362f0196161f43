"""Names that differ between ArviZ 0.23 and 1.x."""

from typing import Any


def criterion_fields(found: Any) -> list[str]:
    """The numbers of an ELPDData of leave-one-out, by the names of the installed ArviZ."""
    suffix = "_loo" if hasattr(found, "elpd_loo") else ""
    rows = "loo_i" if suffix else "elpd_i"
    return [f"elpd{suffix}", f"p{suffix}", "se", "n_samples", "n_data_points", "good_k", rows, "pareto_k"]
