"""The cases: closed forms against the models' own densities, splits, posteriordb's files."""

import itertools
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from posteriordb import needs_data
from torch.func import grad, hessian

from pyro_fed.analysis.bench.bench import run_benchmark
from pyro_fed.analysis.bench.cases import posteriordb
from pyro_fed.analysis.bench.cases.case import NotApplicable, Split, classes
from pyro_fed.analysis.bench.cases.library import (
    QUICK,
    SPLITS,
    all_cases,
    gallery_cases,
    missing_cases,
    stored_reference,
)
from pyro_fed.analysis.bench.cases.posteriordb import find, has
from pyro_fed.analysis.bench.cases.stan_models import NO_ROWS, POSTERIORS
from pyro_fed.errors import DataError, SettingError
from pyro_fed.federation.partition.base import as_values

GAUSSIAN = ("gaussian_mean", "gaussian_covariance", "linear_regression")


def log_density(problem):
    """Log joint density of an unconstrained vector (D,)."""

    def density(z):
        prior, rows = problem.log_parts(z, problem.rows)
        return prior + rows.sum()

    return density


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_references_are_the_models(name):
    case = all_cases()[name]
    args = case.data()
    density = log_density(Split.parse("iid/2").federation(case, 0).problem)
    (values,) = case.reference(args).values.values()
    flat = torch.as_tensor(values).reshape(values.shape[1], -1)
    curvature = -hessian(density)(flat.mean(0))
    covariance = torch.cov(flat.T, correction=0).reshape(curvature.shape)
    torch.testing.assert_close(covariance, torch.linalg.inv(curvature), rtol=1e-6, atol=1e-12)
    step = covariance @ grad(density)(flat.mean(0)) / covariance.diagonal().sqrt()
    assert step.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "ends"),
    [("beta_bernoulli", [(-9, 0)]), ("normal_gamma", [(-4, 2), (-2, 8)]), ("gaussian_mixture_1d", [(-9, 9)])],
)
def test_other_references_are_the_models(name, ends):
    """Moments by a grid over the unconstrained space."""
    case = all_cases()[name]
    problem = Split.parse("iid/2").federation(case, 0).problem
    count = {1: 20_001, 2: 301}[len(ends)]
    axes = [torch.linspace(*end, count, dtype=torch.float64) for end in ends]
    z = torch.cartesian_prod(*axes).reshape(-1, len(ends))
    weights = torch.softmax(torch.func.vmap(log_density(problem))(z), 0).numpy()
    values = {site: np.asarray(value).reshape(len(z)) for site, value in problem.constrain(z).items()}
    for site, known in case.reference(case.data()).values.items():
        mean = weights @ values[site]
        sd = np.sqrt(weights @ (values[site] - mean) ** 2)
        assert known.mean() == pytest.approx(mean, abs=2e-3 * sd)
        assert known.std() == pytest.approx(sd, rel=1e-2)


def test_references_that_are_kept_are_of_the_data_that_are_here():
    for case in gallery_cases():
        reference = case.reference(case.data())
        assert not reference.exact
        assert all(np.isfinite(value).all() and value.shape[:2] == (4, 500) for value in reference.values.values())
    with pytest.raises(DataError, match="was made for other data"):
        stored_reference("logistic_regression", (torch.zeros(3),))
    with pytest.raises(DataError, match="is missing, expected the file"):
        stored_reference("none", ())


