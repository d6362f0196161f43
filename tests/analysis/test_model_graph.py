"""Graphs of models: which sites, plates and arrows there are, and what is in the box that stays at the client."""

import builtins
import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.recipes import load_model


def box_of(source):
    """What is between the box's brace and its end."""
    depth, lines = 0, []
    for line in source.partition('subgraph "cluster client')[2].splitlines()[1:]:
        depth += line.endswith("{") - (line == "}")
        if depth < 0:
            return lines
        lines.append(line)
    return []


def sites_of(lines):
    return {found[1] for line in lines if (found := re.match(r'"(.+?)" \[label', line))}


def arrows_of(source):
    return set(re.findall(r'^"(.+?)" -> "(.+?)"$', source, re.MULTILINE))


def hospitals(x, hospital, count, y):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("effects", 2):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("hospitals", count):
        level = pyro.sample("level", dist.Normal(mean, 1.0))
    with pyro.plate("patients", len(x)):
        p = pyro.deterministic("p", level[hospital] + b[0] * x)
        pyro.sample("y", dist.Bernoulli(logits=p), obs=y)


def test_the_plates_of_the_rows_and_all_sites_in_them_are_in_the_box():
    """Labels in whole numbers, as data have them, which torch's densities do not take."""
    args = torch.randn(12), torch.arange(12) % 3, 3, np.arange(12) % 2
    fed = pf.Federation(hospitals, args, plate="hospitals", rows={"patients": "hospital"}, num_clients=3)
    graph = pf.render_model(fed)
    assert sites_of(box_of(graph.source)) == {"level", "y"}
    assert sites_of(graph.source.splitlines()) == {"mean", "b", "level", "y"}
    assert arrows_of(graph.source) == {("mean", "level"), ("level", "y"), ("b", "y")}
    assert r"stays at the client\nrows of x, y" in graph.source
    assert graph.source.count("subgraph") == 4 and 'fillcolor="#c8c8c8"' in next(
        line for line in box_of(graph.source) if line.startswith('"y"')
    )
    shown = pf.render_model(fed, render_distributions=True, render_deterministic=True).source
    assert arrows_of(shown) == {("mean", "level"), ("level", "p"), ("b", "p"), ("p", "y")}
    assert r'"y" [label="y\nBernoulli"' in shown and "filled,dashed" in shown


def outputs(x, y):
    with pyro.plate("outputs", 3):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x[:, None], 1.0), obs=y)


def test_the_box_is_within_a_plate_that_all_clients_share():
    source = pf.render_model(outputs, (torch.randn(12), torch.randn(12, 3)), plate="data").source
    assert sites_of(box_of(source)) == {"y"} and source.index("cluster outputs") < source.index("cluster client")
    assert "stays" not in pf.render_model(outputs, (torch.randn(12), torch.randn(12, 3))).source


@pytest.mark.parametrize("name", ["logistic_regression", "hidden_markov", "varying_slopes", "gaussian_mixture"])
def test_models_of_the_library_are_rendered(name):
    library = load_model(name)
    plates = (library.PLATE, *getattr(library, "ROWS", ()))
    graph = pf.render_model(library.model, library.load_data()[0], plate=plates)
    assert "y" in sites_of(box_of(graph.source))


def test_a_picture_without_graphviz_is_refused_with_the_cure(tmp_path, monkeypatch):
    importing = builtins.__import__

    def without(name, *rest):
        if name == "graphviz":
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    graph = pf.render_model(outputs, (torch.randn(4), torch.randn(4, 3)), plate="data")
    with pytest.raises(pf.errors.SettingError, match=r"needs the package graphviz: pip install 'pyro_fed\[graphviz\]'"):
        graph.save(tmp_path / "model.svg")
    graph.save(tmp_path / "model.dot")
    assert (tmp_path / "model.dot").read_text() == graph.source
    assert graph._repr_mimebundle_() == {"text/plain": graph.source}


def test_wrong_arguments_are_refused():
    fed = pf.Federation(outputs, (torch.randn(12), torch.randn(12, 3)), plate="data", num_clients=2)
    with pytest.raises(pf.errors.SettingError, match="pass it alone"):
        pf.render_model(fed, plate="data")
    with pytest.raises(pf.errors.SettingError, match="no plate 'rows'; it has data, outputs"):
        pf.render_model(outputs, (torch.randn(4), torch.randn(4, 3)), plate="rows")
