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


def test_the_conda_recipe_asks_for_what_the_wheel_asks_for():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    of_conda = {"torch": "pytorch", "matplotlib": "matplotlib-base", "lazy-loader": "lazy_loader"}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["compare"]]
    named = [re.match(r"([\w-]+)(.*)", one).groups() for one in wanted]
    run = recipe[recipe.index("  run:") : recipe.index("tests:")]
    assert {f"{of_conda.get(name, name)} {bound}" for name, bound in named} == {
        line for line in re.findall(r"^    - (.+)$", run, re.MULTILINE) if not line.startswith("python ")
    }
    assert recipe.count(f"python {PROJECT['requires-python']}") == 2
    assert f'version: "{PROJECT["version"]}"' in recipe and f"summary: {PROJECT['description']}" in recipe


def test_nothing_is_left_of_a_template():
    for text in (CITATION, str(PROJECT), (ROOT / "README.md").read_text()):
        assert not re.search(r"example\.(com|org)|TODO|<your|github\.com/(user|org|owner)/", text)