@needs_data
@pytest.mark.parametrize("name", POSTERIORS)
def test_reference_draws_are_of_the_model(name):
    """Stein's identities E[∇ log π] = 0 and E[(z - m) ∇ log π'] = -I, in coordinates that whiten the draws.

    Batch means have Student's t with 19 degrees of freedom: of the few thousand numbers of all posteriors none is
    beyond 8 standard errors but once in a thousand sets of draws, and these are fixed.
    """
    if not has(find(), POSTERIORS[name].full_name):
        pytest.skip(f"$PYRO_FED_DATA/posteriordb has no {POSTERIORS[name].full_name}")
    case = POSTERIORS[name].case(name, find())
    args = case.data()
    problem = Split.parse("iid/2").federation(case, 0).problem
    values = case.reference(args).values
    assert {site: tuple(one.shape) for site, one in problem.sites.items()} == {
        site: value.shape[2:] for site, value in values.items()
    }
    thin = max(5, sum(arg.numel() for arg in args) // 2_000)  # draws of few numbers are many
    draws = {site: torch.as_tensor(value.reshape(-1, *value.shape[2:])[::thin]) for site, value in values.items()}
    z = torch.func.vmap(problem.unconstrain)(draws)
    root = torch.linalg.cholesky(torch.cov(z.T))
    white = torch.linalg.solve_triangular(root, (z - z.mean(0)).T, upper=False).T
    score = torch.func.vmap(grad(log_density(problem)), chunk_size=200)(z) @ root
    products = white[:, :, None] * score[:, None] + torch.eye(len(root))
    for numbers in (score, products.flatten(1)):
        batches = torch.stack([some.mean(0) for some in numbers.tensor_split(20)])
        error = batches.std(0) / 20**0.5
        assert (batches.mean(0).abs() <= 8 * error + 0.01).all()


def test_what_does_not_split_by_rows_is_refused_by_name():
    with pytest.raises(SettingError, match="'hmm_example' does not split by rows: all rows are one series of hidden"):
        run_benchmark(Path("unused"), cases=["hmm_example"])
    assert not NO_ROWS.keys() & POSTERIORS.keys()


def test_splits_are_read_and_their_mistakes_refused():
    cases = all_cases()
    case = cases["linear_regression"]
    args = case.data()
    assert [str(Split.parse(text)) for text in SPLITS] == list(SPLITS)
    for text in ("iid", "sorted/0", "dirichlet/3", "dirichlet:x/3", "rows/4", "iid/two", "iid/²"):
        with pytest.raises(SettingError, match="expected iid, sorted, group or dirichlet"):
            Split.parse(text)
    fed = Split.parse("sorted/10").federation(case, 0)
    column = args[0][:, 2]
    ends = [(column[rows].min(), column[rows].max()) for rows in fed.client_rows]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    again = [Split.parse("dirichlet:0.3/10").federation(case, 7).row_counts.tolist() for _ in range(2)]
    assert again[0] == again[1]
    with pytest.raises(NotApplicable, match="normal_gamma has 20 rows, too few for 100 clients"):
        Split.parse("iid/100").partition(cases["normal_gamma"], cases["normal_gamma"].data())
    with pytest.raises(NotApplicable, match="has 0 groups"):
        Split.parse("group/10").partition(cases["normal_gamma"], cases["normal_gamma"].data())
    assert set(QUICK) <= set(cases)
    for name, text in QUICK.items():
        Split.parse(text).partition(cases[name], cases[name].data())


def test_every_case_splits_by_every_default_split_or_says_why_not():
    """Each row has one label and one place in the order, whatever the shape of its observation."""
    for name, case in all_cases().items():
        args = case.data()
        places, labels = (as_values(column(args), name) for column in (case.sort_by, case.labels))
        assert len(places) == len(labels), name
        for text in SPLITS:
            try:
                Split.parse(text).partition(case, args)
            except NotApplicable as error:
                assert "rows, too few" in str(error) or "groups" in str(error)


def test_classes_are_labels_or_quarters():
    assert classes(np.array([5.0, 2.0, 5.0])).tolist() == [1, 0, 1]
    assert np.bincount(classes(np.arange(40.0))).tolist() == [10, 10, 10, 10]


def test_posteriordb_is_read_from_a_clone_and_from_extracts(tmp_path, monkeypatch):
    """Both layouts, of made-up draws of `mesquite`'s parameters."""
    rng = np.random.default_rng(0)
    names = ["beta[1]", "beta[2]", "beta[3]", "beta[4]", "sigma"]
    draws = {name: rng.normal(size=(10, 7)) for name in names}
    full = POSTERIORS["mesquite"].full_name
    raw = {name: [1.0, 2.0, 3.0] for name in ("diam1", "diam2", "canopy_height", "group", "weight")}

    inside = tmp_path / "clone" / "posterior_database"
    for folder in ("posteriors", "data/data", "reference_posteriors/draws/draws"):
        (inside / folder).mkdir(parents=True)
    (inside / "posteriors" / f"{full}.json").write_text(json.dumps({"data_name": "mesquite"}))
    chains = [{name: value[chain].tolist() for name, value in draws.items()} for chain in range(10)]
    for path, content in (
        (inside / "data" / "data" / "mesquite.json.zip", raw),
        (inside / "reference_posteriors" / "draws" / "draws" / f"{full}.json.zip", chains),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, json.dumps(content))
    extract = tmp_path / "extracts" / full
    extract.mkdir(parents=True)
    (extract / "data.json").write_text(json.dumps(raw))
    np.savez(extract / "reference.npz", **draws)

    for folder in (tmp_path / "clone", tmp_path / "extracts"):
        cases = all_cases(folder)
        assert "mesquite" in cases and "kidiq" in missing_cases(folder)
        found = cases["mesquite"].reference(cases["mesquite"].data())
        np.testing.assert_array_equal(found.values["beta"], np.stack([draws[name] for name in names[:4]], -1))
        np.testing.assert_array_equal(found.values["sigma"], draws["sigma"])
        assert cases["mesquite"].data()[0].shape == (3, 4)
    monkeypatch.delenv(posteriordb.VARIABLE, raising=False)
    assert "mesquite" not in all_cases() and "mesquite" in missing_cases()
    (extract / "data.json").write_text("[1]")
    with pytest.raises(DataError, match="expected a JSON object"):
        all_cases(tmp_path / "extracts")["mesquite"].data()


@pytest.mark.parametrize(
    "content", ["{", "[]", "[1]", '[{"sigma": ["a"]}]', '[{"sigma": [1.0]}, {}]', '[{"sigma": 1.0}]']
)
def test_damaged_files_of_posteriordb_are_named(tmp_path, content):
    """JSON that is none, and JSON of another form, of the data and of the reference draws."""
    full = POSTERIORS["mesquite"].full_name
    (tmp_path / "posteriors").mkdir()
    (tmp_path / "posteriors" / f"{full}.json").write_text(json.dumps({"data_name": "mesquite"}))
    for read, path in (
        (posteriordb.read_data, tmp_path / "data" / "data" / "mesquite.json.zip"),
        (posteriordb.read_draws, tmp_path / "reference_posteriors" / "draws" / "draws" / f"{full}.json.zip"),
    ):
        path.parent.mkdir(parents=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, content)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read(tmp_path, full)


def test_damaged_extracts_of_posteriordb_are_named(tmp_path):
    full = POSTERIORS["mesquite"].full_name
    (tmp_path / full).mkdir()
    path = tmp_path / full / "reference.npz"
    path.write_bytes(b"PK, cut off")
    with pytest.raises(DataError, match=re.escape(str(path))):
        posteriordb.read_draws(tmp_path, full)
