"""A page for each model of `models/`: what it is, its posterior by several algorithms beside the known one, its code.

The figures are those of the benchmark (`docs/benchmark/benchmark.json`, written by `pyro-fed bench`), with the rows
sorted over ten clients where there are ten rows: the hard split. A model that is no case of the benchmark has a page
without them, which says where it is used instead.
"""

from __future__ import annotations

import ast
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gallery
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from pyro_fed.analysis.bench.bench import from_values
from pyro_fed.analysis.bench.cell import Outcome
from pyro_fed.analysis.numbers import digits, readable_bytes, readable_seconds
from pyro_fed.analysis.plots.style import COLORS, GRID, REFERENCE
from pyro_fed.analysis.report import svg

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "models"
CELLS = ROOT / "docs" / "benchmark" / "benchmark.json"

#: The splits that are shown, the first that a model has, in words; and algorithms in their order, with their names.
SPLITS = {
    "sorted/10": "Rows sorted over ten clients, so that no two see the same kind of row.",
    "sorted/2": "Rows sorted over two clients.",
    "iid/2": "One row at each of two clients.",
}
ALGORITHMS = {
    "fedep": "FedEP",
    "fedais": "FedAIS",
    "p2p_vi": "P2PVI",
    "dsvgd": "DSVGD",
    "fsgld": "FSGLD",
    "auto": "Auto",
    "consensus_mc": "ConsensusMC",
    "fedlaplace": "FedLaplace",
}
#: Those that are drawn; the others stand in the table alone.
DRAWN = ("fedep", "fedais", "p2p_vi", "dsvgd", "fsgld")
#: Parameters of a figure: the worst ones.
MOST = 10
#: Half-width of a figure, in SDs of the reference.
WIDEST = 3.0
#: Where a model is used that has no known posterior.
ELSEWHERE = {
    "bnn_regression": "`python -m benchmarks.papers.bnn_regression_rmse`",
    "bnn_classification": "[networks](../networks.md)",
    "convolutional": "[networks](../networks.md)",
    "mlp_classification": "`python -m benchmarks.papers.fsgld_sections_5_2_and_5_3`",
    "metric_learning": "`python -m benchmarks.papers.fsgld_sections_5_2_and_5_3`",
    "gaussian_mixture_2d": "`python -m benchmarks.papers.mixtures`",
    "eight_schools": "[groups within clients](../hierarchical.md); the benchmark has it with all latents in common",
    "radon": "[groups within clients](../hierarchical.md) and `python -m benchmarks.accuracy.radon_counties`",
}


def write(folder: Path) -> None:
    """Write the pages, and the cards that lead to them.

    Args:
        folder: where they go: NAME.md, and cards.html.

    Raises:
        ValueError: a model without figures that `ELSEWHERE` does not name, or one named there without need.
    """
    folder.mkdir(exist_ok=True)
    found = by_model(from_values(json.loads(CELLS.read_text(encoding="utf-8"))).outcomes)
    names = sorted(path.stem for path in MODELS.glob("*.py") if path.stem != "__init__")
    without = [name for name in names if name not in found]
    if set(without) != set(ELSEWHERE):
        raise ValueError(f"models without figures: {without}; named as such: {sorted(ELSEWHERE)}")
    cards = []
    for name in names:
        title, text = described(MODELS / f"{name}.py")
        figure = picture(name, found[name]) if name in found else ""
        (folder / f"{name}.md").write_text(page(name, title, text, figure, found.get(name, {})), encoding="utf-8")
        if figure:
            small = picture(f"{name}-small", found[name])
            cards.append(gallery.card(f"_models/{name}.html", small, name, title))
    (folder / "cards.html").write_text(f'<div class="gallery">{"".join(cards)}</div>', encoding="utf-8")


