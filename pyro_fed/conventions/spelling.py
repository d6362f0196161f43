"""The form of names, and suggestions for misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: How alike a name must be to one that exists, and how many of these are told.
MIN_SIMILARITY, MAX_SUGGESTIONS = 0.7, 3
#: Letters from which on a part of a name may stand for it: fewer are in too many.
MIN_PART_LETTERS = 4


def snake_case(name: str) -> str:
    """``RoundRobin`` as ``round_robin``, ``IID`` as ``iid``; a name in snake case is unchanged."""
    pieces = []
    for i, letter in enumerate(name):
        after_lower = i > 0 and (name[i - 1].islower() or name[i - 1].isdigit())
        before_lower = i > 0 and name[i - 1].isupper() and i + 1 < len(name) and name[i + 1].islower()
        pieces.append(("_" if letter.isupper() and (after_lower or before_lower) else "") + letter.lower())
    return "".join(pieces)


def closest(name: str, valid: Iterable[str]) -> str:
    """A clause for an error message: the names that were likely meant, or else all valid ones."""
    valid = list(valid)
    near = difflib.get_close_matches(name, valid, n=MAX_SUGGESTIONS, cutoff=MIN_SIMILARITY)
    if not near and len(name) >= MIN_PART_LETTERS:
        near = [one for one in valid if name.lower() in one.lower()][:MAX_SUGGESTIONS]
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    return f"valid names: {', '.join(sorted(valid)) or '(none)'}"
