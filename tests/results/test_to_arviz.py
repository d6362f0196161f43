"""The InferenceData of a run: names, shapes, row order, and that ArviZ takes it everywhere."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_results import arviz_function, datasets, groups_of, there_and_back
from late import late
from zoo import CASES
from zoo_data import COUNTS, GROUP, SEEN, N, X, Y
from zoo_rows import named_as_plate, schools, several
from zoo_sites import deterministic, factors, linear

import pyro_fed as pf
from pyro_fed.ops.arviz_versions import NEW
from pyro_fed.ops.memory import DENSITY_NUMBERS
from pyro_fed.results import to_arviz
from pyro_fed.results.to_arviz import unconstrained_draws
from pyro_fed.runtime.messages import encoded_size
from pyro_fed.runtime.safetensors_header import Entry

az, xr = late("arviz"), late("xarray")

#: Runs of a round or two: what they say of it is not what these tests are about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:the particles have not converged", "ignore:PaperDSVGD as published", "ignore:.* clients never had a turn"
)

SVGD = pf.papers.PaperSVGD(num_particles=30, local_steps=3)
OTHER = pf.papers.PaperSVGD(num_particles=30, local_steps=6)
QUIET = {"num_rounds": 2, "progress": False, "compile": "off", "audit": False}
#: Rows scattered over clients, so that an order by client would be seen.
SCATTERED = pf.partition.Explicit([list(range(0, N, 2)), list(range(1, N, 2))])


def run(model, args, algorithm=SVGD, kwargs=None, **options):
    fed = pf.Federation(model, args, kwargs, plate="data", partition=SCATTERED, **options)
    return fed, pf.run(algorithm, fed, **QUIET)


@pytest.fixture(scope="module")
def fitted():
    return run(linear, (X, Y), dims={"w": ["feature"]}, coords={"feature": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("dims", "coords", "message"),
    [
        ({"v": ["feature"]}, {}, r"dims name the sites \['v'\].*its sites are \['w', 'sigma', 'y'\]"),
        ({"w": ["feature"]}, {"feature": ["a", "b"]}, r"coords\['feature'\] has 2 values, but site 'w' has 3 along it"),
    ],
)
def test_labels_that_do_not_fit_are_refused_before_a_run(dims, coords, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.Federation(linear, (X, Y), plate="data", num_clients=2, dims=dims, coords=coords)


def test_groups_dims_and_coords(fitted):
    _, idata = fitted
    assert groups_of(idata) == {
        "posterior",
        "sample_stats",
        "log_prior",
        "log_likelihood",
        "observed_data",
        "constant_data",
        "federation",
    }
    assert idata.posterior["w"].dims == ("chain", "draw", "feature")
    assert idata.posterior["w"].sel(feature="b").shape == (1, 30)
    assert idata.posterior["sigma"].dims == ("chain", "draw")
    assert bool((idata.posterior["sigma"] > 0).all())
    assert dict(idata.posterior.sizes) == {"chain": 1, "draw": 30, "feature": 3}
    assert idata.observed_data["y"].dims == ("data",)
    assert idata.constant_data["x"].dims == ("data", "x_dim_1")
    assert idata.federation["participated"].dims == ("round", "client")
    assert {"bytes_up", "bytes_down", "seconds", "change"} <= set(idata.federation)


def test_attributes_say_what_was_run(fitted):
    _, idata = fitted
    for attrs in (idata.attrs, idata.posterior.attrs):
        assert attrs["algorithm"] == "PaperSVGD"
        assert attrs["inference_library"] == "pyro_fed"
        assert attrs["seed"] == 0
        assert attrs["num_clients"] == 2
        assert "num_particles': 30" in attrs["settings"]
        assert "torch" in attrs["versions"]


def test_data_and_log_likelihood_are_in_the_original_row_order(fitted):
    fed, idata = fitted
    np.testing.assert_array_equal(idata.observed_data["y"].values, Y.numpy())
    np.testing.assert_array_equal(idata.constant_data["x"].values, X.numpy())
    w, sigma = (torch.as_tensor(idata.posterior[name].values[0]) for name in ("w", "sigma"))
    expected = dist.Normal(w @ X.T, sigma[:, None]).log_prob(Y)
    assert idata.log_likelihood["y"].dims == ("chain", "draw", "data")
    np.testing.assert_allclose(idata.log_likelihood["y"].values[0], expected.numpy(), rtol=1e-10)
    z = torch.cat([w, sigma.log()[:, None]], 1)
    lp = expected.sum(1) + fed.problem.log_prior(z)
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], lp.numpy(), rtol=1e-10)


def test_unconstrained_draws_invert_the_posterior(fitted):
    fed, idata = fitted
    z = unconstrained_draws(idata, fed.problem)
    np.testing.assert_allclose(fed.problem.constrain(z)["w"], idata.posterior["w"].values[0], rtol=1e-10)
    np.testing.assert_allclose(z[:, 3].exp(), idata.posterior["sigma"].values[0], rtol=1e-10)


ARVIZ = {
    "summary": lambda idata: az.summary(idata, kind="stats"),
    "plot_trace": lambda idata: az.plot_trace(idata),
    "plot_forest": lambda idata: az.plot_forest(idata),
    "plot_posterior": lambda idata: arviz_function("plot_posterior")(idata),
    "loo": lambda idata: az.loo(idata),
    "compare": lambda idata: az.compare({"fitted": idata, "other": run(linear, (X, Y), OTHER)[1]}, method="pseudo-BMA"),
}


@pytest.mark.parametrize("name", ARVIZ)
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # ArviZ's calls of matplotlib
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.sort_values")  # and of pandas
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # ArviZ 1.x, far in the tail
@pytest.mark.filterwarnings("ignore:Encountered error trying to compute ELPD")  # its compare, of that warning
@pytest.mark.usefixtures("close_figures")
def test_arviz_takes_it(fitted, name):
    _, idata = fitted
    answer = ARVIZ[name](idata)
    assert answer is not None
    if name == "summary":
        assert list(answer.index) == ["w[a]", "w[b]", "w[c]", "sigma"]
        assert answer.loc["w[a]", "mean"] == pytest.approx(float(idata.posterior["w"][..., 0].mean()), abs=1e-3)
    if name == "loo":
        assert answer.n_data_points == N


def test_netcdf_there_and_back(fitted, tmp_path):
    _, idata = fitted
    back = there_and_back(idata, tmp_path / "run.nc")
    assert groups_of(back) == groups_of(idata)
    for group, values in datasets(idata).items():
        xr.testing.assert_equal(datasets(back)[group], values)
    assert back.attrs["algorithm"] == "PaperSVGD"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_model_becomes_a_file(case, tmp_path):
    """All shapes and argument names go to NetCDF, and the particles are the draws."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pyro.param")
        fed = pf.Federation(case.model, case.args, case.kwargs, plate="data", num_clients=2)
    algorithm = pf.papers.PaperSVGD(num_particles=4, local_steps=1, step_size=1e-3)
    idata = pf.run(algorithm, fed, num_rounds=1, progress=False, compile="off", audit=False)
    back = there_and_back(idata, tmp_path / "run.nc")
    for name, site in {**fed.problem.sites, **fed.problem.layout.reported}.items():
        assert back.posterior[name].shape == (1, 4, *site.shape)
    assert set(back.log_likelihood.data_vars) == set(fed.problem.layout.observed)
    rows = int(SEEN.sum()) if any(arg is SEEN for arg in case.args) else N
    for values in back.log_likelihood.data_vars.values():
        assert values.shape == (1, 4, rows)


