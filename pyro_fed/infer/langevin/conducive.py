"""Settings of conducive gradients, Eq. (6) and (7) of el Mekkaoui et al."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_positive


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Conducive(Settings):
    """The conducive gradient α g_s, which keeps a chain at a client unbiased.

    Args:
        alpha: exploration weight α, positive; of `FSGLD` every value is unbiased, and 1 is the paper's.
        trust: the gradient stops growing at √D + trust posterior SDs from the mode; None: nowhere.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        El Mekkaoui et al. (2021), Eq. (6) and (7).

    Example:
        >>> idata = pf.run(pf.FSGLD(conducive=pf.infer.Conducive(trust=None)), fed)
    """

    alpha: float = 1.0
    trust: float | None = 3.0

    def __post_init__(self) -> None:
        check_positive(self, "alpha")
        check_positive(self, "trust", allow_none=True)
