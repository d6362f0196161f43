"""The names that agents may have: a name appears in a certificate, in file names and in the peers file."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyro_fed.errors import SettingError, listed

#: Names that can stand in a certificate as a DNS name.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?")
#: Name of the authority's files, beside those of the agents.
AUTHORITY = "ca"


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse agents' names that are not DNS names, are the authority's, or equal another one except for case."""
    names = list(names)
    for name in names:
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{where}: an agent's name has letters, digits and '-' within, 1 to 63 of ASCII, received {name!r:.80}"
            )
        if name.lower() == AUTHORITY:
            raise SettingError(f"{where}: {name!r} is the name of the authority's files; call the agent otherwise")
    if len({name.lower() for name in names}) < len(names):
        raise SettingError(f"{where}: agents' names must differ by more than case, received {listed(names)}")
