"""A site's side of a study by files: a request comes by mail, the answer goes by mail, and rows and state stay here.

    site.json                   the study, the site's name, the coordinator's key, where the rows are
    model.py  recipe.toml       what the coordinator has sent: read them
    site.key  site.pub          sign the answers
    states/003.safetensors      the site's own state after exchange 3
    answers/                    what has left
    policy.toml                 the site's rules on what may leave; the site writes it, or not
    what_left.jsonl             a line for each answer, see `deployment.policy`

An answer is made once: the same request gets the same file again. A command that is killed is given again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load, save

from pyro_fed.density.compiling.compiler import threads
from pyro_fed.deployment.files.letter import (
    ANSWER,
    ENDING,
    REQUEST,
    Letter,
    Received,
    answer_name,
    body_of,
    read_json,
    read_letter,
    text_in,
    write_json,
    write_whole,
)
from pyro_fed.deployment.files.words import description_words, order_words, reply_words, request_words
from pyro_fed.deployment.limits import MAX_MESSAGE_BYTES
from pyro_fed.deployment.policy.gate import POLICY, Gate, site_folder
from pyro_fed.deployment.remote.order import Refusal
from pyro_fed.deployment.remote.site import Done, KeptState, Site
from pyro_fed.deployment.review import digest_of
from pyro_fed.deployment.rows import load_rows
from pyro_fed.deployment.signing_keys import fingerprint_of, load_signing_key, public_text, write_signing_key
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.runtime.checkpoint import Lock
from pyro_fed.runtime.messages import Message, decode
from pyro_fed.runtime.safetensors_header import read_header

#: Names in a site's folder.
SITE, MODEL, RECIPE, KEY, PUBLIC = "site.json", "model.py", "recipe.toml", "site.key", "site.pub"
STATES, ANSWERS = "states", "answers"
#: Asks the person at the site whether to go on; gets the text to be shown and the question.
Confirm = Callable[[str, str], bool]


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder of one study, and what its `site.json` says."""

    folder: Path
    content: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> SiteFolder | None:
        """The folder of a site that has begun; None if there is none."""
        return cls(folder, read_json(folder / SITE)) if (folder / SITE).exists() else None

    @property
    def answered(self) -> int:
        """The number of the last exchange that was answered; -1 before the first."""
        found = [int(path.stem.rpartition("-")[2]) for path in (self.folder / ANSWERS).glob(f"answer-*{ENDING}")]
        return max(found, default=-1)

    def state_before(self, exchange: int) -> KeptState | None:
        """The state after the last exchange before one."""
        earlier = [path for path in (self.folder / STATES).glob("*.safetensors") if int(path.stem) < exchange]
        if not earlier:
            return None
        data = max(earlier).read_bytes()
        text = read_header(data, len(data), len(data)).text
        return KeptState(text["run"], int(text["phase"]), int(text["waiting"]), int(text["parts"]), data)

    def keep(self, exchange: int, state: KeptState) -> None:
        """Write the state after an exchange; the states of two exchanges are kept."""
        text = {name: str(value) for name, value in asdict(state).items() if name != "data"}
        write_whole(self.folder / STATES / f"{exchange:03d}.safetensors", save(load(state.data), metadata=text))


