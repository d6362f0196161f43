"""`pyro-fed check`: at a site, and between sites."""

import hashlib
import json

import hospital_tables
import pytest
from click.testing import CliRunner
from hospital_tables import FAULTS, HOSPITALS, table

from pyro_fed.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five hospitals, one with ages in months."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "codebook.toml").write_text(hospital_tables.CODEBOOK, encoding="utf-8")
    (months,) = (fault for fault in FAULTS if fault.name == "months for years")
    for hospital in HOSPITALS:
        frame = table(5, hospital, size=60)
        frame = months.plant(frame, None) if hospital == "dayton" else frame
        frame.to_csv(f"{hospital}.csv", index=False)
    return tmp_path


def shell(*arguments):
    return CliRunner().invoke(main, ["check", *arguments])


def summaries():
    for hospital in HOSPITALS:
        shell("codebook.toml", f"{hospital}.csv")
    return [f"{hospital}.json" for hospital in HOSPITALS]


def test_a_site_sees_lines_and_its_summary_has_none(folder):
    clean = shell("codebook.toml", "albany.csv")
    assert clean.exit_code == 0 and "nothing contradicts the codebook" in clean.output
    wrong = shell("codebook.toml", "dayton.csv", "--out", "mine.json")
    assert wrong.exit_code == 1
    said = " ".join(wrong.output.split())
    assert (
        "age: the values are outside the codebook's range because they are 12 times too large (months for years)"
        in said
    )
    assert "60 lines: 2, 3, 4" in said and "No figure in it is about fewer than 5 rows" in said
    summary = json.loads((folder / "mine.json").read_text())
    assert summary["findings"] == [
        {"code": "in_another_unit", "figures": {"column": "age", "factor": "12 times too large (months for years)"}}
    ]
    assert (folder / "mine.json").stat().st_mode & 0o077 == 0


def test_sites_are_compared_and_constants_and_table_one_written(folder):
    done = shell("--compare", *summaries(), "--constants", "constants.json", "--table", "table.md")
    said = " ".join(done.output.split())
    assert done.exit_code == 1
    assert "dayton, contradiction age:" in said and "albany," not in said
    assert "age left out: at dayton" in said
    constants = json.loads((folder / "constants.json").read_text())
    assert "age" not in constants["columns"] and constants["columns"]["height"]["n"] == 300
    assert (folder / "table.md").read_text().startswith("|")
    for ending, begins in {"html": "<table", "csv": ",albany", "txt": " "}.items():
        shell("--compare", *summaries(), "--table", f"table.{ending}")
        assert (folder / f"table.{ending}").read_text().startswith(begins)


def test_a_summary_passes_the_sites_gate(folder):
    (folder / "site").mkdir()
    policy = folder / "site" / "policy.toml"
    policy.write_text("min_cell = 8\n", encoding="utf-8")
    assert shell("codebook.toml", "albany.csv", "--policy", str(policy)).exit_code == 0
    summary = json.loads((folder / "albany.json").read_text())
    assert summary["codebook"]["fewest"] == 8
    ledger = folder / "site" / "what_left.jsonl"
    (line,) = map(json.loads, ledger.read_text().splitlines())
    assert (line["kind"], line["left"], line["rows"]) == ("table", True, 60)
    assert line["sha256"] == hashlib.sha256((folder / "albany.json").read_bytes()).hexdigest()
    policy.write_text('kinds = ["update"]\n', encoding="utf-8")
    (folder / "albany.json").unlink()
    refused = shell("codebook.toml", "albany.csv", "--policy", str(policy))
    assert refused.exit_code == 2 and "messages of the kind 'table' may not leave" in " ".join(refused.output.split())
    assert not (folder / "albany.json").exists()


def test_figures_as_json(folder):
    done = shell("codebook.toml", "dayton.csv", "--json")
    (found,) = json.loads(done.output)["findings"]
    assert (found["site"], found["code"], len(found["rows"])) == ("dayton", "in_another_unit", 60)
    done = shell("--compare", *summaries(), "--json")
    (found,) = json.loads(done.output)["findings"]
    assert found["site"] == "dayton" and "rows" not in found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["codebook.toml"], "expected a codebook and a table"),
        (["codebook.toml", "no.csv"], "no.csv cannot be read"),
        (["no.toml", "albany.csv"], "no.toml cannot be read"),
        (["--compare", "albany.csv", "boston.csv"], "is not a file that pyro-fed check has written"),
        (["codebook.toml", "albany.csv", "--table", "x.md"], "need --compare"),
        (["--compare", "albany.json", "--site", "x"], "without --compare"),
        (["codebook.toml", "albany.csv", "--fewest", "3"], "fewest must be at least the codebook's, 5"),
        (["codebook.toml", "albany.csv", "--out", "."], "is a directory"),
    ],
)
def test_mistakes_are_one_line(folder, arguments, said):
    done = shell(*arguments)
    assert done.exit_code == 2 and said in " ".join(done.output.split())
