"""The coordinator's folder of a study: what was agreed on, and a journal of all exchanges.

    study.json                  name, id, sites, options, versions, hashes of the files that came with it
    model.py  recipe.toml       what is run
    coordinator.key  .pub       signs the requests; keys/SITE.pub: the sites', as they came with the descriptions
    outbox/                     requests, to be mailed
    answers/                    answers that were accepted
    exchanges/003.asked.json    hashes of the requests of exchange 3
    exchanges/003.closed.json   hashes of the answers with which it was closed
    refused/                    answers whose content was refused
    result.nc                   the result
    questions.json              what was asked about it, and in which exchange
    review.json                 what a reviewer asks: versions, hashes, rules, and all files that were mailed

Every file is written whole or not at all, and nothing is written before what it rests on: a command that is killed is
given again. All else follows from the journal, since the run is repeated from its seed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyro
import torch

from pyro_fed.conventions.names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.deployment.files.letter import (
    ANSWER,
    ENDING,
    REQUEST,
    Letter,
    Received,
    answer_name,
    read_json,
    read_letter,
    request_name,
    text_in,
    write_json,
    write_whole,
)
from pyro_fed.deployment.review import digest_of, named_digest, study_review
from pyro_fed.deployment.signing_keys import fingerprint_of, load_signing_key, public_text, write_signing_key
from pyro_fed.errors import CheckpointError, ProtocolError, SettingError, listed
from pyro_fed.recipes.library import find_model, find_recipe
from pyro_fed.runtime.checkpoint import Lock

#: Names of the files in a study's folder.
STUDY, MODEL, RECIPE, KEY, PUBLIC = "study.json", "model.py", "recipe.toml", "coordinator.key", "coordinator.pub"
RESULT, STOPPED, QUESTIONS, REVIEW = "result.nc", "result.stopped.nc", "questions.json", "review.json"
#: What `study.json` says of every study.
FACTS = ("name", "id", "sites", "options", "versions", "needs", "model", "recipe", "files")
OUTBOX, ANSWERS, EXCHANGES, KEYS, REFUSED = "outbox", "answers", "exchanges", "keys", "refused"


def versions() -> dict[str, str]:
    """The versions on which a run's last bits depend."""
    return {"pyro_fed": VERSION, "torch": str(torch.__version__), "pyro": pyro.__version__}


