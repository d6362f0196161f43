"""README's table and picture, from what `make demo` has left behind.

    make demo
    python docs/comparison.py out/comparison      writes docs/comparison.json, docs/comparison.png and README's table
    python docs/comparison.py                     writes README's table again, from docs/comparison.json

`tests/docs/test_readme.py` holds README, this file's record and the Makefile's command together.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from pyro_fed.analysis.numbers import digits, percent, readable_bytes

ROOT = Path(__file__).parents[1]
README, RECORD, PICTURE = ROOT / "README.md", ROOT / "docs" / "comparison.json", ROOT / "docs" / "comparison.png"
BEGIN, END = "<!-- docs/comparison.py writes this table -->\n", "<!-- until here -->\n"

#: Rows of the table, in this order, and what they are called.
NAMES = {
    "nuts": "NUTS, pooled",
    "fedep": "`FedEP`",
    "p2p_vi": "`P2PVI` on a ring",
    "fedais": "`FedAIS`",
    "fsgld": "`FSGLD`",
    "dsvgd": "`DSVGD`",
    "fedlaplace": "`FedLaplace`",
}
#: What the picture shows.
SHOWN = {"nuts": "NUTS, pooled", "fedep": "FedEP", "fedais": "FedAIS", "p2p_vi": "P2PVI, ring", "dsvgd": "DSVGD"}
PANELS = ("w[7]", "w[20]", "xi")
#: Sentences of a result that the table has room for.
MOST_SENTENCES = 3
HEAD = (
    "",
    "mean error",
    "SD ratio",
    "prior count",
    "test log density",
    "accuracy",
    "rounds",
    "sent by clients",
    "what speaks against it",
)


def row(name: str, found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    two, three, whole = digits(2), digits(3), digits(0)
    measured = found["mean_error"] is not None
    return [
        NAMES[name],
        two(found["mean_error"]) if measured else "",
        f"{two(found['sd_ratio_min'])}-{two(found['sd_ratio_max'])}" if measured else "",
        f"{two(found['prior_count'])} ± {two(found['prior_count_se'])}",
        three(found["test_log_density"]),
        percent(found["accuracy"]),
        whole(found["rounds"]) if found["bytes_up"] is not None else "",
        readable_bytes(found["bytes_up"]) if found["bytes_up"] is not None else "",
        spoken([one["text"] for one in found["findings"] if one["severity"] == "doubt"]),
    ]


def spoken(sentences: list[str]) -> str:
    """What speaks against a posterior: the beginning of each sentence, without the cure."""
    said = [one.split(". ")[0].split("; ")[0] for one in sentences]
    more = [f"and {len(said) - MOST_SENTENCES} more"] if len(said) > MOST_SENTENCES else []
    return re.sub(r"'(\S+)'", r"`\1`", "; ".join([*said[:MOST_SENTENCES], *more])) or "nothing"


def table(record: dict[str, Any]) -> str:
    """README's table as Markdown."""
    rows = [list(HEAD), ["---"] * len(HEAD), *(row(name, record["results"][name]) for name in NAMES)]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |") for cells in rows)


def with_table(text: str, record: dict[str, Any]) -> str:
    """README with the table of a record."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{rest.split(END)[1]}"


def draw(folder: Path) -> None:
    """The picture, of the results in a folder."""
    import arviz
    import matplotlib as mpl

    mpl.use("Agg")
    import pyro_fed as pf

    results = {label: arviz.from_netcdf(str(folder / f"{name}.nc")) for name, label in SHOWN.items()}
    pf.plots.plot_comparison(results, SHOWN["nuts"], labels=list(PANELS))[0].figure.savefig(PICTURE, dpi=150)


def main() -> None:
    """Write the record and the picture where a folder is given, and README's table."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        shutil.copy(folder / "comparison.json", RECORD)
        draw(folder)
    README.write_text(with_table(README.read_text(), json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
