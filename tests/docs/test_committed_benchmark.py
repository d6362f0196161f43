"""The committed benchmark, and what its page in the documentation says of it."""

import json
import re
from pathlib import Path

import pytest

from pyro_fed.analysis.bench.bench import by_algorithm, confusion, from_values
from pyro_fed.analysis.bench.cell import OUTCOMES

FOLDER = Path(__file__).parents[2] / "docs" / "benchmark"
#: What the table of index.md counts: refused cells are none of these.
COUNTED = ("right", "right, doubted", "wrong, said", "wrong, silent", "failed", "late")


@pytest.fixture(scope="module")
def results():
    return from_values(json.loads((FOLDER / "benchmark.json").read_text()))


def test_the_table_counts_the_cells(results):
    text = (FOLDER / "index.md").read_text()
    for name, part in by_algorithm(results).items():
        found = confusion(part)
        row = " | ".join([f"`{name}`", *(str(found[kind]) for kind in COUNTED)])
        assert f"| {row} |" in text, f"index.md lacks the row: {row}"
    assert f"{len(results.outcomes)} cells of {len(results.cases)} posteriors" in text
    assert f"{results.waiting:,} cells of the whole table" in text


def test_no_answer_of_this_package_is_wrong_and_silent(results):
    own = [one for one in results.outcomes if one.algorithm not in results.adapters]
    found = confusion(own)
    assert set(found) == set(OUTCOMES)
    assert not any(found[kind] for kind in ("wrong, silent", "failed", "refused"))
    text = re.sub(r"\s+", " ", (FOLDER / "index.md").read_text())
    assert f"None of the {len(own)} cells of this package's algorithms is wrong and silent" in text


def test_the_page_is_that_of_the_figures(results):
    page = (FOLDER / "benchmark.html").read_text()
    assert f"{len(results.outcomes)} cells: {len(results.cases)} posteriors" in page
    assert page.count('<section class="diagnosis"') == len(results.outcomes)