def answer_request(
    request: Path,
    data: Path | None = None,
    *,
    folder: Path | None = None,
    out: Path | None = None,
    coordinator: str | None = None,
    policy: Path | None = None,
    confirm: Confirm | None = None,
) -> Path:
    """Answer a request of a study, and return the file that is to be mailed.

    Args:
        request: the request's file.
        data: loads this site's rows, see `deployment.rows`; a .py file's `load_rows(model, config)` gets the model's
            module and `{"name": site}`. Needed at first; later that of the first time.
        folder: this site's folder of the study; by default STUDY-SITE in the present folder.
        out: the folder for the answer; by default that of the request.
        coordinator: the fingerprint of the coordinator's key, as the coordinator has told it in another way. Needed at
            first where nobody is asked.
        policy: the file `policy.toml` of the site's rules, at first; by default that in `folder`, if there is one.
        confirm: shows a text to a person and asks; None goes on without asking.

    Raises:
        ProtocolError: the file is no request that this site answers; says why.
        PolicyError: a rule of the site's policy does not permit the answer, or the site has not approved the model or
            the recipe.
        SettingError: something that the command needs is missing.
        DataError: the rows cannot be loaded, or do not suit the model. Nothing has left.

    Example:
        >>> answer_request(Path("round-001-request-north.study"), Path("north.csv"))
    """
    found = read_letter(request, REQUEST)
    letter = found.letter
    place = folder or _default_folder(found)
    mine = SiteFolder.of(place)
    if mine is None:
        mine = _new_site_folder(found, place, data, coordinator, policy, confirm)
    _check_study(mine, found)
    lock = Lock(mine.folder)
    try:
        made = mine.folder / ANSWERS / answer_name(letter.site, letter.exchange)
        if made.exists():
            before = read_letter(made, ANSWER)
            if before.letter.more.get("request") != found.digest:
                raise ProtocolError(
                    f"{found.name}: another request of exchange {letter.exchange} was answered before: a study has "
                    "one request for each exchange. Ask the coordinator"
                )
            return _copy_answer(made, out or request.parent)
        if letter.exchange <= mine.answered:
            raise ProtocolError(
                f"{found.name}: exchange {letter.exchange} is over: this site has answered exchange {mine.answered}. "
                "It is an old file"
            )
        if (answer := _answer(mine, found, data, confirm)) is None:
            raise SettingError(f"{found.name}: not answered; nothing has left")
        write_whole(made, answer)
        return _copy_answer(made, out or request.parent)
    finally:
        lock.release()


def _default_folder(found: Received) -> Path:
    name = found.letter.more.get("name")
    if found.letter.exchange == 0 and isinstance(name, str) and name.isprintable() and "/" not in name:
        return Path(f"{name}-{found.letter.site}")
    begun = [path.parent for path in Path().glob(f"*/{SITE}")]
    here = [path for path in begun if (one := SiteFolder.of(path)) and one.content.get("study") == found.letter.study]
    if len(here) != 1:
        raise SettingError(
            f"{found.name}: this site's folder of study {found.letter.study} is not in the current folder: pass "
            "--folder, the folder of its first answer"
        )
    return here[0]


def _new_site_folder(
    found: Received,
    folder: Path,
    data: Path | None,
    coordinator: str | None,
    policy: Path | None,
    confirm: Confirm | None,
) -> SiteFolder:
    """The folder of a site that begins: with a key of its own, the coordinator's, and the model that was sent."""
    letter = found.letter
    if letter.exchange:
        raise SettingError(
            f"{folder}: this site's folder of the study does not exist, and exchange {letter.exchange} needs it: pass "
            "--folder, the folder of its first answer"
        )
    if data is None:
        raise SettingError("pass --data, the file that has or loads this site's rows")
    key, model, recipe = (text_in(letter.more, part, found.name) for part in ("key", "model", "recipe"))
    found.verify(key, "the coordinator")
    told = fingerprint_of(key)
    if coordinator is not None and coordinator != told:
        raise ProtocolError(
            f"{found.name}: signed by the key {told}, but the coordinator's is {coordinator}: do not answer it"
        )
    if coordinator is None and confirm is None:
        raise SettingError(
            f"{found.name}: signed by the key {told}. Compare it with what the coordinator reads out, and pass it as "
            "--coordinator: the file has code that this command runs"
        )
    for part in (folder, folder / STATES, folder / ANSWERS):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(folder / MODEL, model.encode())
    write_whole(folder / RECIPE, recipe.encode())
    shown = request_words(letter, told, folder / MODEL, folder / RECIPE)
    if confirm is not None and not confirm(shown, "Have you compared the key, and read the model and the recipe?"):
        raise SettingError(f"{found.name}: not answered; nothing has left")
    if not (folder / KEY).exists():
        own = write_signing_key(folder / KEY)
        write_whole(folder / PUBLIC, public_text(own).encode() + b"\n")
    content = {"study": letter.study, "site": letter.site, "coordinator": key, "data": str(data.absolute())}
    if policy is not None:
        content["policy"] = str(site_folder(policy) / POLICY)
    write_json(folder / SITE, content)  # last: from now on the site has begun
    return SiteFolder(folder, content)


