"""The tables: right or wrong, doubted or silent, by algorithm; and what was missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.helpers import markdown

#: A record of the file.
Row = dict[str, Any]


def outcome(row: Row) -> str:
    """Refused, or right or wrong and doubted or silent."""
    if row["wrong"] == "None":
        return "crashed" if row["said"].startswith("CRASH") else "refused"
    return ("wrong" if row["wrong"] == "True" else "right") + (" doubted" if row["said"] else " silent")


def share(part: int, whole: int) -> str:
    """A percentage with what it is of."""
    return f"{100 * part / whole:.0f} % ({part}/{whole})" if whole else "-"


def confusion(rows: Sequence[Row]) -> dict[str, int]:
    """How many of each outcome, and how many wrong ones said that they had converged."""
    counts = {
        name: sum(outcome(row) == name for row in rows)
        for name in ("right silent", "right doubted", "wrong doubted", "wrong silent", "refused", "crashed")
    }
    wrong = [row for row in rows if row["wrong"] == "True"]
    counts["wrong, converged"] = sum(row["converged"] == "True" for row in wrong)
    return counts


def print_tables(rows: Sequence[Row]) -> None:
    """Both tables, by algorithm with default settings and for wrong ones, and the cases that were missed."""
    groups = {
        label: [row for row in rows if row["label"] == label and row["setting"] == "default"] for label in order(rows)
    }
    wrong = [row for row in rows if row["setting"] == "wrong"]
    if wrong:
        groups["wrong settings"] = wrong
    print(
        "\n"
        + markdown.heading(
            *("", "runs", "right, silent", "right, doubted", "wrong, doubted", "wrong, silent", "refused", "crashed"),
            *("wrong but `converged`", "false silence", "false alarms"),
        )
    )
    for label, part in groups.items():
        found = confusion(part)
        # A refusal of a model that has no federated answer, and an error in place of one, are wrong and said.
        bad = found["wrong doubted"] + found["wrong silent"] + found["refused"] + found["crashed"]
        good = found["right silent"] + found["right doubted"]
        shares = (share(found["wrong silent"], bad), share(found["right doubted"], good))
        print(markdown.row(label, len(part), *found.values(), *shares))
    for title in ("wrong silent", "right doubted", "crashed"):
        missed = [row for row in rows if outcome(row) == title]
        print(f"\n{title} ({len(missed)}):")
        for row in missed:
            said = f"  {row['said'][:110]}" if row["said"] else ""
            print(
                f"  {row['label']:34s}{row['posterior']:24s}{row['kind']:16s}mean {row['mean_error']:>8s}  SD "
                f"{row['sd_low']:>7s} to {row['sd_high']:>7s}  {row['where']}{said}"
            )


def order(rows: Sequence[Row]) -> list[str]:
    """Labels of runs with default settings, as they come."""
    return list(dict.fromkeys(row["label"] for row in rows if row["setting"] == "default"))
