"""The pages of the papers: every item has a verdict, what it names is there, and the overview counts them."""

import re
from collections import Counter
from pathlib import Path

import pytest

from pyro_fed.recipes.library import list_recipes

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
VERDICTS = ("yes", "other", "no")


def items(page):
    """The rows of a page's first table, a list of cells each."""
    table = page.read_text().split("## Item by item")[1].split("## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return rows[2:]


def verdict(row):
    return re.match(r"\w+", row[-1])[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_item_has_a_verdict_and_a_reason_where_it_is_not_there(page):
    for row in items(page):
        assert verdict(row) in VERDICTS, row
        assert verdict(row) == "yes" or re.match(r"(other|no): .{20}", row[-1]), f"no reason: {row}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_yes_names_a_test_that_would_fail(page):
    for row in items(page):
        if verdict(row) == "yes":
            named = re.findall(r"`([\w/]+/test_\w+\.py)::(test_\w+)`", str(row))
            assert named, f"implemented as published, by no test: {row[0]}"
            for file, test in named:
                assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(), f"{row[0]}: {file} has no {test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_scripts_and_tests_that_a_page_names_are_there(page):
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*/*.py")}
    tests = {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}
    text = page.read_text()
    for named in re.findall(r"`([\w/]+/test_\w+\.py)`", text):
        assert named in tests
    own = {name for name in re.findall(r"`(\w+)(?: --[^`]*)?`", text) if name.startswith(("fedep_", "fsgld_", "p2p_"))}
    from benchmarks.papers.__main__ import ITEMS

    assert own <= scripts | set(ITEMS) | set(list_recipes()), own - scripts - set(ITEMS) - set(list_recipes())


def test_the_overview_counts_the_verdicts():
    text = (ROOT / "docs" / "papers.md").read_text()
    every = Counter()
    for page in PAGES:
        found = Counter(map(verdict, items(page)))
        counts = " | ".join(str(found[one]) for one in VERDICTS)
        assert re.search(rf"\(papers/{page.stem}\.md\) \| {re.escape(counts)} \|", text), f"{page.stem}: {counts}"
        every += found
    assert f"| all | {' | '.join(str(every[one]) for one in VERDICTS)} |" in text, every
