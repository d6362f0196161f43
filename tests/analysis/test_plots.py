"""The figures show what they say: numbers on the axes against numbers in the results."""

import numpy as np
import pytest
import torch
from algorithms import line, line_data
from late import late

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.results.to_arviz import make_inference_data

plt, xr, pd = late("matplotlib.pyplot"), late("xarray"), late("pandas")

pytestmark = pytest.mark.usefixtures("close_figures")


def result(mean, sd=1.0, count=400, rounds=4, seed=0):
    rng = np.random.default_rng(seed)
    groups = {
        "posterior": xr.Dataset({"w": (("chain", "draw", "k"), rng.normal(mean, sd, size=(1, count, 2)))}),
        "federation": xr.Dataset(
            {
                "change": ("round", [np.nan, *(0.1 ** np.arange(rounds - 1))]),
                "bytes_up": (("round", "client"), np.full((rounds, 2), 5e5)),
                "bytes_down": (("round", "client"), np.full((rounds, 2), 5e5)),
                "alive": (("round", "client"), np.tile([1.0, np.nan], (rounds, 1))),
            }
        ),
    }
    return make_inference_data(groups, {"draws_are": "particles", "centralized": 0})


def test_comparison_centres_on_the_reference_and_names_what_is_outside():
    results = {"truth": result(0.0), "near": result(0.3, seed=1), "far": result(20.0, seed=2)}
    panels = pf.plots.plot_comparison(results, "truth")
    assert [ax.get_title() for ax in panels] == ["w[0]", "w[1]"]
    low, high = panels[0].get_xlim()
    assert (low + high) / 2 == pytest.approx(float(results["truth"].posterior["w"][..., 0].mean()), abs=1e-6)
    assert [text.get_text() for text in panels[0].texts] == ["far →"]
    heights = {one.get_label(): one for one in panels[0].lines}
    x, y = heights["near"].get_data()
    assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.02)
    assert x[np.argmax(y)] == pytest.approx(0.3, abs=0.5)


def test_comparison_of_chosen_parameters():
    axes = pf.plots.plot_comparison({"one": result(0.0)}, labels=["w[1]"], figsize=(3.0, 2.0))
    assert [ax.get_title() for ax in axes] == ["w[1]"]
    assert tuple(axes[0].figure.get_size_inches()) == (3.0, 2.0)
    given = plt.subplots(2, 2)[1]
    drawn = pf.plots.plot_comparison({"one": result(0.0)}, ax=given)
    assert list(drawn) == [given[0, 0], given[0, 1]]
    with pytest.raises(SettingError, match="has 2 panels, and 1 axes were given"):
        pf.plots.plot_comparison({"one": result(0.0)}, ax=given[0, 0])
    with pytest.raises(SettingError, match=r"no parameters \['v'\]"):
        pf.plots.plot_comparison({"one": result(0.0)}, labels=["v"])
    with pytest.raises(SettingError, match="reference 'b' is not among"):
        pf.plots.plot_comparison({"one": result(0.0)}, "b")


def test_convergence_against_rounds_and_bytes():
    by_round, by_bytes = pf.plots.plot_convergence({"a": result(0.0), "b": result(0.0)})
    np.testing.assert_allclose(by_round.lines[0].get_data(), [[2, 3, 4], [1, 0.1, 0.01]])
    np.testing.assert_allclose(by_bytes.lines[1].get_xdata(), [4, 6, 8])  # 2 MB a round, both ways
    each = pf.plots.plot_convergence(result(0.0), "alive")
    np.testing.assert_allclose(each[0].lines[0].get_ydata(), np.ones(4))
    with pytest.raises(SettingError, match=r"metric must be one of .*, received 'loss'"):
        pf.plots.plot_convergence(result(0.0), "loss")


def test_partition_bars_are_the_rows():
    parts = pf.partition.Explicit([list(range(5)), list(range(5, 23))])
    ax = pf.plots.plot_partition(pf.Federation(line, line_data(), plate="data", partition=parts))
    assert [bar.get_width() for bar in ax.patches] == [5, 18]
    assert "23 rows over 2 clients" in ax.get_title()


