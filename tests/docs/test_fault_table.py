"""The table of faults in the documentation names a test that exists for every row."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "fault_table.md"


def rows():
    """Number → the tests it names."""
    lines = re.findall(r"^\| (\d+) \|.*$", TABLE.read_text(), re.M)
    text = {int(n): line for n, line in re.findall(r"^\| (\d+) (\|.*)$", TABLE.read_text(), re.M)}
    assert len(lines) == len(text)
    return {number: re.findall(r"`([\w/]+\.py)::(\w+)`", line) for number, line in text.items()}


def test_every_fault_names_tests_that_exist():
    found = rows()
    assert set(range(1, 49)) <= set(found)
    for number, tests in found.items():
        assert tests, f"row {number} names no test"
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.M), f"row {number}: {file}::{name}"
