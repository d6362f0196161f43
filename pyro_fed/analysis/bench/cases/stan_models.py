"""The posteriors of posteriordb that are products over rows: Stan's models in Pyro, and the rows that they are of.

Flat priors are `ImproperUniform`. A row of a time series carries the values before it, so that its density given them
is the row's own; a row of a differential equation is a time at which its solution was measured. `NO_ROWS` has the
posteriors that do not split by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_fed.analysis.bench.cases.posteriordb import PLATE, Data, Posterior

#: Posteriors of the database that no federation of rows has, by their models' names, and why.
NO_ROWS = dict.fromkeys(("hmm_example", "hmm_drive_0", "hmm_drive_1"), "all rows are one series of hidden states")


# -- models ---------------------------------------------------------------------------------------------------
def flat(name: str, size: int) -> Tensor:
    """A real vector with a flat prior."""
    value: Tensor = pyro.sample(name, dist.ImproperUniform(constraints.real_vector, (), (size,)))
    return value


def flat_scale(name: str, like: Tensor) -> Tensor:
    """A positive number with a flat prior."""
    value: Tensor = pyro.sample(name, dist.ImproperUniform(constraints.positive, (), ()))
    return value.to(like)


def half_cauchy(name: str, like: Tensor, scale: float = 2.5) -> Tensor:
    """A positive number with a half-Cauchy prior."""
    value: Tensor = pyro.sample(name, dist.HalfCauchy(like.new_tensor(scale)))
    return value


def observe(mean: Tensor, sigma: Tensor, y: Tensor) -> None:
    """Normal observations, one a row."""
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def flat_regression(x: Tensor, y: Tensor) -> None:
    """Flat coefficients, flat scale."""
    beta = flat("beta", x.shape[1])
    observe(x @ beta, flat_scale("sigma", y), y)


def half_cauchy_regression(x: Tensor, y: Tensor) -> None:
    """Flat coefficients, half-Cauchy scale."""
    beta = flat("beta", x.shape[1])
    observe(x @ beta, half_cauchy("sigma", y), y)


def blr(x: Tensor, y: Tensor) -> None:
    """Linear regression with proper priors."""
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 10.0).to_event(1))
    observe(x @ beta, pyro.sample("sigma", dist.HalfNormal(x.new_tensor(10.0))), y)


def kilpisjarvi(prior: Mapping[str, float], x: Tensor, y: Tensor) -> None:
    """A line with informative priors, which are of the data's file, and a flat scale."""
    alpha = pyro.sample("alpha", dist.Normal(x.new_tensor(prior["pmualpha"]), prior["psalpha"]))
    beta = pyro.sample("beta", dist.Normal(x.new_tensor(prior["pmubeta"]), prior["psbeta"]))
    observe(alpha + beta * x, flat_scale("sigma", y), y)


def gauss_mix(y: Tensor) -> None:
    """Two Gaussians with ordered means."""
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    pyro.factor("mu_prior", dist.Normal(y.new_zeros(()), 2.0).log_prob(mu).sum())
    sigma = pyro.sample("sigma", dist.HalfNormal(y.new_full((2,), 2.0)).to_event(1))
    theta = pyro.sample("theta", dist.Beta(y.new_tensor(5.0), y.new_tensor(5.0)))
    weights = torch.stack([theta, 1 - theta])
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mu, sigma)), obs=y)


def eight_schools(school: Tensor, sigma_j: Tensor, y: Tensor) -> None:
    """Eight schools, non-centred, the schools' latents as one global vector that rows index."""
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 5.0))
    tau = half_cauchy("tau", y, 5.0)
    z = pyro.sample("z", dist.Normal(y.new_zeros(8), 1.0).to_event(1))
    theta = pyro.deterministic("theta", mu + tau * z)
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.Normal(theta[school], sigma_j), obs=y)


