"""What names the project's version and authors agrees; `make release-check` looks at what is built."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = (ROOT / "CITATION.cff").read_text()


def test_the_citation_is_of_this_version():
    fields = dict(re.findall(r"^([a-z-]+): (.+)$", CITATION, re.MULTILINE))
    assert (fields["version"], fields["license"], fields["title"]) == tuple(
        PROJECT[name] for name in ("version", "license", "name")
    )
    assert fields["cff-version"] == "1.2.0" and fields["type"] == "software"
    assert re.findall(r"^  - name: (.+)$", CITATION, re.MULTILINE)[0] == PROJECT["authors"][0]["name"]


def test_nothing_is_left_of_a_template():
    for text in (CITATION, str(PROJECT), (ROOT / "README.md").read_text()):
        assert not re.search(r"example\.(com|org)|TODO|<your|github\.com/(user|org|owner)/", text)
