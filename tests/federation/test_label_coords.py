"""Labels of text name the dimensions that their codes look up, and no others of the same length."""

import warnings

import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

N = 24
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, dtype=torch.float64, generator=GENERATOR)
Y = torch.randn(N, dtype=torch.float64, generator=GENERATOR)
STAGE = pd.Series(["early", "late", "none"] * 8)


def weights(size):
    return pyro.sample("w", dist.Normal(torch.zeros(size, dtype=torch.float64), 1.0).to_event(1))


def beside(x, stage, y):
    """Three covariates, and a column of three stages that is not used."""
    w = weights(3)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def both(x, stage, y):
    w = weights(3)
    level = pyro.sample("level", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + level[stage], 1.0), obs=y)


def one_hot(x, stage, y):
    w = weights(3)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.nn.functional.one_hot(stage, 3).double() @ w, 1.0), obs=y)


def two_steps(x, stage, y):
    """The stages' levels are looked up by latents of rows."""
    level = pyro.sample("level", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        own = pyro.sample("own", dist.Normal(level[stage], 1.0))
        pyro.sample("y", dist.Normal(own, 1.0), obs=y)


def ordered(x, stage, y):
    """Each stage adds to those before: row k depends on more than element k."""
    w = weights(3)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w.cumsum(0)[stage], 1.0), obs=y)


def classes(x, stage, y):
    """Stages as outcome: columns of the weights are stages."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 3, dtype=torch.float64), 1.0).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("stage", dist.Categorical(logits=x[:, :2] @ w), obs=stage)


def rates(x, stage, y):
    rate = pyro.sample("rate", dist.Dirichlet(torch.ones(3, dtype=torch.float64)))
    with pyro.plate("data", len(y)):
        pyro.sample("stage", dist.Categorical(rate), obs=stage)


def ranks(x, stage, y):
    """Stages as an ordered outcome of three covariates."""
    w = weights(3)
    cuts = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    with pyro.plate("data", len(y)):
        pyro.sample("stage", dist.OrderedLogistic(x @ w, cuts), obs=stage)


LABELS = ["early", "late", "none"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (beside, {}),
        (both, {"level_dim_0": LABELS}),
        (one_hot, {"w_dim_0": LABELS}),
        (two_steps, {"level_dim_0": LABELS}),
        (ordered, {}),
        (classes, {"w_dim_1": LABELS}),
        (rates, {"rate_dim_0": LABELS}),
        (ranks, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_looked_up_by_the_codes_has_their_labels(model, expected):
    stage = pd.Categorical(STAGE, ordered=True) if model in (ordered, ranks) else STAGE
    assert pf.Federation(model, (X, stage, Y), plate="data", num_clients=3).coords == expected


def test_rows_of_groups_look_up_too():
    def hospitals(hospital, stage, y, count):
        level = pyro.sample("level", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("hospitals", count):
            a = pyro.sample("a", dist.Normal(0.0, torch.ones(3)).to_event(1))
        with pyro.plate("patients", len(y)):
            pyro.sample("y", dist.Normal(level[stage] + a[hospital, 1], 1.0), obs=y)

    hospital = pd.Series([f"hospital {i % 4}" for i in range(N)])
    fed = pf.Federation(
        hospitals, (hospital, STAGE, Y, 4), plate="hospitals", rows={"patients": "hospital"}, num_clients=2
    )
    assert fed.coords["level_dim_0"] == LABELS
    assert set(fed.coords) == {"level_dim_0", "hospitals"}


def three_levels(age, ward, hospital, y, wards, hospitals):
    """Patients in wards in hospitals."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("hospital", hospitals):
        a = pyro.sample("a", dist.Normal(mu, 1.0))
    with pyro.plate("ward", wards):
        c = pyro.sample("c", dist.Normal(a[hospital], 1.0))
    with pyro.plate("patient", len(age)):
        pyro.sample("y", dist.Normal(c[ward] + age, 1.0), obs=y)


WARD = torch.arange(N) % 6
HOSPITAL = ["Bern", "Bern", "Chur", "Chur", "Chur", "Jena"]  # of each ward
LEVELS = (X[:, 0], WARD, pd.Series(HOSPITAL), Y, 6, 3)


