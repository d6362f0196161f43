"""The names that clients may have, in tables, figures and messages; and how many clients there may be."""

from __future__ import annotations

import re
import unicodedata

from pyro_fed.errors import ProtocolError, shown

#: All clients together, in tables and figures beside the clients.
OVERALL = "overall"
#: Longest client id.
MAX_CLIENT_ID = 64
#: Clients of the command line, where neither the user nor the partition says how many.
DEFAULT_CLIENTS = 10

_PATH = {"/", "\\"}
_CLIENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.\- ]*[A-Za-z0-9_.\-])?")


def check_shown_name(name: str) -> None:
    """Refuse a name that cannot be in a table; simulated clients may have letters of any alphabet.

    Raises:
        ProtocolError: an empty or too long name, unprintable characters, or a path.
    """
    if not name.strip() or len(name) > MAX_CLIENT_ID or not name.isprintable() or name[0] == "." or _PATH & set(name):
        raise ProtocolError(
            f"a client id has 1 to {MAX_CLIENT_ID} characters that can be printed, no slash among them, and begins "
            f"with no dot; received {shown(name)}"
        )


def as_it_looks(name: str) -> str:
    """A name in the common form of all that look like it: "Zürich" with one code for its u, or with two."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def check_client_id(client: str) -> None:
    """Refuse an identifier that is no plain name, such as a path.

    Raises:
        ProtocolError: too long, or other characters than letters, digits, "_", "-", "." and spaces within.
    """
    if len(client) > MAX_CLIENT_ID:
        raise ProtocolError(f"a client id has at most {MAX_CLIENT_ID} characters, received {len(client)}")
    if not _CLIENT.fullmatch(client):
        plain = unicodedata.normalize("NFKD", client).encode("ascii", "ignore").decode()
        cure = f"; {plain!r} would do" if _CLIENT.fullmatch(plain) else ""
        raise ProtocolError(
            f"a client id begins with a letter (a-z, A-Z), a digit or '_' and has these, '-', '.' and spaces within, "
            f"received {client!r}{cure}"
        )