def diamonds(x: Tensor, y: Tensor) -> None:
    """26 parameters, nearly collinear; `x` is centred over all rows."""
    b = pyro.sample("b", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    intercept = pyro.sample("Intercept", dist.StudentT(x.new_tensor(3.0), 8.0, 10.0))
    half = dist.FoldedDistribution(dist.StudentT(x.new_tensor(3.0), 0.0, 10.0))
    observe(intercept + x @ b, pyro.sample("sigma", half), y)


def process_factor(places: Tensor, rho: Tensor, alpha: Tensor) -> Tensor:
    """The Cholesky factor of a squared-exponential covariance at N places, (N, N)."""
    squares = (places[:, None] - places) ** 2 / (2 * rho**2)
    root: Tensor = torch.linalg.cholesky(alpha**2 * torch.exp(-squares) + 1e-10 * torch.eye(len(places)).to(places))
    return root


def process(places: Tensor) -> Tensor:
    """The values of a Gaussian process at N places, which are global latents, (N,)."""
    rho = pyro.sample("rho", dist.Gamma(places.new_tensor(25.0), places.new_tensor(4.0)))
    alpha = pyro.sample("alpha", dist.HalfNormal(places.new_tensor(2.0)))
    white = pyro.sample("f_tilde", dist.Normal(torch.zeros_like(places), 1.0).to_event(1))
    values: Tensor = pyro.deterministic("f", process_factor(places.to(white), rho, alpha) @ white)
    return values


def gp_poisson(places: Tensor, index: Tensor, counts: Tensor) -> None:
    """Poisson counts under a Gaussian process, whose values rows index."""
    f = process(places)
    with pyro.plate(PLATE, len(counts)):
        pyro.sample("k", dist.Poisson(f[index].exp()), obs=counts)


def gp_gaussian(places: Tensor, index: Tensor, y: Tensor) -> None:
    """Measurements of a Gaussian process, whose values rows index; `sigma` is the variance of their noise."""
    f = process(places)
    observe(f[index], pyro.sample("sigma", dist.HalfNormal(y.new_tensor(1.0))).sqrt(), y)


def autoregression(lags: Tensor, y: Tensor) -> None:
    """AR(K): a row has the K values before it."""
    alpha = pyro.sample("alpha", dist.Normal(y.new_tensor(0.0), 10.0))
    beta = pyro.sample("beta", dist.Normal(y.new_zeros(lags.shape[1]), 10.0).to_event(1))
    observe(alpha + lags @ beta, half_cauchy("sigma", y), y)


def arma(before: Tensor, first: Tensor, y: Tensor) -> None:
    """ARMA(1, 1): e_t = Σ_j (-θ)^j d_t-j with d_s = y_s - μ - φ y_s-1, from y_0 = μ and e_0 = 0 on; `lagged` rows."""
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 10.0))
    phi, theta = (pyro.sample(name, dist.Normal(y.new_tensor(0.0), 2.0)) for name in ("phi", "theta"))
    sigma = half_cauchy("sigma", y)
    steps = torch.arange(before.shape[1], device=y.device)
    known = torch.cat([torch.where(steps < first[:, None], before, mu), mu.expand(len(y), 1)], 1)
    values = torch.cat([y[:, None], known[:, :-1]], 1)  # y_t-j, and y_t-1-j beside it
    errors = (values - mu - phi * known) * (-theta) ** torch.arange(known.shape[1]).to(y)
    there = torch.cat([steps.new_ones(len(y), 1).bool(), steps < first[:, None]], 1)
    residual = torch.where(there, errors, 0.0).sum(1)
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.Normal(y - residual, sigma), obs=y)


def garch(start: float, centre: float, before: Tensor, first: Tensor, y: Tensor) -> None:
    """GARCH(1, 1): σ_t² = Σ_j β^j (α_0 + α_1 (y_t-1-j - μ)²) + β^t σ_0²; (α_1, β, 1 - α_1 - β) is flat on a simplex.

    The sums over j of β^j, and of β^j times a value and its square, are products with rows; values are from `centre`.
    """
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    alpha0 = flat_scale("alpha0", y)
    shares = pyro.sample("shares", dist.Dirichlet(y.new_ones(3)))
    alpha1 = pyro.deterministic("alpha1", shares[0])
    beta1 = pyro.deterministic("beta1", shares[1])
    steps, shift = torch.arange(before.shape[1]).to(y), mu - centre
    there = (steps < first[:, None]).to(y)
    away = there * (before - centre)
    powers = beta1**steps
    count, total, squares = there @ powers, away @ powers, away**2 @ powers
    variance = alpha0 * count + alpha1 * (squares - 2 * shift * total + shift**2 * count) + beta1**first * start**2
    observe(mu, variance.sqrt(), y)


def runge_kutta(slope: Callable[[int, Tensor], Tensor], state: Tensor, times: list[float]) -> Tensor:
    """The solution of y' = slope(n, y) at ascending positive times, (N, *shape), by two steps of fourth order to each.

    `slope` is asked at the times of `half_steps`, by their number n.
    """
    found, halves = [], np.diff(half_steps(times))[::2].tolist()
    for number, half in enumerate(halves):
        a = slope(2 * number, state)
        b = slope(2 * number + 1, state + half * a)
        c = slope(2 * number + 1, state + half * b)
        d = slope(2 * number + 2, state + 2 * half * c)
        state = state + half / 3 * (a + d + 2 * (b + c))
        found.append(state)
    return torch.stack(found[1::2])


