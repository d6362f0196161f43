"""The names that clients may have, the form of other names, and suggestions for misspelt ones."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

from pyro_fed.errors import ProtocolError, shown

#: Similarity from which an existing name is suggested, and the largest number of suggestions.
MIN_SIMILARITY, MAX_SUGGESTIONS = 0.7, 3
#: Least number of letters of a part of a name that is suggested: fewer occur in too many names.
MIN_PART_LETTERS = 4

#: All clients together, in tables and figures beside the clients.
OVERALL = "overall"
#: Longest client id.
MAX_CLIENT_ID = 64
#: Clients of the command line, where neither the user nor the partition says how many.
DEFAULT_CLIENTS = 10
_PATH = {"/", "\\"}
_CLIENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.\- ]*[A-Za-z0-9_.\-])?")


def snake_case(name: str) -> str:
    """``RoundRobin`` as ``round_robin``, ``IID`` as ``iid``; a name in snake case is unchanged."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def closest(name: str, valid: Iterable[str]) -> str:
    """A clause for an error message: the names that were likely meant, or else all valid ones."""
    valid = list(valid)
    near = difflib.get_close_matches(name, valid, n=MAX_SUGGESTIONS, cutoff=MIN_SIMILARITY)
    if not near and len(name) >= MIN_PART_LETTERS:
        near = [one for one in valid if name.lower() in one.lower()][:MAX_SUGGESTIONS]
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    return f"valid names: {', '.join(sorted(valid)) or '(none)'}"


def check_shown_name(name: str) -> None:
    """Refuse a name that cannot be in a table; simulated clients may have letters of any alphabet."""
    if not name.strip() or len(name) > MAX_CLIENT_ID or not name.isprintable() or name[0] == "." or _PATH & set(name):
        raise ProtocolError(
            f"a client id must have 1 to {MAX_CLIENT_ID} printable characters, no slash, and no dot at its start; "
            f"received {shown(name)}"
        )


def as_it_looks(name: str) -> str:
    """A name in the common form of all that look like it: "Zürich" with one code for its u, or with two."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def check_client_id(client: str) -> None:
    """Refuse an identifier that is no plain name, such as a path."""
    if len(client) > MAX_CLIENT_ID:
        raise ProtocolError(f"a client id has at most {MAX_CLIENT_ID} characters, received {len(client)}")
    if not _CLIENT.fullmatch(client):
        plain = unicodedata.normalize("NFKD", client).encode("ascii", "ignore").decode()
        cure = f"; {plain!r} would be accepted" if _CLIENT.fullmatch(plain) else ""
        raise ProtocolError(
            f"a client id must begin with a letter (a-z, A-Z), a digit or '_'; '-', '.' and spaces may follow within, "
            f"received {client!r}{cure}"
        )
