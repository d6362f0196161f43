"""The figures of the page: for each its panels, a note on how to read it, and a text for readers who cannot see it.

Panels are as wide as a phone's screen. The page puts them side by side if there is room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from pyro_fed.analysis import plots
from pyro_fed.analysis.criticism.checks import check_clients
from pyro_fed.analysis.criticism.influence import contributions, influence
from pyro_fed.analysis.judging.density import thin_posterior
from pyro_fed.analysis.judging.draws import MIN_CHAIN_DRAWS, Draws
from pyro_fed.analysis.judging.moments import Gaps, gaps, reference_doubts
from pyro_fed.analysis.numbers import digits
from pyro_fed.analysis.plots.comparison import most_different
from pyro_fed.analysis.plots.criticism import draw_influence
from pyro_fed.analysis.plots.forest import most_disputed
from pyro_fed.analysis.plots.style import MAX_MARKS, REFERENCE, line_colors, shortened
from pyro_fed.analysis.report import svg
from pyro_fed.audit.influence import follows_outcome
from pyro_fed.errors import PyroFedError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import ess, rhat
from pyro_fed.results.inference_data import InferenceData, flag
from pyro_fed.results.to_arviz import make_inference_data

#: Largest number of parameters in a figure with a panel for each.
MAX_PANELS = 9
#: Posterior draws for which rows are replicated at every client.
REPLICATIONS = 200

#: Notes on how to read the figures.
FOREST = """
Means and 94 % intervals of every parameter, in SDs of the reference from its mean; thick lines hold the middle half of
the draws. A line beside the grey band means that the result is off; a line that is shorter than the band means that it
is too sure of itself. An arrow at the edge is a mean that lies outside.
"""
FOREST_OF_ONE = "Means and 94 % intervals; thick lines hold the middle half of the draws."
POSTERIORS = """
Posterior densities of the parameters on which the results differ most; grey is {centre}. An arrow names a result
that lies outside the panel.
"""
POSTERIORS_OF_ONE = "Posterior densities."
PAIRS = "Draws of the two parameters on which the results differ most, over those of {centre} in grey."
PAIRS_OF_ONE = "Draws of two parameters. If the draws are bent or in several heaps, the posterior is not Gaussian."
CHAINS = """
The parameter whose chains differ most (R-hat). Above are their paths, which should look alike, without drifts. Below
are the ranks of each chain's draws in all draws: if the chains agree, all bars are near the dashed line.
"""
CONVERGENCE = """
Size of the update of each round, in the algorithm's own measure: compare the slopes, not the heights.
"""
PREDICTIVE = """
The mean of each client's observed rows (dots) against the means of rows that the model draws for that client (bars, 90
% of them). By chance about one dot in ten lies outside its bar; if many more do, the model does not produce such data.
"""
RELIABILITY = """
Accuracy against confidence on the test data; numbers are rows in the bin. On the dashed line a confidence of 80 % is
right four times in five; below it the result is too sure of itself. Bins of a few rows are noise.
"""
WHO = "Rows of each client. The more the clients' labels differ, the more they must learn from each other."
INFLUENCE = """
Influence: by how many SDs a client moves the posterior of all other clients. Disagreement: by how many SDs of chance it
differs from them. A large client has much influence. A disagreement above four asks for a look at the client's data.
"""
CONTRIBUTIONS = """
Each client's share of the information on the parameters, averaged over these, and its share of the rows. If a client
brings much less information than rows, its rows say little, for instance because they all have the same label.
"""
BY_CLIENT = """
The posterior of each client's data and the prior alone, with 90 % intervals, over the posterior of all clients (grey),
on the unconstrained scale. Larger dots bring more information. A dot far from the grey band disagrees, unless its
interval reaches it. A client without a dot has too little data for a Gaussian posterior of its own.
"""
COST = "Mean error against all bytes sent and received: lower left is best. Below the dashed line it is small enough."


class Panel(NamedTuple):
    """A panel of a picture, with a text for readers who cannot see it."""

    draw: Callable[[Any], object]  # on matplotlib axes: on one, or on an array of `axes`, one below the other
    size: tuple[float, float]  # in inches
    alt: str
    axes: int = 1


class Picture(NamedTuple):
    """A figure of the page: its panels, a note on how to read it, and each result's colour."""

    panels: list[Panel]
    note: str
    legend: Mapping[str, str]


class Chains(NamedTuple):
    """R-hat and effective number of draws of each parameter, (D,) each."""

    rhat: np.ndarray
    ess: np.ndarray


