"""Prints the table of forms: `python tests/trial/table.py [words]`; words select forms by their names."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]


def main(words: list[str]) -> int:
    """Try all forms, or those whose names have one of the words."""
    from form import outcome
    from forms import FORMS

    start, counts = time.perf_counter(), Counter()
    for form in FORMS:
        if words and not any(word in form.name for word in words):
            continue
        result, said = outcome(form)
        counts[result] += 1
        detail = said if result == "open" else said[:40]
        print(f"| {form.name} | {result} | {detail} |", flush=True)
    total = sum(counts.values())
    print(
        f"\n{total} forms: {counts['accepted']} accepted and right, {counts['cured']} refused and cured, "
        f"{counts['open']} open; {time.perf_counter() - start:.0f} s"
    )
    return counts["open"]


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