def test_partition_bars_have_names_and_counts_are_no_classes():
    x, y = line_data()
    fed = pf.Federation.from_clients(
        line, {"Universitätsklinik Köln": (x[:5], y[:5]), "Charité Berlin": (x[5:], y[5:])}, plate="data"
    )
    ax = pf.plots.plot_partition(fed)
    assert [bar.get_width() for bar in ax.patches] == [5, 18]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["Universitätsklinik Köln", "Charité Berlin"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_partition_bars_by_label():
    import pyro
    import pyro.distributions as dist

    def coin(y):
        p = pyro.sample("p", dist.Beta(torch.ones(()), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(p), obs=y)

    y = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    parts = pf.partition.Explicit([[0, 2, 3], [1, 4]])
    fed = pf.Federation(coin, (y,), plate="data", partition=parts)
    ax = pf.plots.plot_partition(fed)
    assert [bar.get_width() for bar in ax.patches] == [1, 1, 2, 1]
    posterior = xr.Dataset({"p": (("chain", "draw"), np.full((1, 20), 0.75))})
    (ax,) = pf.plots.plot_reliability(make_inference_data({"posterior": posterior}, {}), fed, (y,))
    dots = ax.collections[0].get_offsets()
    np.testing.assert_allclose(dots, [[0.75, 0.6]], rtol=1e-6)
    assert "ECE 0.150, MCE 0.15" in ax.get_title()


def test_reliability_needs_classes():
    fed = pf.Federation(line, line_data(), plate="data", num_clients=2)
    with pytest.raises(SettingError, match="takes test data whose observations are classes"):
        pf.plots.plot_reliability(result(0.0, count=20), fed, line_data())


def test_particles_over_contours_that_enclose_what_they_say():
    idata = result(0.0, count=50)
    ax = pf.plots.plot_particles(idata, lambda z: -0.5 * z.square().sum(-1), limits=(-5, 5, -5, 5))
    np.testing.assert_allclose(ax.collections[-1].get_offsets(), idata.posterior["w"].values[0])
    outer = ax.collections[1].get_paths()[0].vertices
    radius = np.sqrt(-2 * np.log(1 - 0.9))  # of the disc that holds 90 % of N(0, I)
    assert np.abs(np.hypot(*outer.T) - radius).max() < 0.1
    assert "50 particles" in [text.get_text() for text in ax.get_legend().get_texts()]
    with pytest.raises(SettingError, match="two parameters"):
        pf.plots.plot_particles(idata, labels=["w[0]"])
    assert plt.get_fignums()


def test_forest_is_in_units_of_the_reference_and_points_at_what_is_outside():
    results = {"truth": result(0.0), "near": result(1.0, 0.5, seed=1), "far": result(20.0, seed=2)}
    ax = pf.plots.plot_forest(results, "truth", labels=["w[1]"])
    truth, near = (results[name].posterior["w"].values[0, :, 1] for name in ("truth", "near"))
    (dot,) = ax.collections[3].get_offsets()
    assert dot[0] == pytest.approx((near.mean() - truth.mean()) / truth.std())
    assert [text.get_text() for text in ax.get_yticklabels()] == ["w[1]"]
    assert max(ax.get_xlim()) <= 6.0 and len(ax.get_legend().get_texts()) == 3
    alone = pf.plots.plot_forest(results["near"])
    lines = alone.collections[0].get_segments()
    np.testing.assert_allclose(lines[1][:, 0], np.quantile(near, (0.03, 0.97)))


def test_one_bad_result_among_five_flattens_no_figure():
    results = {"truth": result(0.0), **{name: result(0.1, seed=i) for i, name in enumerate("abc", 1)}}
    usual = pf.plots.plot_forest(results, "truth").get_xlim()
    high = pf.plots.plot_comparison(results, "truth")[0].get_ylim()[1]
    results["bad"] = result(477.0, 0.01, seed=9)
    forest = pf.plots.plot_forest(results, "truth")
    assert forest.get_xlim() == pytest.approx(usual, rel=0.2)
    truth, bad = (results[name].posterior["w"].values[0] for name in ("truth", "bad"))
    away = (bad.mean(0) - truth.mean(0)) / truth.std(0)
    assert [text.get_text() for text in forest.texts] == [f"{one:.3g}" for one in away]
    assert pf.plots.plot_comparison(results, "truth")[0].get_ylim()[1] == pytest.approx(high)


def test_one_bad_client_flattens_no_figure():
    names = [f"University Hospital of the North, ward {i}" for i in range(6)]
    sizes = {name: ("client", np.array([4e3, 1.0, 2.0, 1.5, 1.2, 0.8])) for name in ("influence", "disagreement")}
    found = xr.Dataset({"shift": (("client", "parameter"), np.ones((6, 1))), **sizes})
    _, bars = pf.plots.plot_influence(found.assign_coords(client=names, parameter=["w"]))
    assert bars.get_xlim()[1] < 3 and [text.get_text() for text in bars.texts] == ["4e+03", "4e+03"]
    labels = [text.get_text() for text in bars.figure.axes[0].get_yticklabels()]
    assert len(set(labels)) == 6 and max(map(len, labels)) <= 26


def test_results_of_one_colour_have_different_marks():
    columns = {"mean_error": [0.1] * 9, "bytes_up": [3.3e6] * 9, "bytes_down": [1.0] * 9}
    names = [f"algorithm {number}" for number in range(9)]
    ax = pf.plots.plot_cost(pd.DataFrame(columns, index=names))
    marks = [(line.get_color(), line.get_marker()) for line in ax.lines if line.get_label() in names]
    assert len(set(marks)) == 9 and marks[0][0] == marks[8][0]
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names


def test_pair_shows_the_reference_below_and_says_what_is_outside():
    results = {"truth": result(0.0), "far": result(20.0, seed=2)}
    (ax,) = pf.plots.plot_pair(results, "truth")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("w[0]", "w[1]")
    assert "lie outside: means 20" in ax.texts[0].get_text()
    with pytest.raises(SettingError, match="expected two parameters"):
        pf.plots.plot_pair(results, labels=["w[0]"])


def test_ranks_of_chains_that_agree_are_flat():
    rng = np.random.default_rng(0)
    posterior = xr.Dataset(
        {"w": (("chain", "draw"), np.concatenate([rng.normal(size=(3, 400)), np.full((1, 400), 9.0)]))}
    )
    idata = make_inference_data({"posterior": posterior}, {"draws_are": "chains"})
    ((path, ranks),) = pf.plots.plot_chains(idata)
    assert len(path.lines) == 4 and path.get_title() == "w"
    heights = [patch.get_data().values for patch in ranks.patches]
    np.testing.assert_allclose([values.mean() for values in heights], 1.0)  # 20 bins of a twentieth of the draws each
    np.testing.assert_allclose(heights[3], np.eye(20)[17] * 20)  # 400 equal draws: their mean rank, 1400.5 of 1600
    with pytest.raises(SettingError, match="one whose draws are particles"):
        pf.plots.plot_chains(result(0.0))


def test_cost_is_error_over_all_bytes():
    import pandas as pd

    table = pd.DataFrame(
        {"mean_error": [np.nan, 0.1], "bytes_up": [np.nan, 1e6], "bytes_down": [np.nan, 3e6]}, ["a", "b"]
    )
    ax = pf.plots.plot_cost(table)
    np.testing.assert_allclose(ax.lines[0].get_data(), [[4.0], [0.1]])  # MB
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["b"]
    given = pf.plots.plot_cost(table, ax=plt.subplots()[1])
    given.figure.canvas.draw()  # the legend's marks would be further results among the points
    assert given.get_legend().get_window_extent().y0 >= given.get_window_extent().y1
    with pytest.raises(SettingError, match=r"one without \['ksd'\]"):
        pf.plots.plot_cost(table, "ksd")


def test_entries_go_by_the_labels_of_their_dimension():
    coords = {"hospital": ["Basel", "Bern"], "year": [2024, 2025]}
    values = np.random.default_rng(0).normal(size=(1, 50, 2, 2))
    posterior = xr.Dataset({"level": (("chain", "draw", "hospital", "year"), values)}, coords)
    ax = pf.plots.plot_forest(make_inference_data({"posterior": posterior}, {}))
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["level[Basel, 0]", "level[Basel, 1]", "level[Bern, 0]", "level[Bern, 1]"]