@dataclass(frozen=True)
class ReportData:
    """The results that the page shows, and figures that several pictures need."""

    table: pd.DataFrame
    results: Mapping[str, InferenceData]
    federation: Federation | None
    reference: str | None
    test: Any

    @cached_property
    def draws(self) -> dict[str, Draws]:
        """The draws of each result whose draws are all finite."""
        found = {name: Draws.of(one) for name, one in self.results.items()}
        return {name: draws for name, draws in found.items() if not draws.fault}

    @cached_property
    def drawable(self) -> dict[str, InferenceData]:
        """The results whose draws are all finite."""
        return {name: self.results[name] for name in self.draws}

    @cached_property
    def centre(self) -> str | None:
        """Name of the result over which others are drawn: the reference, or the first result that is not a point."""
        wanted = (self.reference, *self.draws)
        return next((name for name in wanted if name in self.draws and not self.draws[name].spreadless), None)

    @cached_property
    def of_clients(self) -> dict[str, InferenceData]:
        """Drawable results of federated runs, without runs on pooled data."""
        return {name: one for name, one in self.drawable.items() if not flag(one.attrs, "centralized")}

    @cached_property
    def left_out(self) -> str:
        """A sentence on the results that the figures of draws do not show; "" if they show all."""
        missing = [name for name in self.results if name not in self.draws]
        return f" Left out, as their draws are no numbers: {', '.join(missing)}." if missing else ""

    @property
    def caveats(self) -> str:
        """Sentences on what is left out, and on a reference that is doubtful; "" without either."""
        said = " The reference is doubtful: a result that differs from it may be right." if self.doubtful else ""
        return said + self.left_out

    @cached_property
    def doubtful(self) -> bool:
        """Whether the results are drawn over a reference to which no distances are given."""
        here = self.centre is not None and self.centre == self.reference
        return here and bool(reference_doubts(self.results[str(self.centre)], self.draws[str(self.centre)]))

    @cached_property
    def legend(self) -> dict[str, str]:
        """The colour of each result; the centre has the grey of its areas."""
        found = line_colors(self.drawable)
        return found if self.centre is None else {**found, self.centre: REFERENCE}

    @cached_property
    def gaps(self) -> dict[str, Gaps]:
        """Distances of each result's moments from the centre's, unless it is doubtful; without single points."""
        if self.centre is None or self.doubtful:
            return {}
        truth = self.draws[self.centre]
        others = {name: one for name, one in self.draws.items() if name != self.centre and not one.spreadless}
        return {name: gaps(draws, truth) for name, draws in others.items()}

    @cached_property
    def chains(self) -> dict[str, Chains]:
        """R-hat and effective numbers of draws of each result that is Markov chains."""
        found = {name: one for name, one in self.draws.items() if one.kind == "chains" and not one.spreadless}
        return {
            name: Chains(np.nan_to_num(rhat(one.values), nan=1.0), ess(one.values))
            for name, one in found.items()
            if one.values.shape[1] >= MIN_CHAIN_DRAWS
        }

    def note_for(self, note: str, of_one: str) -> str:
        """The note of a figure of draws: `of_one` for one result, else `note` with the centre's name for `{centre}`."""
        centre = "the reference" if self.centre == self.reference else str(self.centre)
        return (note.format(centre=centre) if len(self.drawable) > 1 else of_one) + self.caveats

    def different(self, centre: str, most: int) -> list[str]:
        """The parameters on which results differ most from the centre."""
        flat = {name: draws.flat for name, draws in self.draws.items()}
        return most_different(flat, centre, self.draws[centre].labels, None, most)

    def moments(self, label: str) -> str:
        """A text with the mean and SD of a parameter in each result."""
        moments = []
        for name, draws in self.draws.items():
            values = draws.flat[:, draws.labels.index(label)]
            moments.append(f"{name} {values.mean():.3g} ± {values.std():.2g}")
        return f"{label}: {'; '.join(moments)}"


def pictures(about: ReportData) -> list[dict[str, Any]]:
    """The figures as the page's template takes them; one that cannot be drawn has a note that says why."""
    shown = []
    for number, (title, make) in enumerate(MAKERS):
        try:
            picture = make(about)
            if picture is None:
                continue
            panels = [_panel_svg(one, number, i) for i, one in enumerate(picture.panels)]
            found = {**picture._asdict(), "panels": panels}
        except PyroFedError as error:
            found = {"panels": [], "note": f"Cannot be drawn here: {error}", "legend": {}}
        shown.append({**found, "title": title})
    return shown


