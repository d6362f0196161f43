"""The gate that every message of a site passes before it is sent, and the ledger `what_left.jsonl`.

`release` judges a message by each rule, writes a line into the ledger, and returns the bytes that may leave. A message
that breaks a rule does not leave: the line says so, and `PolicyError` names the rule. The texts of that error have the
rule and what the asker knows already, and nothing that follows from rows; so they may leave.

A line of the ledger is a JSON object. `hash` is SHA-256 of the line's other fields as sorted JSON, among them
`previous`, the hash of the line before it. So no line can be changed, removed or moved without a trace, except at the
end: only the last hash, kept elsewhere, shows that (`verify(path, head)`), or that the file was written anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_fed.conventions.output import create_file, open_lock
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.policy.rules import COMPUTED, KINDS, Policy
from pyro_fed.errors import PolicyError, ProtocolError, SettingError

#: Name of the file in the site's folder.
LEDGER = "what_left.jsonl"
#: What the first line names as the hash before it.
FIRST = "0" * 64


def line_hash(line: Mapping[str, Any]) -> str:
    """SHA-256 of a line's fields without `hash`."""
    fields = {name: value for name, value in line.items() if name != "hash"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Ledger:
    """The ledger in a file, to which several processes may append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def appending(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The last line ({} if there is none), and a new one to be filled in, which is on the disk at the end.

        No other process appends meanwhile. If the block raises, nothing is written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open_lock(self.path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(file, self.path)
            line: dict[str, Any] = {"number": last.get("number", -1) + 1, "previous": last.get("hash", FIRST)}
            yield last, line
            line["hash"] = line_hash(line)
            os.lseek(file, 0, os.SEEK_END)
            data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)


def _last_line(file: int, path: Path) -> dict[str, Any]:
    size, width, data = os.fstat(file).st_size, io.DEFAULT_BUFFER_SIZE, b""
    if not size:
        return {}
    while len(data) < size and data.strip().count(b"\n") < 1:
        at = max(0, size - width)
        data, width = os.pread(file, size - at, at), 2 * width
    if not data.endswith(b"\n"):
        raise ProtocolError(f"{path}: its last line was cut off: {CURE}")
    return _parse_line(data.splitlines()[-1], path, "its last line")


#: What to do with a ledger that is not whole.
CURE = "keep the file, tell the data-protection officer, and begin a new one in its place"


def _parse_line(text: bytes, path: Path, which: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        if not isinstance(line, dict) or line.get("hash") != line_hash(line):
            raise ValueError("its hash is not that of its fields")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{path}: {which} is not as it was written: {error!s:.200}: {CURE}") from error
    return line


def verify(path: Path, head: str | None = None) -> list[dict[str, Any]]:
    """The lines of a ledger, after each was checked against the one before it, and the hash `head` was found.

    Without `head`, kept elsewhere, lines that were removed from the end cannot be noticed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProtocolError(f"{path} cannot be read: {error}") from error
    lines: list[dict[str, Any]] = []
    previous = FIRST
    texts = data.split(b"\n")
    if texts.pop():
        raise ProtocolError(f"{path}: line {len(texts) + 1} was cut off: {CURE}")
    for number, text in enumerate(texts):
        which = f"line {number + 1}"
        line = _parse_line(text, path, which)
        if line.get("number") != number or line.get("previous") != previous:
            raise ProtocolError(
                f"{path}: {which} is number {line.get('number')!r:.20} and follows {line.get('previous')!r:.12}..., "
                f"expected number {number} after {previous:.10}...: a line was removed, added or moved: {CURE}"
            )
        previous = line["hash"]
        lines.append(line)
    if head is not None and head not in {FIRST, *(line["hash"] for line in lines)}:
        raise ProtocolError(
            f"{path}: none of its {len(lines)} lines has the hash {head!s:.20}... that was kept: lines were removed "
            f"from the end, or all were rewritten: {CURE}"
        )
    return lines


#: Name of the policy's file in a site's folder, and of the folder of kept orders.
POLICY, ORDERS = "policy.toml", "orders"


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A message that is about to leave."""

    kind: str  # of `KINDS`
    data: bytes  # the bytes that leave, exactly
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # whose numbers are counted
    round: int = -1  # -1 outside rounds
    to: str = "server"  # or a neighbour's name
    asked: bytes = b""  # what it answers: the order, or a text that names it (an agent's phase and round)
    # Computes the largest share of one row; None where the numbers are no sums over rows, or their parts not known.
    share: Callable[[], float | None] | None = None
    cells: Mapping[str, int] = field(default_factory=dict)  # numbers of rows by cell of a table
    levels: Mapping[str, int] = field(default_factory=dict)  # numbers of rows by label of text columns
    replay: Mapping[str, object] = field(default_factory=dict)  # what else gives the same bytes again, such as the seed


@dataclass
class Gate:
    """The place through which every message of a site leaves."""

    site: str
    policy: Policy = field(default_factory=Policy)
    rows: int = 0  # for a plate over groups, of groups
    folder: Path | None = None  # the site's own, with the ledger; None for no ledger
    approval: str = ""  # hash of what was approved
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, folder: Path | None, site: str, rows: int = 0, approval: str = "") -> Gate:
        """The gate of a site with the policy in its folder; without a file everything may leave."""
        if folder is None or not (folder / POLICY).exists():
            return cls(site, rows=rows, folder=folder, approval=approval)
        return cls(site, Policy.read(folder / POLICY), rows, folder, approval)

    @property
    def approved_folder(self) -> Path | None:
        """The folder with the approved model and recipes, which are run; None if nothing was approved."""
        return self.folder if self.approval else None

    def in_words(self) -> str:
        """A sentence on the rules in force, for the site's own log."""
        kept = "" if self.folder is None else f"; {self.folder / LEDGER} has a line for each message"
        return f"Site {self.site}: {self.policy.in_words()}{kept}"

    def release(self, message: Outgoing) -> bytes:
        """The bytes that may leave, once the ledger has a line on them; PolicyError names the rule that forbids it."""
        if message.kind not in KINDS:
            raise ValueError(f"a message must be of a kind in {list(KINDS)}, received {message.kind!r}")
        asked = hashlib.sha256(message.asked).hexdigest() if message.asked else ""
        if self.folder is None:
            broken = self.objection(message, 0)
        else:
            with self._lock, Ledger(self.folder / LEDGER).appending() as (last, line):
                before, answered = self._answered_orders(last)
                rounds = before + (message.kind in COMPUTED and (not asked or asked != answered))
                broken = self.objection(message, rounds)
                if broken is None and message.kind in COMPUTED:
                    before, answered = rounds, asked
                line |= self._line(message, broken, asked) | {"rounds": before, "answered": answered}
                if last.get("policy") != self.policy.digest:
                    line["rules"] = self.policy.rules()
            if broken is None and self.policy.keep_orders and message.asked:
                self._keep(asked, message.asked)
        if broken is not None:
            rule, text = broken
            what = f"round {message.round}, {message.kind}" if message.round >= 0 else f"its {message.kind}"
            raise PolicyError(f"site {self.site}: {what} does not leave: {text} ({rule} of {POLICY})", rule)
        return message.data

    def _answered_orders(self, last: Mapping[str, Any]) -> tuple[int, str]:
        """How many orders were answered under these rules and this approval, and the hash of the last of them."""
        if (last.get("policy"), last.get("approval")) != (self.policy.digest, self.approval):
            return 0, ""
        return int(last["rounds"]), str(last["answered"])

    def objection(self, message: Outgoing, rounds: int) -> tuple[str, str] | None:
        """The first rule that a message breaks, and the reason; `rounds` counts the orders answered with it."""
        policy, numbers = self.policy, number_of(message.tensors)
        if message.kind == "notice":
            return None
        if policy.approval and not self.approval:
            return (
                "approval",
                "the site has approved nothing, and its rules require an approval (pyro-fed node approve)",
            )
        if not policy.permits(message.kind):
            return "kinds", f"messages of the kind {message.kind!r} may not leave"
        if message.kind == "keys":
            return None
        if self.rows < policy.min_rows:
            return "min_rows", f"the site has fewer than {policy.min_rows} rows"
        if any(0 < count < policy.min_cell for count in message.cells.values()):
            return "min_cell", f"a cell has fewer than {policy.min_cell} rows"
        if any(0 < count < policy.min_level for count in message.levels.values()):
            return "min_level", f"a label of a text column has fewer than {policy.min_level} rows"
        if message.kind not in COMPUTED:
            return None
        most = policy.max_numbers_per_row
        if most is not None and numbers > most * self.rows:
            return "max_numbers_per_row", f"its {numbers} numbers are more than {most:g} for each of the site's rows"
        if policy.max_rounds is not None and rounds > policy.max_rounds:
            return "max_rounds", f"the site answers at most {policy.max_rounds} orders, and has answered them"
        if policy.max_share < 1:
            share = message.share() if message.share is not None else None
            if share is None:
                return "max_share", "the share of each row in it is unknown"
            if not share <= policy.max_share:  # of NaN too
                return "max_share", f"a row has a share of more than {policy.max_share:g} in one of its numbers"
        return None

    def _line(self, message: Outgoing, broken: tuple[str, str] | None, asked: str) -> dict[str, object]:
        """What the ledger says of a message."""
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "site": self.site,
            "rows": self.rows,
            "kind": message.kind,
            "round": message.round,
            "to": message.to,
            "left": broken is None,
            "refused_by": "" if broken is None else broken[0],
            "numbers": number_of(message.tensors),
            "shapes": {name: list(value.shape) for name, value in message.tensors.items()},
            "bytes": len(message.data),
            "sha256": hashlib.sha256(message.data).hexdigest(),
            "numbers_sha256": numbers_hash(message.tensors),
            "policy": self.policy.digest,
            "approval": self.approval,
            "asked": asked,
            "replay": dict(message.replay),
        }

    def _keep(self, name: str, order: bytes) -> None:
        """Keep an order, by which the message can be computed again."""
        folder = Path(str(self.folder)) / ORDERS
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / name).exists():
            with create_file(folder / name) as file:
                file.write(order)


def number_of(tensors: Mapping[str, Tensor]) -> int:
    """The number of numbers in a message."""
    return sum(value.numel() for value in tensors.values())


def numbers_hash(tensors: Mapping[str, Tensor]) -> str:
    """A hash of a message's numbers, with their names: equal for equal numbers, however a message encodes them."""
    names = sorted(tensors)
    return hash_tensors([tensors[name] for name in names], repr(names)) if names else ""


def site_folder(policy: str | Path) -> Path:
    """The site's folder, which holds its policy's file."""
    path = Path(policy).expanduser()
    if path.name != POLICY or not path.is_file():
        raise SettingError(f"policy {str(policy)!r}: expected the path of a file {POLICY}, in the site's own folder")
    return path.parent.absolute()