def _check_study(mine: SiteFolder, found: Received) -> None:
    """Refuse a request of another study, for another site, or that the coordinator has not signed; ProtocolError."""
    letter, own = found.letter, mine.content
    if letter.study != own["study"]:
        raise ProtocolError(
            f"{found.name}: it is of study {letter.study}, but {mine.folder} is of study {own['study']}: pass another "
            "--folder"
        )
    if letter.site != own["site"]:
        raise ProtocolError(
            f"{found.name}: it is for site {letter.site}, but this site is {own['site']}: tell the sender"
        )
    found.verify(own["coordinator"], "the coordinator")


def _answer(mine: SiteFolder, found: Received, data: Path | None, confirm: Confirm | None) -> bytes | None:
    """The bytes of the answer, which the person and the site's gate have let leave; None if the person has not."""
    letter, key = found.letter, load_signing_key(mine.folder / KEY)
    name, rows = letter.site, data or Path(mine.content["data"])

    def loaded(module: ModuleType, config: Mapping[str, Any]) -> Any:
        return load_rows(rows, module.model, module, config, option="--data")

    site = Site(mine.folder / MODEL, [mine.folder / RECIPE], loaded, how="of a study by files")
    policy = mine.content.get("policy") or mine.folder / POLICY
    # A policy's approval is compared with the model before it is imported; without a policy there is a ledger.
    gate = site.gate_of(name, policy) if Path(policy).exists() else Gate(name, folder=mine.folder)
    more: dict[str, Any] = {"request": found.digest, "policy": gate.policy.digest, "approval": gate.approval}
    with threads(1), torch.no_grad():
        if letter.exchange == 0:
            description = asdict(site.description(name, {"name": name}))
            more |= {"key": public_text(key), "description": description}
            signed = Letter(ANSWER, letter.study, name, 0, more).signed(key)
            shown, state = description_words(description), None
            outgoing = site.outgoing_description(name, signed, found.data)
        else:
            before = mine.state_before(letter.exchange)
            done = _done(mine, site, found, before)
            body = body_of(Message(done.header, done.tensors))
            signed = Letter(ANSWER, letter.study, name, letter.exchange, more, body).signed(key)
            shown, state = f"{order_words(done.order, done.algorithm)}\n{reply_words(done)}", done.kept
            asked = decode(letter.body, None, cap=MAX_MESSAGE_BYTES, finite=False)
            kept = "" if before is None else digest_of(before.data)
            outgoing = site.outgoing_reply(name, done.order, asked, done.tensors, signed, found.data, kept)
        gate.rows = site.clients[name].federation.num_rows
        if confirm is not None and not confirm(f"{gate.in_words()}\n{shown}", f"May this leave {name}?"):
            return None
        leaving = gate.release(outgoing)
    if state is not None:
        mine.keep(letter.exchange, state)
    return leaving


def _done(mine: SiteFolder, site: Site, found: Received, before: KeptState | None) -> Done:
    """The work that a request asks for."""
    letter = found.letter
    done = site.follow(letter.site, {"name": letter.site}, letter.more.get("order", {}), letter.body, before)
    if done is None:
        raise Refusal(
            f"{found.name}: exchange {letter.exchange} goes on from a state that is not in {mine.folder}: an answer "
            "before it was made in another folder. Pass that one as --folder"
        )
    return done


def _copy_answer(made: Path, folder: Path) -> Path:
    """A copy of an answer where the person looks for it."""
    path = folder / made.name
    write_whole(path, made.read_bytes())
    return path