def _panel_svg(panel: Panel, number: int, place: int) -> str:
    with mpl.rc_context(svg.STYLE):
        figure, axes = plt.subplots(panel.axes, 1, figsize=panel.size, layout="constrained", squeeze=False)
        try:
            panel.draw(axes[:, 0] if panel.axes > 1 else axes[0, 0])
            return svg.inline(figure, f"f{number}-{place}", panel.alt)
        finally:
            plt.close(figure)


def _without_legend(axes: Any) -> None:
    """Remove a panel's legend, since the page has one legend for all panels."""
    for ax in np.atleast_1d(axes):
        if ax.get_legend() is not None:
            ax.get_legend().remove()


def _forest(about: ReportData) -> Picture | None:
    if about.centre is None:
        return None
    shown = about.different(about.centre, MAX_MARKS)
    total, others = len(about.draws[about.centre].labels), max(1, len(about.drawable) - 1)
    size = (4.2, 0.9 + (0.09 * others + 0.1) * max(len(shown), 4))

    def draw(ax: Any) -> None:
        plots.plot_forest(about.drawable, about.centre, labels=shown, ax=ax)
        _without_legend(ax)

    rest = f" The {len(shown)} of {total} parameters on which results differ most." if len(shown) < total else ""
    note = (FOREST if len(about.drawable) > 1 else FOREST_OF_ONE) + rest + about.caveats
    alt = f"Intervals of {len(shown)} parameters for {', '.join(about.drawable)}; {farthest_mean_text(about)}"
    return Picture([Panel(draw, size, alt)], note, about.legend if len(about.drawable) > 1 else {})


def farthest_mean_text(about: ReportData) -> str:
    """A text on the mean that is farthest from the reference: its result, its parameter, and the distance."""
    far = about.gaps
    if not far:
        return "there is no sound reference to measure them by"
    name = max(far, key=lambda one: float(np.abs(np.nan_to_num(far[one].mean)).max()))
    at = int(np.abs(np.nan_to_num(far[name].mean)).argmax())
    return (
        f"the farthest mean is that of {name} in {far[name].labels[at]}, {abs(far[name].mean[at]):.2f} SDs from "
        f"{about.centre}"
    )


def _posteriors(about: ReportData) -> Picture | None:
    if about.centre is None:
        return None

    def panel(label: str) -> Panel:
        def draw(ax: Any) -> None:
            plots.plot_comparison(about.drawable, about.centre, labels=[label], ax=ax)
            _without_legend(ax)

        return Panel(draw, (3.6, 2.6), about.moments(label))

    note = about.note_for(POSTERIORS, POSTERIORS_OF_ONE)
    return Picture([panel(one) for one in about.different(about.centre, MAX_PANELS)], note, about.legend)


def _pair(about: ReportData) -> Picture | None:
    centre = about.centre
    others = [name for name in about.drawable if name != centre]
    if centre is None or len(about.draws[centre].labels) < 2:
        return None
    labels = about.different(centre, 2)

    def panel(name: str) -> Panel:
        both = {centre: about.drawable[centre], name: about.drawable[name]}
        own, truth = (_correlation(about.draws[one], labels) for one in (name, centre))

        def draw(ax: Any) -> None:
            plots.plot_pair(both, centre, labels=labels, ax=ax)
            for one in (*ax.collections[1:], *ax.texts):
                one.set_color(about.legend[name])

        alt = f"{labels[0]} against {labels[1]}: correlation {own:.2f} for {name}, {truth:.2f} for {centre}"
        return Panel(draw, (3.6, 3.2), alt)

    note = about.note_for(PAIRS, PAIRS_OF_ONE)
    return Picture([panel(name) for name in others or [centre]], note, about.legend)


def _correlation(draws: Draws, labels: list[str]) -> float:
    values = draws.flat[:, [draws.labels.index(label) for label in labels]]
    return float(np.corrcoef(values.T)[0, 1]) if (np.ptp(values, axis=0) > 0).all() else math.nan


def _chains(about: ReportData) -> Picture | None:
    def panel(name: str, chains: Chains) -> Panel:
        draws = about.draws[name]
        worst = draws.labels[int(chains.rhat.argmax())]

        def draw(axes: Any) -> None:
            plots.plot_chains(about.results[name], labels=[worst], ax=axes)
            axes[0].set_title(f"{name}: {shortened(worst)}", fontsize=10)
            axes[1].set_title("")

        largest = digits(3)(float(chains.rhat.max()))
        alt = f"Paths and ranks of {len(draws.values)} chains of {name} in {worst}, R-hat {largest}"
        return Panel(draw, (3.6, 4.2), alt, axes=2)

    return Picture([panel(*one) for one in about.chains.items()], CHAINS, {}) if about.chains else None


