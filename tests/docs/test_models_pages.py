"""Pages of the models: one each, with what the benchmark's table says."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "models").glob("*.py") if path.stem != "__init__")


@pytest.fixture(scope="module")
def pages():
    sys.path.append(str(ROOT / "docs"))
    try:
        import models_pages
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return models_pages


@pytest.fixture(scope="module")
def cells(pages):
    from pyro_fed.analysis.bench.bench import from_values

    return pages.by_model(from_values(json.loads(pages.CELLS.read_text(encoding="utf-8"))).outcomes)


def test_every_model_has_figures_or_says_where_it_is_used(pages, cells):
    assert sorted([*cells, *pages.ELSEWHERE]) == NAMES


@pytest.mark.parametrize("name", ["weibull_survival", "varying_slopes"])
def test_a_page_has_the_figures_of_the_benchmark(pages, cells, name):
    title, text = pages.described(ROOT / "models" / f"{name}.py")
    figure = pages.picture(name, cells[name])
    page = pages.page(name, title, text, figure, cells[name])
    assert page.startswith(f"# {title}\n") and f"../../models/{name}.py" in page and figure in page
    for key, cell in cells[name].items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {pages.ALGORITHMS[key]} |")]
        assert cell.outcome in row and (not cell.answered or f"{cell.scores['sd_low']:.2f} to" in row)
        assert row.count("|") - row.count("\\|") == 8, "text of an answer must not end a cell"
    assert 'aria-label="Means and SDs' in figure


def test_a_model_without_figures_names_where_it_is_used(pages):
    assert "networks.md" in pages.page("convolutional", "A title", "Text.", "", {})
