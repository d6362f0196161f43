"""The codebook's file, and tables of all forms against it."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import pyro_fed as pf

BOOK = """
missing = ["", "NA"]
[columns.id]
type = "identifier"
[columns.age]
type = "integer"
unit = "years"
range = [18, 100]
complete = true
[columns.sex]
type = "category"
levels = { male = ["M", "1"], female = ["F", "2"] }
[columns.stage]
type = "category"
levels = ["I", "II", "III"]
ordered = true
optional = true
[columns.dose]
type = "number"
missing = [-9, "unknown"]
[columns.seen]
type = "date"
format = "%d/%m/%Y"
range = [2019-01-01, 2020-12-31]
[sites.north]
lacks = ["dose"]
"""
ROWS = "id;age;sex;stage;dose;seen\n" + "".join(
    f"P{i};{40 + i}.0;{'M' if i % 2 else ' 2'};{'I' * (1 + i % 3)};{0.5 + i};{2 + 2 * i:02d}/0{1 + i % 9}/2019\n"
    for i in range(12)
)


@pytest.fixture
def book(tmp_path):
    return written(tmp_path, BOOK)


def written(folder, text):
    (folder / "codebook.toml").write_text(text, encoding="utf-8")
    return pf.codebook.read_codebook(folder / "codebook.toml")


def site(folder, text, name="south"):
    path = folder / f"{name}.csv"
    path.write_text(text, encoding="utf-8")
    return path


def codes(check):
    return [one.finding.code for one in check.findings]


def test_a_table_is_read_in_the_codebooks_types(book, tmp_path):
    frame = pf.codebook.read_rows(book, site(tmp_path, ROWS))
    assert frame["age"].dtype == float and frame["age"].iloc[0] == 40
    assert list(frame["sex"].cat.categories) == ["male", "female"] and list(frame["sex"][:2]) == ["female", "male"]
    assert frame["stage"].cat.ordered and list(frame["stage"][:3]) == ["I", "II", "III"]
    assert frame["seen"].iloc[11] == pd.Timestamp("2019-03-24")
    assert codes(pf.codebook.check(book, site(tmp_path, ROWS))) == []


def test_missing_codes_are_missing(book, tmp_path):
    text = ROWS.replace(";0.5;", ";-9.0;").replace(";1.5;", ";Unknown;").replace(";2.5;", ";na;")
    frame = pf.codebook.read_rows(book, site(tmp_path, text))
    assert frame["dose"].isna().tolist() == [True] * 3 + [False] * 9
    assert pf.codebook.check(book, site(tmp_path, text)).summary.numbers["dose"].missing == 3


def test_frames_are_taken_as_files_are(book, tmp_path):
    path = site(tmp_path, ROWS)
    frame = pd.read_csv(path, sep=";", skipinitialspace=True)
    one, other = pf.codebook.check(book, path), pf.codebook.check(book, frame, "south")
    assert one.summary == other.summary
    dated = frame.assign(seen=pd.to_datetime(frame["seen"], format="%d/%m/%Y"))
    iso = dataclasses.replace(
        book, columns=book.columns | {"seen": dataclasses.replace(book.columns["seen"], format="%Y-%m-%d")}
    )
    assert codes(pf.codebook.check(iso, dated, "south")) == []


def test_a_contradiction_is_refused_and_shown_with_its_lines(book, tmp_path):
    path = site(tmp_path, ROWS.replace("P3;43.0;", "P2;143.0;"))
    found = {one.finding.code: one for one in pf.codebook.check(book, path).findings}
    assert found["out_of_range"].rows == (5,) and found["not_unique"].rows == (4, 5)
    with pytest.raises(pf.errors.DataError) as error:
        pf.codebook.read_rows(book, path)
    assert "age: few rows are outside the codebook's range" in str(error.value)
    assert "143" not in str(error.value) and "P2" not in str(error.value)


def test_a_site_may_lack_what_the_codebook_says(book, tmp_path):
    text = "\n".join(";".join(line.split(";")[:4] + line.split(";")[5:]) for line in ROWS.splitlines()) + "\n"
    assert codes(pf.codebook.check(book, site(tmp_path, text, "north"))) == []
    assert codes(pf.codebook.check(book, site(tmp_path, text, "south"))) == ["column_absent"]


def test_values_of_which_none_may_be_missing(book, tmp_path):
    check = pf.codebook.check(book, site(tmp_path, ROWS.replace(";44.0;", ";;")))
    assert codes(check) == ["values_missing"] and check.findings[0].rows == (6,)


def test_whole_numbers_tell_the_unit(tmp_path):
    book = written(tmp_path, '[columns.loss]\ntype = "integer"\nunit = "pounds"\nrange = [-50, 100]\n')
    pounds = np.random.default_rng(0).integers(-10, 60, 15)
    (found,) = pf.codebook.check(book, pd.DataFrame({"loss": (pounds * 0.45359237).round(1)}), "south").findings
    assert found.finding.code == "not_whole" and "kilograms for pounds" in found.finding.text
    (found,) = pf.codebook.check(book, pd.DataFrame({"loss": pounds + 0.37}), "south").findings
    assert found.finding.code == "not_whole" and "would be whole" not in found.finding.text


def test_decimals_at_one_site_tell_the_unit(tmp_path):
    """As of weight losses of few patients, whose mean and SD say nothing."""
    book = written(tmp_path, '[columns.loss]\ntype = "number"\nunit = "pounds"\nrange = [-50, 100]\n')
    pounds = {name: np.random.default_rng(i).integers(-5, 30, 20) for i, name in enumerate(("north", "south", "west"))}
    tables = pounds | {"west": (pounds["west"] * 0.45359237).round(1)}
    checked = [pf.codebook.check(book, pd.DataFrame({"loss": rows}), name) for name, rows in tables.items()]
    assert [codes(one) for one in checked] == [[], [], []]
    (found,) = pf.codebook.compare([one.summary for one in checked])
    assert (found.site, found.finding.code) == ("west", "decimals_differ")
    assert "kilograms for pounds" in found.finding.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "columns: Field required"),
        ("[columns]", "it has no columns"),
        ('[columns.a]\ntype = "real"', "columns.a.type: Input should be 'number'"),
        ('[columns.a]\ntype = "number"\nrnge = [0, 1]', "columns.a.rnge: Unexpected keyword argument"),
        ('[columns.a]\ntype = "number"\nrange = [1, 0]', "range begins at 1.0 and ends at 0.0"),
        ('[columns.a]\ntype = "number"\nrange = [2019-01-01, 2020-01-01]', "range must be two numbers"),
        ('[columns.a]\ntype = "date"\nrange = [0, 1]', "range must be two dates, without quotes"),
        ('[columns.a]\ntype = "category"', "at least two levels"),
        ('[columns.a]\ntype = "category"\nlevels = { m = ["M"], f = ["M"] }', "levels: 'M' occurs twice"),
        ('[columns.a]\ntype = "number"\nlevels = ["a", "b"]', "levels is for categories only, and the type is number"),
        ('[columns.a]\ntype = "date"\nafter = "b"', "after = 'b' is not another date column"),
        ('fewest = 1\n[columns.a]\ntype = "number"', "fewest must be at least 2, received 1"),
        ('[columns.age]\ntype = "number"\n[sites.north]\nlacks = ["ages"]', "did you mean 'age'"),
        ('[columns.a]\ntype = "number"\nfactors = { mg = 0.0 }', "factors must be positive"),
        ("columns = [", "is not a TOML file"),
    ],
)
def test_a_codebook_that_is_wrong_is_refused_by_name(tmp_path, text, said):
    with pytest.raises(pf.errors.SettingError) as error:
        written(tmp_path, text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"age,age\n1,2\n", "columns of the same name, 'age'"),
        (b"age\n\xff\xfe\n", "is not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(book, tmp_path, content, said):
    path = tmp_path / "south.csv"
    path.write_bytes(content)
    with pytest.raises(pf.errors.DataError, match=said):
        pf.codebook.check(book, path)
    with pytest.raises(pf.errors.DataError, match="cannot be read"):
        pf.codebook.check(book, tmp_path / "none.csv")


def test_a_table_without_rows_is_no_error(book, tmp_path):
    check = pf.codebook.check(book, site(tmp_path, ROWS.splitlines()[0] + "\n"))
    assert check.summary.rows is None and check.summary.numbers == {}


def test_the_schema_is_panderas(book, tmp_path):
    frame = pf.codebook.read_rows(book, site(tmp_path, ROWS)).astype({"sex": object, "stage": object})
    assert pf.codebook.schema(book).validate(frame) is not None
    with pytest.raises(Exception, match="range"):
        pf.codebook.schema(book).validate(frame.assign(age=1.0))


def test_without_the_extra_the_cure_is_named(monkeypatch, tmp_path):
    from pyro_fed.codebook import codebook as plain

    monkeypatch.setattr(plain, "find_spec", lambda name: None)
    with pytest.raises(pf.errors.SettingError, match=r"pip install 'pyro_fed\[study\]'"):
        written(tmp_path, BOOK)