def _convergence(about: ReportData) -> Picture | None:
    recorded = {name: idata for name, idata in about.results.items() if "federation" in idata}
    shown = {name: one for name, one in recorded.items() if "change" in one["federation"]}
    if not shown:
        return None
    every = {**about.drawable, **about.results}  # which have their colours by their place
    palette = {name: colour for name, colour in line_colors(every).items() if name in shown}
    last = {name: one["federation"]["change"].values for name, one in shown.items()}
    ends = ", ".join(
        f"{name} {recorded[name]['federation'].sizes['round']:,} rounds down to {np.nanmin(values):.2g}"
        for name, values in last.items()
        if np.isfinite(values).any()
    )

    def draw(axes: Any) -> None:
        plots.plot_convergence(every, ax=axes)
        _without_legend(axes)

    evidence = [
        f" Log evidence by {name}: {one.attrs['log_evidence']:.2f} ± {one.attrs['log_evidence_se']:.2f}."
        for name, one in recorded.items()
        if np.isfinite(one.attrs.get("log_evidence_se", np.nan))
    ]
    alt = f"Lines that fall over rounds and over bytes: {ends}"
    return Picture([Panel(draw, (4.4, 5.0), alt, axes=2)], CONVERGENCE + "".join(evidence), palette)


def _predictive(about: ReportData) -> Picture | None:
    federation = about.federation
    if not about.drawable or federation is None or not federation.holds_data:
        return None

    def panel(name: str, idata: InferenceData) -> Panel:
        fewer = make_inference_data(thin_posterior(idata, REPLICATIONS), dict(idata.attrs))
        found = check_clients(fewer, federation, {"mean of the rows": np.mean})
        p = found["p_value"].values[:, 0]
        outside = int((np.abs(p - 0.5) > 0.45).sum())
        kept = _most_extreme_clients(-np.abs(p - 0.5))
        size = (3.6, 1.1 + 0.22 * max(len(kept), 3))

        def draw(ax: Any) -> None:
            plots.plot_check_intervals(found.isel(client=kept), ax=ax)
            _without_legend(ax)
            ax.set_title(name, fontsize=10)

        return Panel(draw, size, f"{name}: the observed means of {outside} of {len(p)} clients lie outside 90 %")

    return Picture([panel(*one) for one in about.drawable.items()], PREDICTIVE + about.left_out, {})


def _most_extreme_clients(order: np.ndarray) -> np.ndarray:
    """Numbers of the clients to show, in their own order: those with the smallest `order` if there are too many."""
    return np.sort(np.argsort(np.nan_to_num(order, nan=np.inf), kind="stable")[:MAX_MARKS])


def _reliability(about: ReportData) -> Picture | None:
    federation = about.federation
    if about.test is None or federation is None or "ece" not in about.table:
        return None
    measured = {name: one for name, one in about.drawable.items() if about.table["ece"].notna()[name]}
    if not measured:
        return None
    palette = line_colors(about.drawable)

    def panel(name: str, idata: InferenceData) -> Panel:
        def draw(ax: Any) -> None:
            plots.plot_reliability({name: idata}, federation, about.test, ax=ax)
            for dots in (*ax.collections, *ax.lines[1:]):
                dots.set_color(palette[name])
            ax.set(xlabel="confidence", ylabel="share that was right")

        return Panel(draw, (3.6, 3.3), f"{name}: confidence and accuracy are {about.table['ece'][name]:.3f} apart")

    return Picture([panel(*one) for one in measured.items()], RELIABILITY + about.left_out, {})


def _rows_of_clients(about: ReportData) -> Picture | None:
    federation = about.federation
    if federation is None:
        return None
    counts = federation.summary()["rows"]
    alt = (
        f"Bars of the rows of {federation.num_clients} clients, by label where there are labels: "
        f"{int(counts.min()):,} to {int(counts.max()):,}"
    )
    size = (4.4, 1.2 + 0.2 * min(federation.num_clients, MAX_MARKS))
    return Picture([Panel(lambda ax: plots.plot_partition(federation, ax=ax), size, alt)], WHO, {})