def by_model(cells: Iterable[Outcome]) -> dict[str, dict[str, Outcome]]:
    """Cells of the split that is shown, by model and algorithm.

    Args:
        cells: of the benchmark.
    """
    names = {path.stem for path in MODELS.glob("*.py")} - set(ELSEWHERE)
    known = [cell for cell in cells if cell.case in names and cell.algorithm in ALGORITHMS]
    found: dict[str, dict[str, Outcome]] = {}
    for name in {cell.case for cell in known}:
        of_model = [cell for cell in known if cell.case == name]
        split = next((split for split in SPLITS if any(cell.split == split for cell in of_model)), None)
        if split is not None:
            found[name] = {cell.algorithm: cell for cell in of_model if cell.split == split}
    return found


def described(path: Path) -> tuple[str, str]:
    """A model's title, and the rest of its docstring.

    Args:
        path: of its file.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path} has no docstring"
    title, _, rest = text.partition("\n")
    return title.rstrip("."), rest.strip("\n")


def page(name: str, title: str, text: str, figure: str, cells: Mapping[str, Outcome]) -> str:
    """A model's page, in Markdown.

    Args:
        name: of its file.
        title: of the page.
        text: what it is.
        figure: as an element, or nothing.
        cells: by algorithm; none of a model that is no case of the benchmark.
    """
    parts = [f"# {title}", text, "## Over clients", f"```sh\npyro-fed run {name} --clients 10\n```"]
    if cells:
        split = next(iter(cells.values())).split
        shown = [
            f"Grey is the posterior as it is known, from one SD below its mean to one above, for the {MOST} parameters "
            "at most that are worst; a dot is an algorithm's mean, a line one SD on either side.",
            f"```{{raw}} html\n{figure}\n```",
        ]
        parts += [
            SPLITS[split],
            *(shown if figure else ["No algorithm that is drawn has an answer within the time limit."]),
            table(cells),
            "Errors are of the worst parameter, on the model's own scale or on the unconstrained one; bytes are all "
            "that clients sent and received. [The benchmark](../benchmark/index.md) has other splits and methods.",
        ]
    else:
        parts += [f"Its posterior is not known to many digits, so there is no figure here. See {ELSEWHERE[name]}."]
    code = f"```{{literalinclude}} ../../models/{name}.py\n:language: python\n:start-at: import\n```"
    parts += ["## The model", code]
    return "\n\n".join(parts) + "\n"


def table(cells: Mapping[str, Outcome]) -> str:
    """What each algorithm found, in Markdown.

    Args:
        cells: by algorithm.
    """
    rows = ["| algorithm | mean error, SDs | SD ratio | rounds | bytes | CPU | answer |", "|" + " --- |" * 7]
    for name, cell in ordered(cells):
        rows.append(f"| {ALGORITHMS[name]} | {' | '.join(figures(cell))} | {verdict(cell)} |")
    return "\n".join(rows)


def ordered(cells: Mapping[str, Outcome]) -> list[tuple[str, Outcome]]:
    """Algorithms in the table's order."""
    return [(name, cells[name]) for name in ALGORITHMS if name in cells]


def figures(cell: Outcome) -> list[str]:
    """Error, ratios of SDs, rounds, bytes and seconds of CPU, as texts."""
    known = cell.scores
    spent = known.get("cpu_seconds")
    seconds = "–" if spent is None else readable_seconds(spent)
    if not cell.answered:
        return ["–", "–", "–", "–", seconds]
    sent, rounds = known.get("bytes"), known.get("rounds")
    return [
        digits(2)(known["mean_error"] or 0.0),
        f"{known['sd_low']:.2f} to {known['sd_high']:.2f}",
        "–" if rounds is None else f"{rounds:,.0f}",
        "–" if sent is None else readable_bytes(sent),
        seconds,
    ]