@dataclass
class Study:
    """A study's folder, opened by `Study.opened`.

    Attributes:
        content: what `study.json` says.
        refusals: sentences on answers that were refused since the folder was opened.
        closing: exchanges that the present run has closed, and the hashes of their answers; `commit` writes them.
    """

    folder: Path
    content: dict[str, Any]
    refusals: list[str] = field(default_factory=list)
    closing: dict[int, dict[str, str]] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Study]:
        """A study's folder, of the present versions, which no other command may change meanwhile."""
        if not (folder / STUDY).exists():
            raise SettingError(f"{folder / STUDY}: there is no study here; pyro-fed study init begins one")
        study = cls(folder, read_json(folder / STUDY))
        if lacking := [name for name in FACTS if name not in study.content]:
            raise CheckpointError(
                f"{folder / STUDY} lacks {listed(lacking)}: another version of pyro_fed has begun this study. Go on "
                "with that version, or begin a new study"
            )
        if study.content["versions"] != versions():
            begun, here = (
                ", ".join(f"{name} {version}" for name, version in found.items())
                for found in (study.content["versions"], versions())
            )
            raise SettingError(
                f"{folder} was begun with {begun}, but {here} is installed, and the run must be repeated to the last "
                "bit. Install the versions of the study"
            )
        lock = Lock(folder)
        try:
            study.check_files()
            yield study
        finally:
            lock.release()

    @property
    def id(self) -> str:
        """The study's id, 16 hexadecimal digits."""
        return str(self.content["id"])

    @property
    def sites(self) -> list[str]:
        """The sites' names, in the order of their numbers."""
        return list(self.content["sites"])

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.folder / MODEL

    @property
    def recipe(self) -> Path:
        """The recipe's file."""
        return self.folder / RECIPE

    @property
    def template(self) -> Path | None:
        """The file with one made-up row; None if the server makes one itself."""
        return self._own_file("template")

    @property
    def start(self) -> Path | None:
        """The result of an earlier study from which this one begins; None if it begins afresh."""
        return self._own_file("start")

    def check_files(self) -> None:
        """Require the files with which the study was begun; else CheckpointError."""
        for name, digest in self.content["files"].items():
            path = self.folder / name
            if not path.exists() or digest_of(path.read_bytes()) != digest:
                raise CheckpointError(
                    f"{path} is not the file with which the study was begun, whose SHA-256 is {digest}: put that file "
                    "back, or begin a new study"
                )

    def _own_file(self, what: str) -> Path | None:
        name = self.content.get(what)
        return None if name is None else self.folder / str(name)

    @property
    def result(self) -> Path:
        """The result's file."""
        return self.folder / RESULT

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the coordinator's key."""
        return fingerprint_of(public_text(load_signing_key(self.folder / KEY)))

    @property
    def present(self) -> int:
        """The number of the exchange that is not closed: the first that was not."""
        return len(list((self.folder / EXCHANGES).glob("*.closed.json")))

    @property
    def questions(self) -> dict[str, int]:
        """What was asked about the result, and the number of its exchange."""
        path = self.folder / QUESTIONS
        return read_json(path) if path.exists() else {}

    @property
    def open_question(self) -> tuple[str, int] | None:
        """The question whose exchange is not closed, and that exchange."""
        return next(((name, number) for name, number in self.questions.items() if not self.is_closed(number)), None)

    def add_question(self, name: str) -> None:
        """Note a question about the result, to be asked in the present exchange."""
        write_json(self.folder / QUESTIONS, self.questions | {name: self.present})

    # -- for a reviewer ---------------------------------------------------------------------------------------
    def review(self) -> dict[str, Any]:
        """What the result rests on, and what has been mailed for it: hashes of files, with their bytes."""

        def files(folder: str) -> dict[str, dict[str, Any]]:
            paths = sorted((self.folder / folder).glob(f"*{ENDING}"))
            return {path.name: {"sha256": digest_of(path.read_bytes()), "bytes": path.stat().st_size} for path in paths}

        def site_entry(site: str) -> dict[str, Any]:
            numbers = (number for number in range(self.present) if self.is_closed(number))
            letters = [found.letter.more for number in numbers if (found := self.answer_to(number, site)) is not None]
            own = {name: sorted({str(more.get(name, "")) for more in letters}) for name in ("policy", "approval")}
            key = (self.folder / KEYS / f"{site}.pub").read_text(encoding="utf-8").strip()
            rows = letters[0].get("description", {}).get("num_rows") if letters else None
            return {"key": fingerprint_of(key), "rows": rows, "answers": len(letters), **own}

        mailed: dict[str, Any] = {"requests": files(OUTBOX), "answers": files(ANSWERS)}
        return study_review(
            self.result,
            sites={site: site_entry(site) for site in self.sites},
            **{name: self.content[name] for name in ("name", "id", "options", "model", "recipe", "needs")},
            coordinator=self.fingerprint,
            questions=self.questions,
            start=None if self.start is None else self.content["files"][self.start.name],
            bytes={name: sum(one["bytes"] for one in each.values()) for name, each in mailed.items()},
            **mailed,
        )

    # -- requests -------------------------------------------------------------------------------------------
    def first_letters(self) -> dict[str, Letter]:
        """The requests of exchange 0, which have the model and the recipe, by site."""
        more = {
            **{name: self.content[name] for name in ("name", "sites", "options", "versions", "needs")},
            "key": public_text(load_signing_key(self.folder / KEY)),
            "recipe": self.recipe.read_text(encoding="utf-8"),
            "model": self.model.read_text(encoding="utf-8"),
        }
        return {site: Letter(REQUEST, self.id, site, 0, more) for site in self.sites}

    def ask(self, number: int, letters: Mapping[str, Letter]) -> list[Path]:
        """Write the requests of an exchange to be mailed; those that are there already stay."""
        key = load_signing_key(self.folder / KEY)
        made = {site: letter.signed(key) for site, letter in letters.items()}
        asked = self.folder / EXCHANGES / f"{number:03d}.asked.json"
        if not asked.exists():
            write_json(asked, {site: digest_of(data) for site, data in made.items()})
        paths = []
        for site, data in made.items():
            path = self.folder / OUTBOX / request_name(site, number)
            if not path.exists() or path.read_bytes() != data:
                write_whole(path, data)
            paths.append(path)
        return paths

    def request_hashes(self, number: int) -> dict[str, str]:
        """The hashes of an exchange's requests, by site; empty before it was asked."""
        path = self.folder / EXCHANGES / f"{number:03d}.asked.json"
        return read_json(path) if path.exists() else {}

    def check_again(self, number: int, letters: Mapping[str, Letter]) -> None:
        """Require that requests that are made again are those that the sites have answered; else CheckpointError."""
        before = self.request_hashes(number)
        if not before:
            return
        key = load_signing_key(self.folder / KEY)
        again = {site: digest_of(letter.signed(key)) for site, letter in letters.items()}
        if again != before:
            odd = sorted(site for site in {**again, **before} if again.get(site) != before.get(site))
            raise CheckpointError(
                f"{self.folder}: the run, repeated, asks {', '.join(odd)} another question in exchange {number} than "
                "before: a file of the study was changed, or another machine computes other last bits. "
                "Combine on the machine on which the study was begun, with the files as they were"
            )

    # -- answers --------------------------------------------------------------------------------------------
    def take(self, path: Path) -> str:
        """A sentence on an accepted answer to the present exchange; ProtocolError says why it cannot be used."""
        found = read_letter(path, ANSWER)
        letter, where = found.letter, found.name
        if letter.study != self.id:
            raise ProtocolError(f"{where}: it is of study {letter.study}, this is {self.content['name']}, {self.id}")
        if letter.site not in self.sites:
            raise ProtocolError(
                f"{where}: {letter.site} is not a site of this study; its sites are {', '.join(self.sites)}"
            )
        key = self._key_for(found)
        found.verify(key, letter.site)
        present, number = self.present, letter.exchange
        asked = self.request_hashes(number)
        if number > present or not asked:
            raise ProtocolError(f"{where}: {letter.site} answers exchange {number}, which has not been asked yet")
        if text_in(letter.more, "request", where) != asked.get(letter.site):
            raise ProtocolError(
                f"{where}: {letter.site} answers another request than that of exchange {number}: send it "
                f"{request_name(letter.site, number)} again"
            )
        kept = self.folder / ANSWERS / answer_name(letter.site, number)
        if kept.exists():
            if kept.read_bytes() == found.data:
                return f"{where}: the answer of {letter.site} to exchange {number} is here already"
            raise ProtocolError(
                f"{where}: another answer of {letter.site} to exchange {number} is here already, and was "
                f"{'used' if number < present else 'accepted'}"
            )
        if number < present:
            raise ProtocolError(
                f"{where}: too late: exchange {number} was closed without {letter.site}, which takes part again in "
                f"exchange {present}"
            )
        fingerprint = ""
        if number == 0:
            fingerprint = f", whose key is {fingerprint_of(key)}: compare it with what {letter.site} reads out"
            write_whole(self.folder / KEYS / f"{letter.site}.pub", key.encode() + b"\n")
        write_whole(kept, found.data)
        return f"{where}: answer of {letter.site} to exchange {number}{fingerprint}"

    def _key_for(self, found: Received) -> str:
        """The public key that has to have signed an answer: the site's, or at first the one that comes with it."""
        pinned = self.folder / KEYS / f"{found.letter.site}.pub"
        if pinned.exists():
            return pinned.read_text(encoding="utf-8").strip()
        return text_in(found.letter.more, "key", found.name)

    def answer_to(self, number: int, site: str) -> Received | None:
        """A site's accepted answer to an exchange; None if there is none, or it was closed without."""
        path = self.folder / ANSWERS / answer_name(site, number)
        closed = self._closed(number)
        if closed is None:
            return read_letter(path, ANSWER) if path.exists() else None
        if site not in closed:
            return None
        if not path.exists() or digest_of(path.read_bytes()) != closed[site]:
            raise CheckpointError(
                f"{path} is not the answer with which exchange {number} was closed: put the file back, or begin anew"
            )
        return read_letter(path, ANSWER)

    def refuse(self, found: Received, number: int, why: str) -> None:
        """Put an accepted answer aside whose content turned out to be none."""
        name = answer_name(found.letter.site, number)
        (self.folder / REFUSED).mkdir(exist_ok=True)
        os.replace(self.folder / ANSWERS / name, self.folder / REFUSED / name)
        self.refusals.append(f"{name}: {why}")

    def is_closed(self, number: int) -> bool:
        """Whether an exchange is closed."""
        return self._closed(number) is not None

    def close(self, number: int, sites: Sequence[str]) -> None:
        """Close an exchange with the answers of some sites, once `commit` is called; a closed one stays as it is."""
        if not self.is_closed(number):
            paths = {site: self.folder / ANSWERS / answer_name(site, number) for site in sites}
            self.closing[number] = {site: digest_of(path.read_bytes()) for site, path in paths.items()}

    def commit(self) -> None:
        """Write which exchanges were closed: the run has gone on after them."""
        for number, answers in sorted(self.closing.items()):
            write_json(self.folder / EXCHANGES / f"{number:03d}.closed.json", answers)
        self.closing = {}

    def _closed(self, number: int) -> dict[str, str] | None:
        path = self.folder / EXCHANGES / f"{number:03d}.closed.json"
        return read_json(path) if path.exists() else None


