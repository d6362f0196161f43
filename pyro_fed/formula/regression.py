"""Regressions by a formula, over clients' frames: the Pyro model is written out, and may be copied and changed.

    g(E[y]) = x b + offset + Σ_f z_f u_f[group],    u_f ~ N(0, diag(s_f²)),  s_f ~ HalfNormal,  b ~ N(location, scale²)

**Priors** are weakly informative, as rstanarm's and bambi's: 2.5 SDs of the linear predictor for one SD of a column.
With y in its own unit (Gaussian, t) the linear predictor has the SD of y, else 1; effects' SDs s_f have the prior scale
of that by the SD of their column. The intercept's prior is that of the level at the columns' means, seen from where the
columns are zero. Moments are those of all rows, sums over clients. Each response distribution has its canonical or
usual link.

**Effects of groups.** If one grouping factor has each of its groups at one client, its groups are the plate that is
split: their effects stay at the client and are integrated out. All other effects are parameters that clients share.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation import partition as partitions
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.labels import Use, warn_of_other_codings
from pyro_fed.formula.design import Design, Factor, Formula, pooled


@dataclass(frozen=True)
class Family:
    """A response distribution, as text of a Pyro model."""

    likelihood: str  # of `eta` (n,), further parameters, and `trials` (n,) for proportions
    allowed: Callable[[np.ndarray], np.ndarray]  # whether responses are in its support
    support: str  # the same in words
    parameters: Mapping[str, str]  # further ones and their priors; `{sd}` stands for the response's SD
    scaled: bool = False  # whether the linear predictor has the response's unit
    link: Callable[[float], float] = lambda mean: 0.0  # the linear predictor at the mean of the responses
    trials: bool = False  # whether the response is a number of successes among `trials`


def _identity(mean: float) -> float:
    return mean


def _log(mean: float) -> float:
    return float(np.log(max(mean, np.finfo(float).tiny)))


def _counts(y: np.ndarray) -> np.ndarray:
    found: np.ndarray = (y >= 0) & (y == np.round(y))
    return found


NOISE = "dist.HalfNormal({sd})"

FAMILIES: Mapping[str, Family] = {
    "gaussian": Family(
        "dist.Normal(eta, sigma)", np.isfinite, "real numbers", {"sigma": NOISE}, scaled=True, link=_identity
    ),
    "t": Family(
        "dist.StudentT(nu, eta, sigma)",
        np.isfinite,
        "real numbers",
        {"sigma": NOISE, "nu": "dist.Gamma(2.0, 0.1)"},
        scaled=True,
        link=_identity,
    ),
    "bernoulli": Family("dist.Bernoulli(logits=eta)", lambda y: (y == 0) | (y == 1), "0 or 1", {}),
    "binomial": Family(
        "dist.Binomial(total_count=trials, logits=eta)", _counts, "whole numbers from 0 to the trials", {}, trials=True
    ),
    "poisson": Family("dist.Poisson(eta.exp())", _counts, "counts", {}, link=_log),
    "negativebinomial": Family(
        "dist.GammaPoisson(alpha, alpha / eta.exp())", _counts, "counts", {"alpha": "dist.Gamma(2.0, 0.1)"}, link=_log
    ),
    "gamma": Family(
        "dist.Gamma(alpha, alpha / eta.exp())",
        lambda y: y > 0,
        "positive numbers",
        {"alpha": "dist.Gamma(2.0, 0.1)"},
        link=_log,
    ),
    "beta": Family(
        "dist.Beta(eta.sigmoid() * kappa, eta.neg().sigmoid() * kappa)",
        lambda y: (y > 0) & (y < 1),
        "numbers between 0 and 1, without both",
        {"kappa": "dist.Gamma(2.0, 0.1)"},
    ),
}


#: SDs of the linear predictor that one SD of a column may move it by, a priori.
COLUMN_EFFECT_SD = 2.5
#: The plate over rows.
ROWS = "rows"


@dataclass(frozen=True)
class GLM:
    """A regression: its Pyro model, and the federation of the clients' rows.

    Attributes:
        formula: the formula.
        family: the name of the response's distribution.
        source: the model as a Python program; `print(glm)` shows it.
        model: the Pyro model.
        federation: the model and the clients' rows.
    """

    formula: str
    family: str
    source: str
    model: Callable[..., Any]
    federation: Federation
    parsed: Formula
    split: str

    def __str__(self) -> str:
        return self.source

    def arguments(self, frame: pd.DataFrame) -> tuple[Any, ...]:
        """The model's arguments for new rows, for `pf.predict(idata, glm.federation, glm.arguments(frame))`.

        Args:
            frame: new rows, with the columns of the formula; the response is not needed.

        Raises:
            DataError: a level that the clients' rows do not have, or a column is missing. New groups of the split
                factor are allowed.
        """
        return _arguments(self.parsed.on(frame), self.split, FAMILIES[self.family], new=True)


@checked
def glm(
    formula: str,
    clients: Mapping[str, pd.DataFrame] | pd.DataFrame,
    *,
    family: str = "gaussian",
    priors: Mapping[str, tuple[float, float]] | None = None,
    num_clients: int | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> GLM:
    """A generalised linear (mixed) model by a formula, over clients' data frames.

    Args:
        formula: as for R's lme4 and bambi, read by `formulae`: `"y ~ age * sex + (1 + age | ward)"`. Effects of one
            group are independent of each other, as in bambi.
        clients: each client's frame, by its name; or one frame, which is dealt out to `num_clients`.
        family: "gaussian", "t", "bernoulli", "binomial" (`p(successes, trials) ~ ...`), "poisson", "negativebinomial",
            "gamma" or "beta", with identity, logit or log link.
        priors: location and scale of the normal prior of coefficients, by column, in place of the defaults.
        num_clients: number of clients of a single frame.
        seed: seed of the partition of a single frame.
        dtype: floating dtype, as for `Federation`.

    Returns:
        A `GLM`: `print` shows its Pyro program, `pf.fit(glm.federation)` fits it. Its sites are `b`, the coefficients
        by column, the distribution's further parameters, and for a factor f `f_sd` and `f_effect`.

    Raises:
        SettingError: a formula that cannot be read, an unknown family or column.
        DataError: missing values, responses outside of the family's support, columns coded differently by clients.
        ImportError: the extra `formula` is not installed.

    References:
        Gelman, Jakulin, Pittau & Su (2008), *A weakly informative default prior distribution for logistic and other
        regression models*; Capretto et al. (2022), *Bambi: a simple interface for fitting Bayesian linear models in
        Python*.

    Example:
        >>> study = pf.glm("event['yes'] ~ age + sex + (1 | ward)", frames, family="bernoulli")
        >>> print(study)                                              # the Pyro model
        >>> idata = pf.fit(study.federation)
    """
    if family not in FAMILIES:
        raise SettingError(f"glm: no family {family!r}; {closest(family, FAMILIES)}")
    if isinstance(clients, pd.DataFrame):
        frame, of_rows = clients.reset_index(drop=True), None
    else:
        frame, of_rows = pooled(clients)
    parsed, kind = Formula(formula, frame), FAMILIES[family]
    if not isinstance(clients, pd.DataFrame):
        _warn_of_codings(parsed, clients)
    design = parsed.own
    _check_response(design, kind, family)
    split = _split_factor(design, of_rows)
    source = write_model(design, kind, split, priors or {})
    options: dict[str, Any] = {"dims": {"b": ["column"]}, "coords": {"column": list(design.columns)}}
    for factor in design.factors:
        if len(factor.columns) > 1:
            options["coords"][f"{factor.name}_column"] = list(factor.columns)
            options["dims"][f"{factor.name}_sd"] = [f"{factor.name}_column"]
    if split:
        (own,) = [factor for factor in design.factors if factor.name == split]
        options |= {"plate": split, "rows": {ROWS: split}}
        options["coords"][split] = list(own.groups)
    else:
        options["plate"] = ROWS
    if of_rows is None:
        options |= {"num_clients": num_clients or 1, "seed": seed}
    elif split:
        client = dict(zip(own.of_rows, of_rows, strict=True))
        options["partition"] = partitions.ByGroup(np.array([client[group] for group in own.groups]).astype(str))
    else:
        options["partition"] = partitions.ByGroup(of_rows.astype(str))
    model = _compiled(source)
    federation = Federation(model, _arguments(design, split, kind), dtype=dtype, **options)
    return GLM(formula, family, source, model, federation, parsed, split)


def _warn_of_codings(parsed: Formula, clients: Mapping[str, pd.DataFrame]) -> None:
    """Warn of columns of text that clients seem to code in ways of their own. Groups may be of one client each."""
    names, grouped = [str(name) for name in clients], {part for factor in parsed.factors for part in factor.split(":")}
    for column in parsed.used:
        each = [set(frame[column].astype(str)) for frame in clients.values()]
        text = not any(pd.api.types.is_numeric_dtype(frame[column]) for frame in clients.values())
        if text:
            labels, use = Labels(sorted(set().union(*each))), None if column in grouped else Use.COMPARED
            warn_of_other_codings(column, labels, each, names, use)


def _check_response(design: Design, kind: Family, family: str) -> None:
    if kind.trials != (design.trials is not None):
        raise SettingError("glm: a response p(successes, trials) and family='binomial' belong together")
    y = design.known_response
    outside = ~kind.allowed(y)
    if outside.any():
        raise DataError(
            f"glm: family={family!r} takes {kind.support}; {int(outside.sum())} of {len(y)} rows have other values"
        )


def _split_factor(design: Design, of_rows: np.ndarray | None) -> str:
    """The grouping factor whose groups are split over clients; "" if there is none."""
    for factor in design.factors:
        if of_rows is None and len(design.factors) == 1:
            return factor.name
        if of_rows is not None and len(set(zip(factor.of_rows, of_rows, strict=True))) == len(factor.groups):
            return factor.name
    return ""


def _arguments(design: Design, split: str, kind: Family, new: bool = False) -> tuple[Any, ...]:
    """The model's arguments in the order of `write_model`."""
    found: list[Any] = [torch.as_tensor(design.x)]
    if design.offset is not None:
        found.append(torch.as_tensor(design.offset))
    for factor in design.factors:
        if factor.columns != ("Intercept",):
            found.append(torch.as_tensor(factor.values))
        if factor.name == split:
            labels = set(factor.of_rows) if new else factor.groups
            found += [factor.of_rows, len(labels)]
        else:
            found.append(_codes(factor))
    if kind.trials:
        found.append(None if design.trials is None else torch.as_tensor(design.trials))
    found.append(None if design.response is None else torch.as_tensor(design.response))
    return tuple(found)