def _influence(about: ReportData) -> Picture | None:
    of_clients = about.of_clients
    if about.federation is None:  # influence then follows from sites alone
        of_clients = {name: one for name, one in of_clients.items() if "sites" in one}
    elif about.federation.num_clients < 2:
        return None
    federation, notes = about.federation, list[str]()

    def panel(name: str, idata: InferenceData) -> Panel:
        found = influence(idata, federation)
        if found.attrs["stands_apart"] and (federation is None or not follows_outcome(federation, federation.problem)):
            notes.append(f" {name}: {found.attrs['stands_apart']}.".replace("..", "."))
        size = found["influence"].values
        kept = _most_extreme_clients(-size)
        strongest = found["client"].values[int(np.nan_to_num(size, nan=-1.0, posinf=np.inf).argmax())]

        def draw(ax: Any) -> None:
            draw_influence(ax, found.isel(client=kept), named=True)
            ax.set_title(name, fontsize=10, y=1.0, pad=22)

        alt = f"{name}: client {strongest} moves the posterior most, by {np.nanmax(size):.2g} SDs"
        return Panel(draw, (3.6, 1.2 + 0.26 * max(len(kept), 3)), alt)

    spread = {name: one for name, one in of_clients.items() if not about.draws[name].spreadless}
    if not spread:
        return None
    panels = [panel(*one) for one in spread.items()]
    return Picture(panels, INFLUENCE + "".join(notes), {})


def _contributions(about: ReportData) -> Picture | None:
    chosen = _best_result(about)
    if chosen is None:
        return None
    found = contributions(about.results[chosen], about.federation)
    share = found["contribution"].values
    kept = _most_extreme_clients(-share)
    most = found["client"].values[int(np.nan_to_num(share, nan=-1.0).argmax())]
    alt = (
        f"Client {most} brings most, {100 * np.nanmax(share):.0f} % of the information; the prior "
        f"{100 * float(found['prior_contribution']):.0f} %"
    )
    size = (4.4, 1.0 + 0.26 * (len(kept) + 1))
    panel = Panel(lambda ax: plots.plot_contributions(found.isel(client=kept), ax=ax), size, alt)
    return Picture([panel], f"{CONTRIBUTIONS} By {chosen}.", {})


def _by_client(about: ReportData) -> Picture | None:
    chosen = _best_result(about)
    if chosen is None:
        return None
    found = contributions(about.results[chosen], about.federation)
    found = found.isel(client=_most_extreme_clients(-found["contribution"].values))
    if not np.isfinite(found["mean"].values / found["sd"].values).any():
        return None

    def panel(label: str) -> Panel:
        one = found.sel(parameter=label)
        alone, spread = one["mean"].values, np.isfinite(one["mean"].values)
        alone_text = f"{alone[spread].min():.2g} to {alone[spread].max():.2g}" if spread.any() else "nothing"
        every = f"{float(one['all_mean']):.2g} ± {float(one['all_sd']):.2g}"
        alt = f"{label}: clients alone say {alone_text}, all together {every}"
        size = (3.6, 1.0 + 0.22 * max(len(alone), 3))
        return Panel(lambda ax: plots.plot_client_forest(found, labels=[label], ax=ax), size, alt)

    return Picture([panel(label) for label in most_disputed(found, MAX_PANELS)], f"{BY_CLIENT} By {chosen}.", {})


def _best_result(about: ReportData) -> str | None:
    """Name of the best result of a federated run: by mean error, else by KSD, else the first; None if there is none."""
    names = [name for name in about.of_clients if not about.draws[name].spreadless]
    federation = about.federation
    if not names or federation is None or not federation.holds_data or federation.num_clients < 2:
        return None
    for column in ("mean_error", "ksd"):
        known = [name for name in names if column in about.table and about.table[column].notna()[name]]
        if known:
            return min(known, key=lambda name: float(about.table[column][name]))
    return names[0]


def _cost(about: ReportData) -> Picture | None:
    if "mean_error" not in about.table or "bytes_up" not in about.table:
        return None
    known = about.table[["mean_error", "bytes_up"]].astype(float).dropna()
    if not len(known):
        return None
    points = [f"{name}: error {row.mean_error:.2f} for {row.bytes_up / 1e6:,.3g} MB" for name, row in known.iterrows()]
    alt = "; ".join(points)
    return Picture([Panel(lambda ax: plots.plot_cost(about.table, ax=ax), (4.4, 3.2), alt)], COST, {})


#: The figures in the order of the page.
MAKERS: tuple[tuple[str, Callable[[ReportData], Picture | None]], ...] = (
    ("All parameters", _forest),
    ("Posteriors", _posteriors),
    ("Two parameters together", _pair),
    ("Chains", _chains),
    ("Convergence", _convergence),
    ("Error against bytes", _cost),
    ("Can the model make such data?", _predictive),
    ("Do probabilities mean what they say?", _reliability),
    ("Who holds what", _rows_of_clients),
    ("Who moves the answer", _influence),
    ("What each client brings", _contributions),
    ("Each client alone", _by_client),
)
