"""What a site has approved: a model, recipes, the package's version and the policy, and their hash in its own folder.

`pyro-fed node approve` writes `approved/` beside `policy.toml`: copies of the model's and the recipes' files, and
`approval.json`, which says what they are. A run is compared with it fact by fact before its model is imported. What
differs is named, and nothing is run. A site then runs the copies in its own folder, whatever came over the network.

The hash covers the model's own file. Modules that the model imports, and the package's own code beyond its version, are
what is installed at the site. Whoever can write to the folder can approve.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyro_fed.conventions.output import replaced_file
from pyro_fed.conventions.version import VERSION
from pyro_fed.deployment.policy.gate import POLICY, Gate, site_folder
from pyro_fed.deployment.policy.rules import Policy
from pyro_fed.errors import PolicyError, SettingError, listed
from pyro_fed.recipes import recipe as recipes
from pyro_fed.recipes.library import find_model, load_model
from pyro_fed.recipes.recipe import Recipe, flat_settings
from pyro_fed.recipes.values import to_toml

#: The folder and the file of an approval in a site's folder, and the model's copy.
FOLDER, FILE, MODEL = "approved", "approval.json", "model.py"

#: Facts by name.
Facts = dict[str, str]
#: The longest text that is shown whole where something differs; of a longer one, such as a hash, only the beginning is.
MAX_SHOWN_CHARACTERS = 60


def recipe_facts(chosen: Recipe, algorithm: Any = None, run: Mapping[str, Any] | None = None) -> Facts:
    """A recipe's algorithm, all its settings with the defaults, and the arguments of `run`, name → text.

    `algorithm` and `run` are what is run where the command line has replaced settings.
    """
    built = chosen.build() if algorithm is None else algorithm
    facts = {"algorithm": f"{type(built).__module__}:{type(built).__name__}"}
    facts |= {f"setting {name}": text for name, text in flat_settings(built).items()}
    given = chosen.run if run is None else run
    return facts | {f"run {name}": to_toml(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Request:
    """What a run asks for, or a site has approved: SHA-256 of the model, facts of recipes, version, and rules."""

    model: str
    recipes: tuple[Facts, ...]
    version: str
    policy: Facts

    @classmethod
    def of(cls, model: str | Path, asked: Iterable[Facts], policy: Policy) -> Request:
        """What a run with a model's file and recipes' facts asks for, with the site's rules and installed package."""
        rules = {name: json.dumps(value) for name, value in policy.rules().items()}
        return cls(hashlib.sha256(find_model(model).read_bytes()).hexdigest(), tuple(asked), VERSION, rules)

    @property
    def digest(self) -> str:
        """SHA-256 of all facts."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON has them; the order of recipes does not matter."""
        ordered = sorted(self.recipes, key=lambda facts: json.dumps(facts, sort_keys=True))
        return {"model": self.model, "recipes": ordered, "version": self.version, "policy": self.policy}

    def differences(self, approved: Request) -> list[tuple[str, str, str]]:
        """What differs from what was approved: a name, the approved value and the asked one."""
        found = [
            (name, getattr(approved, name), getattr(self, name))
            for name in ("model", "version")
            if getattr(approved, name) != getattr(self, name)
        ]
        found += [(f"policy {name}", was, now) for name, was, now in _differ(approved.policy, self.policy)]
        for asked in self.recipes:
            if asked not in approved.recipes:
                each = [_differ(facts, asked) for facts in approved.recipes]
                found += [(f"recipe {name}", was, now) for name, was, now in min(each, key=_distance, default=[])]
        return found


def _differ(approved: Facts, asked: Facts) -> list[tuple[str, str, str]]:
    names = sorted({*approved, *asked})
    pairs = ((name, approved.get(name, "nothing"), asked.get(name, "nothing")) for name in names)
    return [(name, was, now) for name, was, now in pairs if was != now]