def test_three_levels_are_split_by_the_middle_one():
    with pytest.raises(
        pf.errors.DataError, match=r"'ward', in between: .*plate='ward' with rows=\{'patient': 'ward'\}"
    ):
        pf.Federation(three_levels, LEVELS, plate="hospital", rows={"patient": "ward"}, num_clients=3)
    split = {"plate": "ward", "rows": {"patient": "ward"}}
    fed = pf.Federation(three_levels, LEVELS, **split, partition=pf.partition.ByGroup(HOSPITAL))
    assert fed.client_names == ["Bern", "Chur", "Jena"]
    assert [rows.tolist() for rows in fed.client_rows] == [[0, 1], [2, 3, 4], [5]]
    assert fed.coords == {"hospital": ["Bern", "Chur", "Jena"]}


def test_a_column_of_the_rows_groups_their_elements():
    column = [HOSPITAL[ward] for ward in WARD]
    fed = pf.Federation(
        three_levels, LEVELS, plate="ward", rows={"patient": "ward"}, partition=pf.partition.ByGroup(column)
    )
    assert [rows.tolist() for rows in fed.client_rows] == [[0, 1], [2, 3, 4], [5]]
    with pytest.raises(pf.errors.SettingError, match=r"rows of one element have several, Bern and Chur \(row 6\)"):
        pf.Federation(
            three_levels,
            LEVELS,
            plate="ward",
            rows={"patient": "ward"},
            partition=pf.partition.ByGroup([*column[:6], "Chur", *column[7:]]),
        )
    with pytest.raises(
        pf.errors.SettingError, match=r"by is the text 'hospital'; give the column .*frame\['hospital'\]"
    ):
        pf.partition.ByGroup("hospital")


def test_what_is_missing_and_masked_is_no_dependence():
    y = Y.clone()
    y[3] = torch.nan

    def masked(stage, y):
        level = pyro.sample("level", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(level[stage], 1.0), obs=y, obs_mask=~torch.isnan(y))

    assert pf.Federation(masked, (STAGE, y), plate="data", num_clients=3).coords == {"level_dim_0": LABELS}


def test_gradients_that_are_switched_off_are_switched_on():
    with torch.no_grad():
        fed = pf.Federation(both, (X, STAGE, Y), plate="data", num_clients=3)
    assert fed.coords == {"level_dim_0": LABELS}


@pytest.mark.parametrize("names", [["early", "late", "gone"], ["Early", "Late", "None"], ["early", "early", "late"]])
def test_elements_are_not_called_by_the_names_of_others(names):
    with pytest.raises(pf.errors.SettingError, match=r"looked up by argument 'stage', whose codes .* stand for"):
        pf.Federation(
            both, (X, STAGE, Y), plate="data", num_clients=2, dims={"level": ["stage"]}, coords={"stage": names}
        )


def by_index(grade, y):
    effect = pyro.sample("effect", dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0).to_event(1))
    before = torch.cat([torch.zeros(1, dtype=torch.float64), effect.cumsum(0)])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(before[grade], 1.0), obs=y)


def by_embedding(grade, y):
    effect = pyro.sample("effect", dist.Normal(torch.zeros(4, 1, dtype=torch.float64), 1.0).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.nn.functional.embedding(grade, effect)[:, 0], 1.0), obs=y)


def by_selection(grade, y):
    effect = pyro.sample("effect", dist.Normal(torch.zeros(2, 4, dtype=torch.float64), 1.0).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.index_select(effect, 1, grade).sum(0), 1.0), obs=y)


def by_one_hot(grade, y):
    effect = pyro.sample("effect", dist.Normal(torch.zeros(4, dtype=torch.float64), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.nn.functional.one_hot(grade, 4).double() @ effect, 1.0), obs=y)


def as_outcome(grade, y):
    cuts = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("grade", dist.OrderedLogistic(slope * y, cuts), obs=grade)


@pytest.mark.parametrize("model", [by_index, by_embedding, by_selection, by_one_hot, as_outcome])
def test_labels_without_rows_are_warned_of(model):
    """Of four grades the second has no rows: "3 severe" is number 1, where the model means the second grade."""
    grade = pd.Categorical(["1 none", "3 severe", "4 fatal"] * 8, ordered=True)
    with pytest.warns(UserWarning, match="'grade' has 3 labels, .* one of 4 elements"):
        pf.Federation(model, (grade, Y), plate="data", num_clients=3)
    grades = ["1 none", "2 mild", "3 severe", "4 fatal"]
    named = pd.Categorical(grade, categories=grades, ordered=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.Federation(model, (named, Y), plate="data", num_clients=3)
        pf.Federation(model, (pd.Categorical(grades * 6, ordered=True), Y), plate="data", num_clients=3)