def _codes(factor: Factor) -> torch.Tensor:
    """Each row's group by its number (n,)."""
    numbers = {label: number for number, label in enumerate(factor.groups)}
    if unknown := sum(label not in numbers for label in factor.of_rows):
        raise DataError(f"glm: {unknown} rows have groups of '{factor.name}' that the clients' rows do not have")
    return torch.tensor([numbers[label] for label in factor.of_rows])


def write_model(design: Design, kind: Family, split: str, priors: Mapping[str, tuple[float, float]]) -> str:
    """The Pyro model as a Python program, with the function `model`."""
    location, scale, unit = _coefficients(design, kind, priors)
    arguments = ["x", *(["offset"] if design.offset is not None else [])]
    body = [f"b = pyro.sample('b', dist.Normal(torch.tensor({location}), torch.tensor({scale})).to_event(1))"]
    terms = ["x @ b.to(x)", *(["offset"] if design.offset is not None else [])]
    for factor in design.factors:
        name, size = factor.name, len(factor.columns)
        slopes = factor.columns != ("Intercept",)
        arguments += [*([f"{name}_x"] if slopes else []), name, *([f"{name}_count"] if name == split else [])]
        widths = [_rounded(unit / (sd if sd > 0 else 1.0)) for sd in factor.values.std(0)]
        prior = f"torch.tensor({widths})).to_event(1)" if size > 1 else f"{widths[0]})"
        body.append(f"{name}_sd = pyro.sample('{name}_sd', dist.HalfNormal({prior})")
        count = f"{name}_count" if name == split else str(len(factor.groups))
        event = ".to_event(1)" if size > 1 else ""
        body.append(f"with pyro.plate('{name}', {count}):")
        body.append(f"    {name}_effect = pyro.sample('{name}_effect', dist.Normal(0.0, {name}_sd){event})")
        effect = f"{name}_effect[{name}]"
        if size > 1:
            effect = f"({name}_x * {effect}).sum(-1)"
        elif slopes:
            effect = f"{name}_x[:, 0] * {effect}"
        terms.append(effect)
    arguments += [*(["trials"] if kind.trials else []), "y"]
    body += [f"{name} = pyro.sample('{name}', {prior.format(sd=unit)})" for name, prior in kind.parameters.items()]
    body.append(f"eta = {' + '.join(terms)}")
    body.append(f"with pyro.plate('{ROWS}', len(x)):")
    body.append(f"    pyro.sample('y', {kind.likelihood}, obs=y)")
    lines = "".join(f"    {line}\n" for line in body)
    columns = ", ".join(design.columns)
    head = "import pyro\nimport pyro.distributions as dist\nimport torch\n\n\n"
    return f"{head}def model({', '.join(arguments)}):\n    # columns of x: {columns}\n{lines}"