def _distance(differences: Sequence[tuple[str, str, str]]) -> tuple[bool, int]:
    """The algorithm counts most; a recipe of the same one is compared setting by setting."""
    return any(name == "algorithm" for name, *_ in differences), len(differences)


def approve(folder: Path, model: str | Path, chosen: Sequence[str | Path], policy: Policy) -> Request:
    """Write the approval of a model and recipes, with the present policy and package, into a site's folder."""
    loaded = [recipes.load(one) for one in chosen]
    approved = Request.of(model, [recipe_facts(one) for one in loaded], policy)
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("recipe-*.toml"):
        old.unlink()
    shutil.copyfile(find_model(model), place / MODEL)
    for number, one in enumerate(loaded):
        shutil.copyfile(one.path, place / f"recipe-{number}.toml")
    with replaced_file(place / FILE) as file:
        content = {"hash": approved.digest, **approved.to_json()}
        file.write(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode())
    return approved


def has_approval(folder: Path) -> bool:
    """Whether a site's folder has an approval."""
    return (folder / FOLDER / FILE).exists()


def check_approved(folder: Path, model: str | Path, policy: Policy, asked: Callable[[], Iterable[Facts]]) -> str:
    """The hash of a site's approval, if a run asks for nothing else; PolicyError names all that differs.

    `asked` is called once the model's file is known to be the approved one: it may define a recipe's algorithm.
    """
    path = folder / FOLDER / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = str(content.pop("hash"))
        approved = Request(**{**content, "recipes": tuple(content["recipes"])})
        if approved.digest != digest:
            raise ValueError("its hash is not that of its facts")
        if hashlib.sha256(copied_model(folder).read_bytes()).hexdigest() != approved.model:
            raise ValueError("its copy of the model differs")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _changed_error(error) from error
    request = Request.of(model, (), policy)
    _refuse(request.differences(approved))
    _refuse(replace(request, recipes=tuple(asked())).differences(approved))
    try:
        copies = tuple(map(recipe_facts, copied_recipes(folder)))
    except SettingError as error:
        raise _changed_error(error) from error
    if replace(approved, recipes=copies).digest != digest:
        raise _changed_error("its copies of the recipes differ")
    return digest


def approved_gate(policy_file: str | Path, site: str, model: str | Path, asked: Callable[[], Iterable[Facts]]) -> Gate:
    """A site's gate, after the run was compared with what the site has approved, if it has approved anything."""
    folder = site_folder(policy_file)
    policy, digest = Policy.read(folder / POLICY), ""
    if has_approval(folder):

        def imported() -> Iterable[Facts]:
            load_model(copied_model(folder), with_data=False)  # it may import a recipe's algorithm
            return asked()

        digest = check_approved(folder, model, policy, imported)
    return Gate(site, policy, folder=folder, approval=digest)


def _changed_error(reason: object) -> PolicyError:
    return PolicyError(f"the site's approval is not as it was written ({reason!s:.200}): approve again", "approval")


def _refuse(different: Sequence[tuple[str, str, str]]) -> None:
    if different:
        texts = [
            f"{name} (approved {_shortened_value(was)}, asked {_shortened_value(now)})" for name, was, now in different
        ]
        raise PolicyError(
            f"the site has not approved this run, which differs in {listed(texts)}: run what it has approved, or ask "
            "it to approve this by pyro-fed node approve",
            "approval",
        )


def _shortened_value(value: str) -> str:
    return value if len(value) <= MAX_SHOWN_CHARACTERS else f"{value[:10]}..."


def copied_model(folder: Path) -> Path:
    """The site's copy of the approved model."""
    return folder / FOLDER / MODEL


def copied_recipes(folder: Path) -> list[Recipe]:
    """The site's copies of the approved recipes."""
    return [recipes.load(path) for path in recipe_files(folder)]


def recipe_files(folder: Path) -> list[Path]:
    """The files of the site's copies of the approved recipes."""
    return sorted((folder / FOLDER).glob("recipe-*.toml"))