def half_steps(times: list[float]) -> np.ndarray:
    """The times at which `runge_kutta` asks for slopes, from zero on: four to each of the `times`."""
    ends = np.array([0.0, *times])
    return np.concatenate([np.linspace(begin, end, 4, endpoint=False) for begin, end in pairwise(ends)] + [ends[-1:]])


def lotka_volterra(times: list[float], index: Tensor, y: Tensor) -> None:
    """Hares and lynxes at time zero and at the times that rows index, (N, 2)."""
    centre, spread = y.new_tensor([1.0, 0.05, 1.0, 0.05]), y.new_tensor([0.5, 0.05, 0.5, 0.05])
    theta = pyro.sample("theta", dist.ImproperUniform(constraints.positive, (), (4,)))
    pyro.factor("theta_prior", dist.Normal(centre, spread).log_prob(theta).sum())
    start = pyro.sample("z_init", dist.LogNormal(y.new_full((2,), np.log(10.0)), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.LogNormal(y.new_full((2,), -1.0), 1.0).to_event(1))
    growth, capture, death, birth = theta
    own, other = torch.stack([growth, -death]), torch.stack([-capture, birth])
    # of the logarithms, which stay finite; a species grows by the other's number
    path = runge_kutta(lambda _, log: own + other * log.exp().flip(0), start.log(), times)
    logs = torch.cat([start.log()[None], path])
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.LogNormal(logs[index], sigma).to_event(1), obs=y)


def one_compartment(dose: float, volume: float, times: list[float], index: Tensor, y: Tensor) -> None:
    """Absorption of first order and Michaelis-Menten elimination, at the times that rows index."""
    absorption, half, fastest, sigma = (half_cauchy(name, y, 1.0) for name in ("k_a", "K_m", "V_m", "sigma"))
    absorbed = dose / volume * absorption * torch.exp(-absorption * y.new_tensor(half_steps(times)))
    most = fastest / volume
    logs = runge_kutta(lambda n, c: absorbed[n] - most * c / (half + c), y.new_zeros(()), times).log()
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.LogNormal(logs[index], sigma), obs=y)


# -- data -----------------------------------------------------------------------------------------------------
def columns_of(data: Data, *columns: Any) -> Tensor:
    """A column of ones, then columns by name or as numbers, (N, 1 + P)."""
    found = [_tensor(data, one) if isinstance(one, str) else one for one in columns]
    return torch.stack([torch.ones_like(found[0]), *found], -1)


def _tensor(data: Data, name: str) -> Tensor:
    return torch.tensor(data[name], dtype=torch.float64)


def _scaled(x: Tensor, times: float = 1.0) -> Tensor:
    """Centred, in units of so many SDs."""
    return (x - x.mean()) / (times * x.std())


