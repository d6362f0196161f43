"""Every public name has its place in the documentation, and one alone."""

import dataclasses
import importlib.util
import inspect
import operator
import re
from collections import Counter
from pathlib import Path

import pyro_fed as pf

DOCS = Path(__file__).parents[2] / "docs"


def pages():
    """Page → its text with the names of the doors filled in, as the documentation is built."""
    spec = importlib.util.spec_from_file_location("public_names", DOCS / "public_names.py")
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    return {page.stem: names.filled(page.read_text(encoding="utf-8")) for page in (DOCS / "api").glob("*.md")}


def documented(text):
    return re.findall(r"^\.\. auto(?:class|exception|function):: (\S+)", text, re.MULTILINE)


def test_every_public_name_has_one_entry():
    entries = Counter(name for text in pages().values() for name in documented(text))
    assert [name for name, times in entries.items() if times > 1] == []
    modules = {f"pyro_fed.{name}" for name in pf.__all__ if type(getattr(pf, name)).__name__ == "module"}
    assert {f"pyro_fed.{name}" for name in pf.__all__} - entries.keys() - modules == set()
    assert {f"{module}." for module in modules if not any(name.startswith(f"{module}.") for name in entries)} == set()


def test_members_of_the_contract_are_on_the_contributors_page_alone():
    found = pages()
    assert "pyro_fed.algorithm.Algorithm" in documented(found["contributors"])
    for page, text in found.items():
        assert page == "contributors" or "algorithm.capabilities" not in text
        assert page == "contributors" or ":members:\n" not in text, page


def test_what_a_run_takes_has_an_example():
    """`run` itself, schedules, executors, combinations: each is shown in a call."""
    names = {name.removeprefix("pyro_fed.") for name in documented(pages()["run"])}
    assert {"run", "fit", "Private", "schedule.KSD", "executors.Ray", "combination.Median"} <= names
    texts = {name: inspect.getdoc(operator.attrgetter(name)(pf)) for name in names}
    assert [name for name, text in texts.items() if "Example:\n" not in text] == []
    assert [name for name, text in texts.items() if name.startswith("schedule.") and not _has_args(name, text)] == []


def _has_args(name, text):
    """Whether what it is made from is described, where that is anything."""
    return "Args:" in text or not dataclasses.fields(operator.attrgetter(name)(pf))


def test_every_page_is_in_the_table():
    index = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    for page in pages().keys() - {"index"}:
        assert f"({page}.md)" in index
        assert re.search(rf"^{page}$", index, re.MULTILINE)
