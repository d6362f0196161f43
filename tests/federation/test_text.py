"""Columns of text in a model: compared with labels, looked up by, or refused; never numbers by chance."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late
from torch.nn import functional as F

import pyro_fed as pf

RNG = np.random.default_rng(0)
N = 60
SEX = RNG.permutation(["male", "female"] * (N // 2))
GRADE = RNG.permutation(["low", "medium", "high"] * (N // 3))
X = RNG.normal(size=N)
DOSE = {"low": 1.0, "medium": 2.0, "high": 4.0}
Y = 2.0 * (SEX == "male") + np.array([DOSE[grade] for grade in GRADE]) + 0.5 * X + RNG.normal(size=N)
FRAME = pd.DataFrame({"sex": SEX, "grade": GRADE, "x": X, "y": Y, "flag": X > 0, "ward": RNG.integers(0, 3, N)})
RANKED = FRAME.assign(grade=pd.Categorical(GRADE, categories=list(DOSE), ordered=True))
process = late("pyro_fed.density.compiling.process")
QUIET = {"progress": False, "audit": False, "num_rounds": 20}


def regression(column):
    """A model whose covariate is made of the frame."""

    def model(df):
        a = pyro.sample("a", dist.Normal(0.0, 3.0))
        b = pyro.sample("b", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(df)):
            pyro.sample("y", dist.Normal(a + b * column(df), 1.0), obs=df["y"])

    return model


def federation(model, frame=FRAME, clients=3):
    return pf.Federation(model, (frame,), plate="rows", num_clients=clients)


def numeric(**columns):
    """The model on a column of numbers, which is the oracle."""
    frame = FRAME[["y"]].assign(z=np.asarray(columns["z"], dtype=float))
    return federation(regression(lambda df: df["z"]), frame)


def log_density(fed):
    z = torch.linspace(-1.0, 1.0, fed.problem.dim, dtype=torch.float64)
    with torch.no_grad():
        prior, rows = fed.problem.log_parts(z, fed.problem.rows)
    return float(prior + rows.sum())


MALE = SEX == "male"
NUMBERS = np.array([DOSE[grade] for grade in GRADE])
RIGHT = {
    "==": (lambda df: df["sex"] == "male", MALE),
    "== on the right": (lambda df: "male" == df.sex, MALE),  # noqa: SIM300
    "!=": (lambda df: (df["sex"] != "male").float(), ~MALE),
    "eq": (lambda df: df["sex"].eq("male").to(torch.float64), MALE),
    "ne": (lambda df: df["sex"].ne("male").to(torch.float64), ~MALE),
    "where": (lambda df: torch.where(df["sex"] == "male", 1.5, -0.5), np.where(MALE, 1.5, -0.5)),
    "isin": (lambda df: df["grade"].isin(["high", "low"]), GRADE != "medium"),
    "map": (lambda df: df["grade"].map(DOSE), NUMBERS),
    "map by a function": (lambda df: df["grade"].map(DOSE.get), NUMBERS),
    "values": (lambda df: torch.tensor((df["sex"].values == "male").astype(float)), MALE),
    "two columns": (lambda df: (df["sex"] == "male") & (df["grade"] == "low"), MALE & (GRADE == "low")),
    "a part of the rows": (lambda df: torch.cat([df.sex[:1] == "male", df.sex[1:] == "male"]), MALE),
    "a column of one": (lambda df: (df["sex"].unsqueeze(-1) == "male")[:, 0], MALE),
    "a sum over labels": (lambda df: sum(v * (df.grade == k) for k, v in DOSE.items()), NUMBERS),
    "with itself": (lambda df: df["sex"] == df["sex"], np.ones(N)),
    "not missing": (lambda df: df["sex"].notna() * 1.0, np.ones(N)),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("frame", [FRAME, FRAME.astype({"sex": "category", "grade": "category"})], ids=["text", "cat"])
def test_comparisons_with_labels(name, frame):
    column, values = RIGHT[name]
    fed = federation(regression(column), frame)
    assert log_density(fed) == pytest.approx(log_density(numeric(z=values)), rel=1e-12)


def test_the_answer_is_that_of_a_column_of_zeros_and_ones():
    fed = federation(regression(lambda df: df["sex"] == "male"))
    mine, oracle = pf.run(pf.FedEP(), fed, **QUIET), pf.run(pf.FedEP(), numeric(z=MALE), **QUIET)
    for name in ("a", "b"):
        np.testing.assert_allclose(mine["posterior"][name], oracle["posterior"][name], rtol=1e-8)
    new = FRAME.iloc[:4].assign(sex=["male", "female", "male", "male"])
    drawn = pf.predict(mine, fed, (new,))["posterior_predictive"]["y"].mean(["chain", "draw"])
    a, b = (float(mine["posterior"][name].mean()) for name in ("a", "b"))
    np.testing.assert_allclose(drawn, [a + b, a, a + b, a + b], atol=0.2)  # 1 / sqrt(1000 draws) is 0.03


TABLE = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
WRONG = {
    "times": (lambda df: df["sex"] * 1.0, r"'df\['sex'\]' is text .* number \(mul\): .* == 'male'"),
    "plus": (lambda df: 1 + df["sex"], r"number \(add\)"),
    "a float": (lambda df: df["sex"].float(), r"number \(float\)"),
    "to a dtype": (lambda df: df["sex"].to(torch.float64), r"number \(to\)"),
    "astype": (lambda df: df["sex"].astype(float), "converts it to float"),
    "a matrix": (lambda df: df[["sex", "x"]].values[:, 0], r"number \(to\)"),
    "stacked": (lambda df: torch.stack([df["sex"], df["ward"]]).sum(0), r"number \(stack\)"),
    "a typo": (lambda df: df["sex"] == "Male", "compared with 'Male' .* did you mean 'male'"),
    "a typo in isin": (lambda df: df["sex"].isin(["male", "femal"]), "'femal' .* did you mean 'female'"),
    "a typo in map": (lambda df: df["sex"].map({"male": 1.0, "Female": 0.0}), "no value for 1 of its labels"),
    "a code": (lambda df: df["sex"] == 1, "compared with 1"),
    "True": (lambda df: df["sex"] == True, "compared with True"),  # noqa: E712
    "None": (lambda df: df["sex"] == None, "compared with None"),  # noqa: E711
    "another column": (lambda df: df["sex"] == df["grade"], r"which has \[high, low, medium\]"),
    "a column of numbers": (lambda df: df["sex"] == df["ward"], "with numbers"),
    "greater": (lambda df: df["grade"] > "low", "by >, though its labels have no order"),
    "a dictionary": (lambda df: {"male": 1.0}.get(df["sex"], 0.0), "dictionary"),
    "a condition": (lambda df: torch.where(df["sex"].bool(), 1.0, 0.0), r"number \(bool\)"),
    "a mean": (lambda df: df["sex"].mean(), r"number \(mean\)"),
    "numbers with text": (lambda df: df["ward"] == "male", "numbers are compared with the text 'male'"),
    "truth values with text": (lambda df: df["flag"] != "yes", "numbers are compared with the text 'yes'"),
    "an in-place sum": (lambda df: torch.zeros(len(df)).add_(df["sex"]), r"number \(add_\)"),
    "einsum": (lambda df: torch.einsum("n,n->n", df["sex"], df["x"]), r"number \(einsum\)"),
    "bins": (lambda df: torch.bucketize(df["grade"], torch.tensor([0, 1])), r"number \(bucketize\)"),
    "not": (lambda df: ~df["sex"], r"number \(bitwise_not\)|number \(__invert__\)"),
    "a power": (lambda df: 2.0 ** df["grade"], "'grade'"),
    "an index that is computed": (lambda df: TABLE[(df["grade"] + 1) % 3], r"number \(add\)"),
    "a set": (lambda df: torch.tensor([sex in {"male", "m"} for sex in df["sex"]]), "dictionary or set"),
    "NumPy": (lambda df: torch.as_tensor(np.asarray(df["sex"]) == "male"), "'sex'"),
    "a density by hand": (lambda df: dist.Bernoulli(0.5).log_prob(df["sex"]), "'sex'"),
    "a cross entropy": (lambda df: F.cross_entropy(torch.zeros(len(df), 3), df["grade"], reduction="none"), "'grade'"),
    "a reported site": (lambda df: pyro.deterministic("seen", df["sex"]) * 0, "observes it at site 'seen'"),
    "a weight": (lambda df: pyro.poutine.scale(lambda: df["x"], scale=df["sex"])(), "'sex'"),
    "a distribution": (lambda df: dist.Normal(df["sex"], 1.0).mean, "'sex'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_text_is_no_number(name):
    column, words = WRONG[name]
    with pytest.raises(pf.errors.ModelError, match=words) as error:
        federation(regression(column))
    assert "test_text.py" in str(error.value)  # with the line
    clients = [(FRAME[: N // 2],), (FRAME[N // 2 :],)]
    with pytest.raises(pf.errors.ModelError, match=words):
        pf.Federation.from_clients(regression(column), clients, plate="rows")


@pytest.mark.parametrize(
    "fn",
    [
        lambda df, b: dist.Bernoulli(logits=b * df["x"]),
        lambda df, b: dist.OrderedLogistic(b * df["x"], torch.tensor([-1.0, 1.0])),
        lambda df, b: dist.Poisson(torch.exp(b * df["x"])),
        lambda df, b: dist.Binomial(2, logits=b * df["x"]),
        lambda df, b: dist.Normal(b * df["x"], 1.0),
    ],
    ids=["Bernoulli", "OrderedLogistic", "Poisson", "Binomial", "Normal"],
)
@pytest.mark.parametrize("name", ["sex", "grade"])
def test_text_without_an_order_is_no_outcome_of_ranks_or_counts(fn, name):
    """event and none would be 0 and 1; high, low and medium 0, 1 and 2."""

    def model(df):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(df)):
            pyro.sample("outcome", fn(df, b), obs=df[name])

    with pytest.raises(pf.errors.ModelError, match=r"observes it at site 'outcome'"):
        federation(model)


def ranks(df):
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(df)):
        pyro.sample("grade", dist.OrderedLogistic(b * df["x"], torch.tensor([-1.0, 1.0])), obs=df["grade"])


def as_numbers(df):
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(df)):
        grade = df["grade"]
        outcome = (grade == "medium").long() + 2 * (grade == "high").long()
        pyro.sample("grade", dist.OrderedLogistic(b * df["x"], torch.tensor([-1.0, 1.0])), obs=outcome)


def test_ordered_categories_keep_their_order():
    oracle = log_density(federation(as_numbers))
    assert log_density(federation(ranks, RANKED)) == pytest.approx(oracle, rel=1e-12)
    beyond = federation(regression(lambda df: df["grade"] >= "medium"), RANKED)
    assert log_density(beyond) == pytest.approx(log_density(numeric(z=GRADE != "low")), rel=1e-12)
    codes = federation(regression(lambda df: df["grade"].cat.codes), RANKED)
    places = [list(DOSE).index(grade) for grade in GRADE]
    assert log_density(codes) == pytest.approx(log_density(numeric(z=places)), rel=1e-12)


def ranked(values, categories=tuple(DOSE), **columns):
    return FRAME[: len(values)].assign(grade=pd.Categorical(values, categories=categories, ordered=True), **columns)


def test_clients_share_an_order():
    """A client that lacks a category, one that has text, and one whose order is another."""
    low = ranked(["low", "high"] * 10, ("low", "high"))
    text = FRAME[:20].assign(grade=["medium", "high"] * 10)
    fed = pf.Federation.from_clients(ranks, [(low,), (ranked(["medium"] * 20),), (text,)], plate="rows")
    assert fed.problem.arguments.labels["df['grade']"] == ("low", "medium", "high")
    with pytest.raises(pf.errors.DataError, match=r"\[high, low\] at client 1 .* \[low, medium, high\] at client 0"):
        two = [(ranked(["low", "high"] * 10),), (ranked(["low", "high"] * 10, ("high", "low")),)]
        pf.Federation.from_clients(ranks, two, plate="rows")
    with pytest.raises(pf.errors.DataError, match=r"\[low, severe\] at client 1 and the ordered"):
        two = [(ranked(["low", "high"] * 10),), (FRAME[:20].assign(grade=["low", "severe"] * 10),)]
        pf.Federation.from_clients(ranks, two, plate="rows")


def lookups(df, of):
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    s = pyro.sample("s", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(df)):
        pyro.sample("y", dist.Normal(of(df, b, s), 1.0), obs=df["y"])


def with_prior(df, of):
    b = pyro.sample("b", dist.Normal(torch.tensor([0.0, 1.0, 2.0]), 1.0).to_event(1))
    with pyro.plate("rows", len(df)):
        pyro.sample("y", dist.Normal(b[df["grade"]], 1.0), obs=df["y"])


def classes(df, of):
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("rows", len(df)):
        logits = torch.cat([torch.zeros(1, dtype=b.dtype), b]) + 0.0 * df["x"].unsqueeze(-1)
        pyro.sample("grade", dist.Categorical(logits=logits), obs=df["grade"])


def two_classes(df, of):
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("rows", len(df)):
        pyro.sample("sex", dist.Categorical(torch.stack([1 - p, p])), obs=df["sex"])


NUMBERED = {
    "constants": (lookups, lambda df, b, s: s * TABLE[df["grade"]]),
    "codes": (lookups, lambda df, b, s: s * df["grade"].cat.codes),
    "a sum over grades": (lookups, lambda df, b, s: b.cumsum(0)[df["grade"]]),
    "a first one": (lookups, lambda df, b, s: F.one_hot(df["grade"], 3)[:, 1:].to(b.dtype) @ b[1:]),
    "covariates of groups": (lookups, lambda df, b, s: (b + s * TABLE)[df["grade"]]),
    "a code that is compared": (lookups, lambda df, b, s: s * (df["sex"].cat.codes == 1)),
    "a prior of each": (with_prior, None),
    "classes": (classes, None),
    "two classes": (two_classes, None),
    "take": (lookups, lambda df, b, s: s * torch.take(TABLE, df["grade"])),
    "categories in another order": (
        lookups,
        lambda df, b, s: (df["grade"].unsqueeze(-1) == torch.tensor([2, 0, 1])).to(b.dtype) @ b,
    ),
    "one-hot sums": (lookups, lambda df, b, s: F.one_hot(df["grade"], 3).cumsum(1).to(b.dtype) @ b),
    "a logit by code": (
        lookups,
        lambda df, b, s: torch.log_softmax(s * df["x"].unsqueeze(-1) * TABLE, -1).gather(-1, df["grade"].unsqueeze(-1))[
            :, 0
        ],
    ),
    "a weight by code": (lookups, lambda df, b, s: s * torch.gather(TABLE, 0, df["grade"])),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_a_numbering_that_matters_is_named(name):
    model, of = NUMBERED[name]
    with pytest.warns(UserWarning, match=r"labels of argument 'df\['\w+'\]' are numbered.* = 0, .* = 1"):
        federation(lambda df: model(df, of))
    if model is not two_classes and "sex" not in str(of) and name != "a code that is compared":
        federation(lambda df: model(df, of), RANKED)  # whose order is said


ALIKE = {
    "a lookup": lambda df, b, s: b[df["grade"]],
    "with a reference": lambda df, b, s: b[df["grade"]] + s * (df["sex"] == "male"),
    "one-hot": lambda df, b, s: F.one_hot(df["grade"], 3).to(b.dtype) @ b,
    "embedding": lambda df, b, s: F.embedding(df["grade"], b.unsqueeze(-1))[:, 0],
    "index_select": lambda df, b, s: torch.index_select(b, 0, df["grade"]),
    "its codes": lambda df, b, s: b[df["grade"].cat.codes],
    "as long": lambda df, b, s: b[df["grade"].long()],
    "as a tensor": lambda df, b, s: b[torch.tensor(df["grade"].values, dtype=torch.long)],
    "comparisons": lambda df, b, s: b[0] * (df["grade"] == "low") + b[1] * (df["grade"] == "high"),
    "latents by label": lambda df, b, s: df["grade"].map({"low": b[0], "medium": b[1], "high": s}),
    "not at all": lambda df, b, s: b[0] + s,
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_numbering_that_does_not_matter_is_not_spoken_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federation(lambda df: lookups(df, ALIKE[name]))


def clients_of(*columns):
    frames = [FRAME[20 * k : 20 * k + len(column)].assign(sex=column) for k, column in enumerate(columns)]
    return {f"c{k}": (frame,) for k, frame in enumerate(frames)}


WORDS, LETTERS, MEN = ["male", "female"] * 10, ["M", "F"] * 10, ["male"] * 20
CODINGS = {
    "words and letters": (lambda df: df["sex"] == "male", (WORDS, LETTERS), r"\[F, M\] at client c1"),
    "other words": (lambda df: df["sex"] == "male", (WORDS, WORDS, ["m", "w"] * 10), r"\[m, w\] at client c2"),
    "one label alone": (lambda df: df["sex"] == "male", (WORDS, ["M"] * 20), r"\[M\] at client c1"),
    "with unknown": (
        lambda df: df["sex"] == "male",
        (["male", "unknown"] * 10, ["M", "unknown"] * 10),
        "'M' and 'male'",
    ),
    "capitals": (lambda df: df["sex"] == "male", (WORDS, ["Male", "Female"] * 10), "capitals"),
}


@pytest.mark.parametrize("name", CODINGS)
def test_clients_that_code_one_thing_in_two_ways(name):
    column, columns, words = CODINGS[name]
    with pytest.warns(UserWarning, match=words):
        pf.Federation.from_clients(regression(column), clients_of(*columns), plate="rows")
    frame = pd.concat([frame for (frame,) in clients_of(*columns).values()])
    site = np.repeat([f"c{k}" for k in range(len(columns))], [len(column) for column in columns])
    with pytest.warns(UserWarning, match=words):
        each = pf.partition.ByGroup(site)
        pf.Federation(regression(column), (frame.reset_index(drop=True),), plate="rows", partition=each)


def levels(df):
    level = pyro.sample("level", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with pyro.plate("rows", len(df)):
        pyro.sample("y", dist.Normal(level[df["sex"]], 1.0), obs=df["y"])


def test_looked_up_letters_beside_words_are_named_and_hospitals_are_not():
    with pytest.warns(UserWarning, match=r"'F' and 'female', 'M' and 'male', never both at one client"):
        pf.Federation.from_clients(levels, clients_of(WORDS, LETTERS), plate="rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = (["site 1"] * 20, ["site 12", "site 2"] * 10, ["Chur"] * 20)
        pf.Federation.from_clients(levels, clients_of(*names), plate="rows")
        pf.Federation.from_clients(regression(lambda df: df["sex"] == "male"), clients_of(WORDS, MEN), plate="rows")
        regions = (["north"] * 20, ["north"] * 20, ["south"] * 20)  # a column that the model does not use
        pf.Federation.from_clients(regression(lambda df: df["y"] > 9), clients_of(*regions), plate="rows")


def test_a_client_of_one_row_and_a_label_that_it_lacks():
    model = regression(lambda df: df["sex"] == "female")
    one = pd.concat([FRAME[FRAME.sex == "male"][:1], FRAME]).reset_index(drop=True)
    apart = pf.Federation.from_clients(model, [(one[:1],), (one[1:],)], plate="rows")
    assert log_density(apart) == pytest.approx(log_density(federation(model, one)), rel=1e-12)


def test_text_at_one_client_and_numbers_at_another():
    def model(sex, y):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(b * (sex == "male"), 1.0), obs=y)

    for numbers in (torch.ones(N, dtype=torch.int64), np.ones(N, dtype=int), [1] * N, np.ones(N, dtype=bool)):
        with pytest.raises(pf.errors.DataError, match=r"'sex' holds numbers here, and text .* \[female, male\]"):
            pf.Federation.from_clients(model, [(SEX, Y), (numbers, Y + 1.0)], plate="rows")
    fed = pf.Federation(model, (SEX, Y), plate="rows", num_clients=2)
    with pytest.raises(pf.errors.DataError, match="'sex' holds numbers here"):
        fed.with_args((torch.ones(N, dtype=torch.int64), Y))


def test_compiled_steps_are_of_these_labels():
    """Two federations of one model and one shape, whose codes stand for other labels but in the first rows."""
    model = regression(lambda df: df["sex"] == "male")
    frame = FRAME.assign(sex=np.where(np.arange(N) < N // 2, "female", np.where(MALE, "male", "unknown")))
    other = frame.replace({"sex": {"unknown": "intersex"}})  # before male
    other["y"] = frame["y"]
    feds = [federation(model, one) for one in (frame, other)]
    assert len({process.mark_of(fed.problem, "trace") for fed in feds}) == 2
    answers = [pf.run(pf.FedEP(), fed, compile="trace", **QUIET)["posterior"]["b"].mean() for fed in feds]
    assert float(answers[0]) == pytest.approx(float(answers[1]), rel=1e-6)


def test_categories_of_numbers_and_columns_of_arrays():
    ward = pd.Categorical(FRAME["ward"] * 10 + 7)
    model = regression(lambda df: df["ward"] == 17)
    fed = federation(model, FRAME.assign(ward=ward))
    assert log_density(fed) == pytest.approx(log_density(numeric(z=FRAME["ward"] == 1)), rel=1e-12)
    with pytest.raises(pf.errors.ModelError, match=r"compared with 1 .*not one of its labels"):
        federation(regression(lambda df: df["ward"] == 1), FRAME.assign(ward=ward))

    def arrays(sex, y):
        b = pyro.sample("b", dist.Normal(0.0, 3.0))
        a = pyro.sample("a", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(a + b * (sex == "male"), 1.0), obs=y)

    for column in (SEX, list(SEX), SEX.astype(object), pd.Series(SEX, dtype="string")):
        assert pf.Federation(arrays, (column, Y), plate="rows", num_clients=2).problem.dim == 2


def test_a_column_can_be_copied_pickled_and_shown_without_its_rows():
    (frame,), _ = federation(regression(lambda df: df["sex"] == "male")).client_args(0)
    sex = frame["sex"]
    for other in (copy.deepcopy(sex), pickle.loads(pickle.dumps(sex)), sex.clone(), sex[:3]):
        assert torch.equal(other == "male", (sex == "male")[: len(other)])
    assert "female, male" in repr(sex) and f"{sex}" == repr(sex) and "tensor" not in repr(sex)
    assert [bool(one == "male") for one in sex][:3] == (sex == "male")[:3].tolist()
    assert sex.cat.categories == ("female", "male") and not sex.cat.ordered
    assert sex.astype("category") is sex and sex.astype(int).labels == sex.labels


def of_hospitals(hospital, beds, y, of):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("hospitals", 3):
        a = pyro.sample("a", dist.Normal(mean, 1.0))
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.Normal(of(a, hospital, beds), 1.0), obs=y)


HOSPITAL = RNG.permutation(["Basel", "Chur", "Jena"] * (N // 3))
BEDS = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
SPLIT = {"plate": "hospitals", "rows": {"patients": "hospital"}, "num_clients": 3}


def hospitals(of, **options):
    model = lambda hospital, beds, y: of_hospitals(hospital, beds, y, of)  # noqa: E731
    return pf.Federation(model, (HOSPITAL, BEDS, Y), **SPLIT, **options)


def test_whose_a_row_is_is_looked_up_by_alone():
    hospitals(lambda a, h, beds: a[h])
    with pytest.raises(pf.errors.ModelError, match=r"each row's group, .* pass the column again"):
        hospitals(lambda a, h, beds: a[h] + (h == "Chur"))


def test_covariates_of_groups_in_an_order_that_nobody_has_said():
    """The beds of the first hospital are those of the first one by alphabet, or of another one."""
    with pytest.warns(UserWarning, match=r"'hospital' are numbered.* 'Basel' = 0"):
        hospitals(lambda a, h, beds: a[h] + beds[h])
    hospitals(lambda a, h, beds: a[h] + beds[h], coords={"hospitals": ["Basel", "Chur", "Jena"]})


def test_what_rows_are_called_is_not_printed():
    """A column with a text of each row's own; numbers and dates as text."""
    names = [f"patient 471{i}" for i in range(N)]
    for column in (lambda df: df["sex"] * 1.0, lambda df: df["sex"] == "patient", lambda df: {}[df["sex"]]):
        with pytest.raises(pf.errors.ModelError, match="60 labels") as error:
            federation(regression(column), FRAME.assign(sex=names))
        assert "471" not in str(error.value)
    texts = {"numbers": [f"4711.{i}" for i in range(N)], "dates": [f"2024-04-{i % 30:02}" for i in range(N)]}
    for words, values in texts.items():
        with pytest.raises(pf.errors.DataError, match=f"reads as {words}") as error:
            federation(regression(lambda df: df["x"]), FRAME.assign(sex=values))
        assert "471" not in str(error.value) and "04-" not in str(error.value)