def test_each_observed_site_has_its_own_log_likelihood():
    fed, idata = run(several, (X, Y, COUNTS))
    assert set(idata.log_likelihood) == set(idata.observed_data) == {"y", "k"}
    w = torch.as_tensor(idata.posterior["w"].values[0])
    expected = dist.Poisson((w @ X.T).exp()).log_prob(COUNTS)
    np.testing.assert_allclose(idata.log_likelihood["k"].values[0], expected.numpy(), rtol=1e-9)
    total = fed.problem.log_lik(w).numpy()
    both = sum(idata.log_likelihood[name].values[0].sum(-1) for name in ("y", "k"))
    np.testing.assert_allclose(both, total, rtol=1e-9)


def test_factors_have_a_log_likelihood_and_no_data():
    _, idata = run(factors, (X, Y))
    assert set(idata.log_likelihood) == {"fit"}
    assert "observed_data" not in groups_of(idata)
    assert idata.constant_data["y"].shape == (N,)


def test_deterministic_sites_are_reported():
    _, idata = run(deterministic, (X, Y))
    w = idata.posterior["w"].values[0]
    np.testing.assert_allclose(idata.posterior["norm"].values[0], np.linalg.norm(w, axis=-1), rtol=1e-9)
    assert idata.posterior["mu"].dims == ("chain", "draw", "mu_dim_0")
    assert idata.posterior["centred"].dims == ("chain", "draw", "data")
    np.testing.assert_allclose(
        idata.posterior["centred"].values[0], w @ X.numpy().T - w.sum(-1, keepdims=True), rtol=1e-9
    )


def test_imputed_entries_are_not_reported_as_estimates():
    case = next(case for case in CASES if case.name == "obs_mask")
    _, idata = run(case.model, case.args)
    assert set(idata.posterior) == {"w"}