def _coefficients(
    design: Design, kind: Family, priors: Mapping[str, tuple[float, float]]
) -> tuple[list[float], list[float], float]:
    """Locations and scales of the coefficients' priors, and the linear predictor's unit."""
    if unknown := [name for name in priors if name not in design.columns]:
        raise SettingError(
            f"glm: priors has {unknown[0]!r}, which is not a column; {closest(unknown[0], design.columns)}"
        )
    y = design.known_response
    unit = float(y.std()) or 1.0 if kind.scaled else 1.0
    mean, sd = design.x.mean(0), design.x.std(0)
    varies = sd > 0
    each = np.where(varies, COLUMN_EFFECT_SD * unit / np.where(varies, sd, 1.0), COLUMN_EFFECT_SD * unit)
    level = COLUMN_EFFECT_SD * unit * float(np.sqrt(1 + (mean[varies] / sd[varies]) @ (mean[varies] / sd[varies])))
    location, scale = np.zeros(len(each)), each
    if "Intercept" in design.columns:
        at = design.columns.index("Intercept")
        offset = 0.0 if design.offset is None else float(design.offset.mean())
        location[at], scale[at] = kind.link(float(y.mean())) - offset, level
    for name, (centre, width) in priors.items():
        if not width > 0:
            raise SettingError(f"glm: the prior of {name!r} must have a positive scale, received {width}")
        location[design.columns.index(name)], scale[design.columns.index(name)] = centre, width
    return [_rounded(one) for one in location], [_rounded(one) for one in scale], _rounded(unit)


def _rounded(value: float) -> float:
    """Three digits: a prior does not depend on more, and the program stays readable."""
    return float(f"{value:.3g}")


def _compiled(source: str) -> Callable[..., Any]:
    """The function `model` of a program, whose lines errors show."""
    name = f"<pyro_fed.glm {hash(source):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"pyro": pyro, "dist": dist, "torch": torch, "__name__": "glm"}
    exec(compile(source, name, "exec"), space)  # the text is this module's own
    found: Callable[..., Any] = space["model"]
    return found