def test_a_client_s_own_arguments_are_arguments_again():
    frame = pd.DataFrame({"sex": SEX, "ward": FRAME["ward"], "y": (Y > 1).astype(int)})

    def model(df):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(df)):
            pyro.sample("y", dist.Bernoulli(logits=b * (df["sex"] == "male") + df["ward"]), obs=df["y"])

    fed = federation(model, frame)
    again = pf.Federation.from_clients(model, [fed.client_args(k)[0] for k in range(3)], plate="rows")
    assert log_density(again) == pytest.approx(log_density(fed), rel=1e-12)
    idata = pf.run(pf.FedEP(), fed, **QUIET)
    one = pf.predict(idata, fed, *fed.client_args(0))["posterior_predictive"]["y"]
    assert one.sizes["rows"] == len(fed.client_rows[0]) and pf.predict(idata, fed)["posterior_predictive"]["y"].size


def test_densities_that_are_infinite_somewhere_do_not_hide_a_numbering():
    def model(df):
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(df)):
            pyro.factor("wall", torch.where(df["x"] > 100.0 * s.abs(), -torch.inf, 0.0))
            pyro.sample("y", dist.Normal(s * TABLE[df["grade"]], 1.0), obs=df["y"])

    with pytest.warns(UserWarning, match=r"labels of argument 'df\['grade'\]' are numbered"):
        federation(model)