def test_plates_name_dims_and_take_coords():
    names = ["north", "east", "south", "west"]
    _, idata = run(schools, (Y, GROUP), coords={"groups": names, "data": np.arange(100, 100 + N)})
    assert idata.posterior["theta"].sel(groups="south").shape == (1, 30)
    for group in ("log_likelihood", "observed_data"):
        assert idata[group].coords["data"].values.tolist() == list(range(100, 100 + N))


def test_an_argument_named_like_the_plate_keeps_its_values():
    _, idata = run(named_as_plate, (X,))
    np.testing.assert_array_equal(idata.observed_data["y"].values, X.numpy())

    def with_offsets(data, offset):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("offset", len(data)):
            pyro.sample("y", dist.Normal(mu + offset, 1.0), obs=data)

    fed = pf.Federation(with_offsets, (Y, X[:, 0]), plate="offset", num_clients=2)
    idata = pf.run(SVGD, fed, **QUIET)
    np.testing.assert_array_equal(idata.constant_data["offset_values"].values, X[:, 0].numpy())


def test_log_likelihood_can_be_left_out(monkeypatch):
    fed = pf.Federation(linear, (X, Y), plate="data", partition=SCATTERED)
    without = pf.run(SVGD, fed, log_likelihood=False, **QUIET)
    assert "log_likelihood" not in groups_of(without)
    with_it = pf.run(SVGD, fed, **QUIET)
    np.testing.assert_allclose(without.sample_stats["lp"], with_it.sample_stats["lp"])
    monkeypatch.setattr(to_arviz, "MAX_POINTWISE", 10)
    with pytest.warns(UserWarning, match="log_likelihood of 30 draws × 13 rows is left out"):
        assert "log_likelihood" not in groups_of(pf.run(SVGD, fed, **QUIET))


def test_draws_evaluated_in_pieces_are_the_same(monkeypatch):
    _, whole = run(linear, (X, Y))
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 4 * N * DENSITY_NUMBERS)
    _, pieces = run(linear, (X, Y))
    for group in ("posterior", "sample_stats", "log_likelihood"):
        xr.testing.assert_allclose(whole[group], pieces[group])


def test_a_result_is_what_the_installed_arviz_has(fitted):
    """0.23: `arviz.InferenceData`; 1.x: `xarray.DataTree`, which takes its place."""
    assert isinstance(fitted[1], xr.DataTree if NEW else az.InferenceData)
    assert isinstance(fitted[1], pf.results.InferenceData)


def test_the_record_counts_bytes_and_rounds():
    fed = pf.Federation(linear, (X, Y), plate="data", partition=SCATTERED)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the KDE")
        idata = pf.run(
            pf.papers.PaperDSVGD(num_particles=3, local_steps=1, distill_steps=1),
            fed,
            num_rounds=3,
            progress=False,
            compile="off",
            audit=False,
        )
    table = idata.federation
    assert table["participated"].values.tolist() == [[True, False], [False, True], [True, False]]
    assert (
        np.nansum(table["bytes_up"].values, axis=1).tolist()
        == [encoded_size({"particles": Entry((3, 4), torch.float64)})] * 3
    )
    assert np.isnan(table["bytes_up"].values[0, 1])
    assert table["change"].dims == ("round",)
    assert np.isfinite(table["change"].values).all()


def sparse_parts(y):
    p = pyro.sample("p", dist.Dirichlet(torch.full((4,), 0.3)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


def parts_of_rows(y):
    """The same, with a latent a row."""
    p = pyro.sample("p", dist.Dirichlet(torch.full((4,), 0.3)))
    factor = pyro.sample("factor", dist.LKJCholesky(2, 1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(factor[1, 0], 1.0))
        pyro.sample("y", dist.Normal(z + p[0], 1.0), obs=y.float())


@pytest.mark.parametrize("model", [sparse_parts, parts_of_rows])
def test_parts_of_a_whole_are_taken_back_to_where_they_were_drawn(model):
    """Parts of 1e-9, of a model in float32: of values in float32 every hundredth comes back at 80, or 700."""
    y = torch.tensor([0] * 7 + [1] * 2)
    fed = pf.Federation(model, (y,), plate="data", num_clients=3)
    problem = fed.problem
    assert problem.dtype == torch.float32
    draws = 5.0 * torch.randn(1, 500, problem.dim, generator=torch.Generator().manual_seed(0))
    posterior = to_arviz.posterior_group(fed, problem, draws, None)
    np.testing.assert_allclose(posterior["p"].values.sum(-1), 1.0, atol=1e-15)
    torch.testing.assert_close(unconstrained_draws({"posterior": posterior}, problem), draws[0], rtol=1e-4, atol=1e-2)
    p = torch.distributions.biject_to(dist.constraints.simplex).inv(torch.tensor(posterior["p"].values[0]))
    torch.testing.assert_close(p.float(), draws[0, :, :3], rtol=1e-4, atol=1e-2)