def _product(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, z, x * z


def _kidiq(how: Callable[[Tensor, Tensor], tuple[Tensor, ...]], data: Data) -> tuple[Tensor, ...]:
    """Columns of whether the mother finished high school, and of her IQ."""
    return columns_of(data, *how(_tensor(data, "mom_hs"), _tensor(data, "mom_iq"))), _tensor(data, "kid_score")


def _mom_work(data: Data) -> tuple[Tensor, ...]:
    kinds = [(_tensor(data, "mom_work") == kind).double() for kind in (2, 3, 4)]
    return columns_of(data, *kinds), _tensor(data, "kid_score")


def _earnings(how: Callable[[Tensor, Tensor], tuple[Tensor, ...]], data: Data) -> tuple[Tensor, ...]:
    """Columns of height and sex; log earnings."""
    sex = _tensor(data, "male") if "male" in data else torch.zeros(len(data["height"]), dtype=torch.float64)
    return columns_of(data, *how(_tensor(data, "height"), sex)), _tensor(data, "earn").log()


def _mesquite(names: str, data: Data) -> tuple[Tensor, ...]:
    """Columns of bushes by a letter each, see `letters`; the logarithm of their weight."""
    d1, d2, height = (_tensor(data, name) for name in ("diam1", "diam2", "canopy_height"))
    letters = {
        "1": lambda: d1.log(),
        "2": lambda: d2.log(),
        "c": lambda: height.log(),
        "v": lambda: (d1 * d2 * height).log(),
        "a": lambda: (d1 * d2).log(),
        "s": lambda: (d1 / d2).log(),
        "h": lambda: _tensor(data, "total_height").log(),
        "d": lambda: _tensor(data, "density").log(),
        "g": lambda: _tensor(data, "group"),
    }
    return columns_of(data, *(letters[name]() for name in names)), _tensor(data, "weight").log()


def _mesquite_raw(data: Data) -> tuple[Tensor, ...]:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return columns_of(data, *names), _tensor(data, "weight")


def _nes(data: Data) -> tuple[Tensor, ...]:
    ages = [(_tensor(data, "age_discrete") == age).double() for age in (2, 3, 4)]
    return columns_of(data, "real_ideo", "race_adj", *ages, "educ1", "gender", "income"), _tensor(data, "partyid7")


def _diamonds(data: Data) -> tuple[Tensor, ...]:
    x = _tensor(data, "X")[:, 1:]
    return x - x.mean(0), _tensor(data, "Y")


def _series(data: Data) -> tuple[Tensor, ...]:
    """The values before each row, the latest first, their number, and the row's own."""
    y = _tensor(data, "y")
    place = torch.arange(len(y))
    back = place[:, None] - 1 - place[:-1]
    return torch.where(back >= 0, y[back.clamp_min(0)], 0.0), place.double(), y


def _lagged(data: Data) -> tuple[Tensor, ...]:
    before, _, y = _series(data)
    return before[data["K"] :, : data["K"]], y[data["K"] :]


def _hares(data: Data) -> tuple[Tensor, ...]:
    return torch.arange(len(data["ts"]) + 1), torch.cat([_tensor(data, "y_init")[None], _tensor(data, "y")])


def _standardise_effects(mu: np.ndarray, tau: np.ndarray, theta: np.ndarray) -> dict[str, np.ndarray]:
    """The schools' effects in units of their own scale, as the model has them."""
    return {"mu": mu, "tau": tau, "z": (theta - mu[..., None]) / tau[..., None]}


def _whitened_process(data: Data, rho: np.ndarray, alpha: np.ndarray, f: np.ndarray) -> dict[str, np.ndarray]:
    """The process's values in the white coordinates that the model has."""
    flat_f = torch.as_tensor(f.reshape(-1, f.shape[-1]))
    white = torch.linalg.solve_triangular(_process_factors(data, rho, alpha), flat_f[..., None], upper=False)
    return {"rho": rho, "alpha": alpha, "f_tilde": white.numpy().reshape(f.shape)}


def _process_factors(data: Data, rho: np.ndarray, alpha: np.ndarray) -> Tensor:
    """The factor of the process's covariance for each draw, (S, N, N)."""
    places, pairs = _tensor(data, "x"), torch.as_tensor(np.stack([rho.ravel(), alpha.ravel()], 1))
    return torch.stack([process_factor(places, *pair) for pair in pairs])


def _drawn_process(data: Data, rho: np.ndarray, alpha: np.ndarray, sigma: np.ndarray) -> dict[str, np.ndarray]:
    """The process's values, which the database integrates out, drawn given each draw of the others.

    With y = L w + e, w ~ N(0, I) and e ~ N(0, σ I): w | y ~ N(A⁻¹ L' y / σ, A⁻¹), A = I + L' L / σ.
    """
    roots, y = _process_factors(data, rho, alpha), _tensor(data, "y")
    noise = torch.as_tensor(sigma.reshape(-1, 1, 1))
    half = torch.linalg.cholesky(torch.eye(len(y)) + roots.mT @ roots / noise)
    mean = torch.cholesky_solve(roots.mT @ y[:, None] / noise, half)
    standard = torch.randn(mean.shape, generator=torch.Generator().manual_seed(0), dtype=mean.dtype)
    white = mean + torch.linalg.solve_triangular(half.mT, standard, upper=True)
    return {"rho": rho, "alpha": alpha, "sigma": sigma, "f_tilde": white.numpy().reshape(*rho.shape, len(y))}


def _simplex(mu: np.ndarray, alpha0: np.ndarray, alpha1: np.ndarray, beta1: np.ndarray) -> dict[str, np.ndarray]:
    """GARCH's shares as a point of a simplex, as the model has them."""
    return {"mu": mu, "alpha0": alpha0, "shares": np.stack([alpha1, beta1, 1 - alpha1 - beta1], -1)}


# -- the posteriors -------------------------------------------------------------------------------------------
def _age_group(args: tuple[Any, ...]) -> Any:
    """Numbers of the NES survey's groups by age (0 to 3), sex and education."""
    x = args[0]
    return (x[:, 3] + 2 * x[:, 4] + 3 * x[:, 5] + 4 * x[:, 7] + 8 * x[:, 6]).long()


def _first(args: tuple[Any, ...]) -> Any:
    """The first column of a matrix, by which rows are sorted."""
    return args[0][:, 0]


def _second(args: tuple[Any, ...]) -> Any:
    """The first covariate beside a column of ones."""
    return args[0][:, 1]


def _place(args: tuple[Any, ...]) -> Any:
    """The place of each row in a series or among times."""
    return args[-2]


def _regression(full_name: str, about: str, rows: Any, model: Any = flat_regression, groups: Any = None) -> Posterior:
    """A regression, sorted by its first covariate."""
    return Posterior(full_name, about, model, rows, _second, groups)


CENTRED: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "c": lambda hs, iq: _product(hs - hs.mean(), iq - iq.mean()),
    "c2": lambda hs, iq: _product(hs - 0.5, iq - 100),
    "z": lambda hs, iq: _product(_scaled(hs, 2.0), _scaled(iq, 2.0)),
}
POSTERIORS = {
    **{
        name: Posterior(f"{name}-blr", about, blr, lambda d: (_tensor(d, "X"), _tensor(d, "y")), _first)
        for name, about in {
            "sblrc": "5 coefficients and a scale, proper priors",
            "sblri": "5 coefficients and a scale, proper priors, independent columns",
        }.items()
    },
    "kidiq": _regression(
        "kidiq-kidscore_momiq",
        "children's scores by their mothers' IQ, which is not centred: a correlation of -0.99",
        partial(_kidiq, lambda hs, iq: (iq,)),
        half_cauchy_regression,
        lambda a: (a[0][:, 1] // 5).long(),
    ),
    "kidscore_momhs": _regression(
        "kidiq-kidscore_momhs",
        "children's scores by whether their mothers finished high school",
        partial(_kidiq, lambda hs, iq: (hs,)),
        half_cauchy_regression,
    ),
    "kidscore_momhsiq": _regression(
        "kidiq-kidscore_momhsiq",
        "children's scores by their mothers' school and IQ",
        partial(_kidiq, lambda hs, iq: (hs, iq)),
        half_cauchy_regression,
    ),
    "kidscore_interaction": _regression(
        "kidiq-kidscore_interaction",
        "children's scores by their mothers' school, IQ and the product, not centred",
        partial(_kidiq, _product),
        half_cauchy_regression,
    ),
    **{
        f"kidscore_interaction_{how}": _regression(
            f"kidiq_with_mom_work-kidscore_interaction_{how}",
            f"children's scores by their mothers' school, IQ and the product, centred ({how})",
            partial(_kidiq, columns),
        )
        for how, columns in CENTRED.items()
    },
    "kidscore_mom_work": _regression(
        "kidiq_with_mom_work-kidscore_mom_work", "children's scores by their mothers' work", _mom_work
    ),
    "earn_height": _regression(
        "earnings-earn_height",
        "earnings by height, neither centred nor logarithms",
        lambda d: (columns_of(d, "height"), _tensor(d, "earn")),
    ),
    "earnings": _regression(
        "earnings-logearn_height",
        "log earnings by height, not centred: a correlation of -0.999, flat priors",
        partial(_earnings, lambda height, male: (height,)),
        groups=lambda a: a[0][:, 1].long(),
    ),
    "log10earn_height": _regression(
        "earnings-log10earn_height",
        "decimal logarithms of earnings by height, not centred",
        lambda d: (columns_of(d, "height"), _tensor(d, "earn").log10()),
    ),
    "logearn_height_male": _regression(
        "earnings-logearn_height_male",
        "log earnings by height and sex",
        partial(_earnings, lambda height, male: (height, male)),
    ),
    "logearn_interaction": _regression(
        "earnings-logearn_interaction",
        "log earnings by height, sex and the product, not centred",
        partial(_earnings, _product),
    ),
    "logearn_interaction_z": _regression(
        "earnings-logearn_interaction_z",
        "log earnings by height, sex and the product, height standardised",
        partial(_earnings, lambda height, male: _product(_scaled(height), male)),
    ),
    "logearn_logheight_male": _regression(
        "earnings-logearn_logheight_male",
        "log earnings by the logarithm of height and sex",
        partial(_earnings, lambda height, male: (height.log(), male)),
    ),
    "mesquite": _regression(
        "mesquite-logmesquite_logva",
        "46 bushes, 4 coefficients and a scale, flat priors",
        partial(_mesquite, "vag"),
    ),
    "mesquite_raw": _regression("mesquite-mesquite", "46 bushes without logarithms, 7 coefficients", _mesquite_raw),
    **{
        name: _regression(
            f"mesquite-{name}", f"46 bushes, {len(letters) + 1} coefficients", partial(_mesquite, letters)
        )
        for name, letters in {
            "logmesquite": "12chdg",
            "logmesquite_logvas": "vashdg",
            "logmesquite_logvash": "vashg",
            "logmesquite_logvolume": "v",
        }.items()
    },
    **{
        f"nes{year}": _regression(
            f"nes{year}-nes", "a survey, 9 coefficients and a scale, flat priors", _nes, groups=_age_group
        )
        for year in (1980, 1972, 1976, 1984, 1988, 1992, 1996, 2000)
    },
    "kilpisjarvi": Posterior(
        "kilpisjarvi_mod-kilpisjarvi",
        "summer temperatures over 62 years, an uncentred year: a correlation of -0.9999",
        kilpisjarvi,
        lambda d: (_tensor(d, "x"), _tensor(d, "y")),
        lambda a: a[0],
        constants=lambda d: ({name: d[name] for name in ("pmualpha", "psalpha", "pmubeta", "psbeta")},),
    ),
    "gauss_mix": Posterior(
        "low_dim_gauss_mix-low_dim_gauss_mix",
        "a mixture of two Gaussians with ordered means",
        gauss_mix,
        lambda d: (_tensor(d, "y"),),
        lambda a: a[0],
    ),
    "eight_schools": Posterior(
        "eight_schools-eight_schools_noncentered",
        "eight schools, all latents global: a skewed, heavy-tailed scale",
        eight_schools,
        lambda d: (torch.arange(8), _tensor(d, "sigma"), _tensor(d, "y")),
        lambda a: a[1],
        lambda a: a[0],
        lambda data, draws: _standardise_effects(**draws),
    ),
    "diamonds": Posterior(
        "diamonds-diamonds",
        "26 parameters, nearly collinear, 5,000 rows",
        diamonds,
        _diamonds,
        _first,
        lambda a: (a[0][:, 0] * 20).long(),
    ),
    "gp_pois_regr": Posterior(
        "gp_pois_regr-gp_pois_regr",
        "11 counts under a Gaussian process, whose 11 values are global latents",
        gp_poisson,
        lambda d: (torch.arange(d["N"]), _tensor(d, "k")),
        _place,
        sites=lambda data, draws: _whitened_process(data, **draws),
        constants=lambda d: (_tensor(d, "x"),),
    ),
    "gp_regr": Posterior(
        "gp_pois_regr-gp_regr",
        "11 measurements of a Gaussian process, whose 11 values are global latents",
        gp_gaussian,
        lambda d: (torch.arange(d["N"]), _tensor(d, "y")),
        _place,
        sites=lambda data, draws: _drawn_process(data, **draws),
        constants=lambda d: (_tensor(d, "x"),),
    ),
    "arK": Posterior(
        "arK-arK",
        "an autoregression of fifth order, rows with their lags",
        autoregression,
        _lagged,
        _first,
    ),
    "arma11": Posterior("arma-arma11", "ARMA(1, 1), rows with all values before them", arma, _series, _place),
    "garch11": Posterior(
        "garch-garch11",
        "GARCH(1, 1), rows with all values before them: a bounded, skewed posterior",
        garch,
        _series,
        _place,
        sites=lambda data, draws: _simplex(**draws),
        constants=lambda d: (d["sigma1"], float(np.mean(d["y"]))),
    ),
    "lotka_volterra": Posterior(
        "hudson_lynx_hare-lotka_volterra",
        "hares and lynxes of 21 years by a differential equation",
        lotka_volterra,
        _hares,
        _place,
        constants=lambda d: (d["ts"],),
    ),
    "one_comp_mm_elim_abs": Posterior(
        "one_comp_mm_elim_abs-one_comp_mm_elim_abs",
        "concentrations of a drug at 20 times by a differential equation",
        one_compartment,
        lambda d: (torch.arange(d["N_t"]), _tensor(d, "C_hat")),
        _place,
        constants=lambda d: (d["D"], d["V"], d["times"]),
    ),
}