def verdict(cell: Outcome) -> str:
    """Whether the answer is right, and what it says of itself or why there is none."""
    said = cell.error.splitlines()[0] if cell.error else cell.doubts[0] if cell.doubts else ""
    words = html.escape(" ".join(said.split())[:160], quote=False).replace("|", "\\|").replace("`", "")
    for sign in "*_[]$":
        words = words.replace(sign, "\\" + sign)
    return f"{cell.outcome}{': ' + words if words else ''}"


def picture(name: str, cells: Mapping[str, Outcome]) -> str:
    """A figure of all drawn algorithms, as an element of a page; nothing where none of them has an answer.

    Args:
        name: unique among the figures of a page.
        cells: by algorithm.
    """
    drawn = [(key, cells[key]) for key in DRAWN if key in cells and cells[key].answered]
    if not drawn:
        return ""
    labels = worst([cell for _, cell in drawn])
    heights = np.arange(len(labels))[::-1]
    with mpl.rc_context(svg.STYLE):
        plot, ax = plt.subplots(figsize=(5.2, 0.9 + 0.42 * len(labels)), layout="constrained")
        ax.axvspan(-1, 1, color=REFERENCE, linewidth=0, zorder=0)
        ax.axvline(0, color=GRID, zorder=1)
        for place, (key, cell) in enumerate(drawn):
            shift = 0.6 * ((place + 0.5) / len(drawn) - 0.5)
            rows = {row["label"]: row for row in cell.parameters}
            shown = [(y, rows[label]) for y, label in zip(heights, labels, strict=True) if label in rows]
            away = np.array([(row["mean"] - row["reference_mean"]) / row["reference_sd"] for _, row in shown])
            ratio = np.array([row["sd"] / row["reference_sd"] for _, row in shown])
            at = np.array([y for y, _ in shown]) - shift
            colour = COLORS[DRAWN.index(key)]
            ax.hlines(at, np.clip(away - ratio, -WIDEST, WIDEST), np.clip(away + ratio, -WIDEST, WIDEST), color=colour)
            ax.plot(np.clip(away, -WIDEST, WIDEST), at, "o", color=colour, markersize=3, label=ALGORITHMS[key])
        ax.set(
            xlim=(-WIDEST, WIDEST),
            yticks=heights,
            yticklabels=labels,
            xlabel="SDs of the known posterior from its mean",
        )
        ax.tick_params(length=0)
        ax.spines[["left", "right", "top"]].set_visible(False)
        plot.legend(
            *ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(drawn), frameon=False, fontsize=8
        )
        try:
            return f'<div class="figure-box">{svg.inline(plot, f"m-{name}", seen(drawn))}</div>'
        finally:
            plt.close(plot)


def worst(cells: Sequence[Outcome]) -> list[str]:
    """The parameters, on the model's own scale, where some algorithm is furthest off, in the order of sites."""
    badness: dict[str, float] = {}
    for row in (row for cell in cells for row in cell.parameters):
        if not row["label"].endswith(" (unconstrained)"):
            away = abs(row["mean"] - row["reference_mean"]) / row["reference_sd"]
            off = away + abs(float(np.log(row["sd"] / row["reference_sd"])))
            badness[row["label"]] = max(off, badness.get(row["label"], 0.0))
    return sorted(sorted(badness, key=lambda label: -badness[label])[:MOST], key=_place)


def _place(label: str) -> tuple[Any, ...]:
    site, _, index = label.partition("[")
    return site, tuple(int(part) for part in index.rstrip("]").split(",") if part.strip().isdigit())


def seen(drawn: Sequence[tuple[str, Outcome]]) -> str:
    """What a figure shows, for who cannot see it."""
    said = []
    for key, cell in drawn:
        error, low, high = (cell.scores[name] or 0.0 for name in ("mean_error", "sd_low", "sd_high"))
        said.append(
            f"{ALGORITHMS[key]}: means within {digits(2)(error)} SDs, SDs {low:.2f} to {high:.2f} times the known"
        )
    return "Means and SDs of parameters beside the known posterior. " + "; ".join(said)