def make_study(
    folder: Path,
    model: str | Path,
    recipe: str | Path,
    sites: Sequence[str],
    *,
    name: str | None,
    options: Mapping[str, Any],
    files: Mapping[str, Path | None],
    needs: str,
) -> Study:
    """Make a study's folder with a new key, all at once."""
    if folder.exists():
        raise SettingError(f"{folder} exists already: choose another folder, or remove it")
    if len(sites) < 1 or len(set(sites)) < len(sites):
        raise SettingError(f"--sites must be different names, such as north,south, received {', '.join(sites)!r}")
    for site in sites:
        check_client_id(site)
        if "/" in site or " " in site:
            raise SettingError(
                f"--sites: a site's name is part of file names and must have no blanks, received {site!r}"
            )
    making = folder.with_name(f"{folder.name}.writing")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True, mode=0o700)
    for part in (OUTBOX, ANSWERS, EXCHANGES, KEYS):
        (making / part).mkdir()
    for source, target in ((find_model(model), MODEL), (find_recipe(recipe), RECIPE)):
        (making / target).write_bytes(source.read_bytes())
    content: dict[str, Any] = {
        "name": name or folder.name,
        "id": secrets.token_hex(8),
        "sites": list(sites),
        "options": dict(options),
        "versions": versions(),
        "needs": needs,
        "model": named_digest(find_model(model)),
        "recipe": named_digest(find_recipe(recipe)),
    }
    for what, path in files.items():
        if path is not None:
            content[what] = f"{what}{path.suffix}"
            (making / content[what]).write_bytes(path.read_bytes())
    own = (MODEL, RECIPE, *(content[what] for what, path in files.items() if path is not None))
    content["files"] = {own_file: digest_of((making / own_file).read_bytes()) for own_file in own}
    key = write_signing_key(making / KEY)
    (making / PUBLIC).write_text(public_text(key) + "\n", encoding="utf-8")
    write_json(making / STUDY, content)
    study = Study(making, content)
    study.ask(0, study.first_letters())
    os.replace(making, folder)
    return Study(folder, content)
