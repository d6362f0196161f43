"""A model as a graph of its sites, with what stays at the clients in one box.

Pyro finds sites, distributions, plates and dependencies (`pyro.infer.inspect`); the graph is written in the DOT
language, which needs no program. Graphviz draws it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro.infer.inspect import generate_graph_specification, get_model_relations

from pyro_fed.analysis.predicting.drawing import split_plates
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.running.handlers import for_pyro, run_by_pyro
from pyro_fed.errors import DataError, SettingError, listed
from pyro_fed.federation.federation import Federation

#: Colours of observed sites, of the box, and of the box's edge.
OBSERVED, BOX, EDGE = "#c8c8c8", "#e3eefb", "#2f6db5"
#: A font that is as wide in pages as Graphviz takes it to be.
FONT = 'fontname="Helvetica,Arial,sans-serif"'
#: The label of the box.
STAYS = "stays at the client"


@dataclass(frozen=True)
class ModelGraph:
    """A graph of a model; notebooks show it as a picture if Graphviz is installed, else as its source.

    Attributes:
        source: the graph in the DOT language.

    Example:
        >>> print(pf.render_model(fed).source)
    """

    source: str

    def save(self, path: str | Path) -> None:
        """Write the graph to a file: its source as `.dot` or `.gv`, else a picture of the suffix's kind.

        Args:
            path: such as "model.svg", "model.png" or "model.dot".

        Raises:
            SettingError: a picture without Graphviz, or of a kind that it does not draw.
        """
        path = Path(path)
        if path.suffix in (".dot", ".gv"):
            path.write_text(self.source, encoding="utf-8")
        else:
            path.write_bytes(self._drawn(path.suffix.removeprefix(".")))

    def _drawn(self, kind: str) -> bytes:
        try:
            import graphviz
        except ImportError as error:
            raise SettingError(f"a picture of a model needs the package graphviz: {CURE}") from error
        try:
            return bytes(graphviz.Source(self.source).pipe(kind))
        except graphviz.ExecutableNotFound as error:
            raise SettingError(f"a picture of a model needs Graphviz's program dot: {CURE}") from error
        except (ValueError, graphviz.CalledProcessError) as error:
            raise SettingError(f"Graphviz draws no {kind!r}: name the file .svg, .png, .pdf or .dot") from error

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        try:
            return {"image/svg+xml": self._drawn("svg").decode(), "text/plain": self.source}
        except SettingError:
            return {"text/plain": self.source}


CURE = (
    "pip install 'pyro_fed[graphviz]', and the program from https://graphviz.org (`apt install graphviz`, "
    "`brew install graphviz`); `.source` and a file named .dot need neither"
)


@dataclass(frozen=True)
class _Plates:
    """Plates and sites as Pyro's specification of a graph has them, and which plates are split."""

    sites: Mapping[str | None, list[str]]
    parents: Mapping[str, str | None]
    nodes: Mapping[str, Mapping[str, Any]]
    split: Collection[str]
    box: str
    distributions: bool

    def inside(self, parent: str | None) -> Iterator[str]:
        """The lines of all that is directly in a plate, None for the graph itself; split plates are in one box."""
        plates = [plate for plate, above in self.parents.items() if above == parent]
        deeper = {name for plate in plates for name in self.sites[plate]}
        yield from (self.site(name) for name in self.sites.get(parent, ()) if name not in deeper)
        boxed = [plate for plate in plates if self.is_split(plate) and not self.in_box(parent)]
        for plate in plates:
            if plate not in boxed:
                yield from self.plate(plate)
        if boxed:
            yield f"subgraph {_quoted('cluster client ' + '/'.join(boxed))} {{"
            yield f"label={_quoted(self.box)} labeljust=l labelloc=b"
            yield f'style="filled,rounded" fillcolor="{BOX}" color="{EDGE}" fontcolor="{EDGE}"'
            for plate in boxed:
                yield from self.plate(plate)
            yield "}"

    def plate(self, plate: str) -> Iterator[str]:
        """The lines of a plate."""
        yield f"subgraph {_quoted('cluster ' + plate)} {{"
        yield f"label={_quoted(_plain(plate))} labeljust=r labelloc=b style=solid color=black fontcolor=black"
        yield from self.inside(plate)
        yield "}"

    def is_split(self, plate: str) -> bool:
        """Whether the plate's rows lie at clients."""
        return _plain(plate) in self.split

    def in_box(self, plate: str | None) -> bool:
        """Whether the plate is, or is in, one whose rows lie at clients."""
        return plate is not None and (self.is_split(plate) or self.in_box(self.parents[plate]))

    def site(self, name: str) -> str:
        """The line of a site."""
        node = self.nodes[name]
        label = f"{name}\n{node['distribution']}" if self.distributions else name
        style = "filled,dashed" if node["distribution"] == "Deterministic" else "filled"
        colour = OBSERVED if node["is_observed"] and style == "filled" else "white"
        return f'{_quoted(name)} [label={_quoted(label)} style="{style}" fillcolor="{colour}"]'


@checked
@explained(DataError, "render_model: the model cannot be run on these arguments")
def render_model(
    model: Federation | Callable[..., Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    plate: str | Sequence[str] = (),
    filename: str | Path | None = None,
    render_distributions: bool = False,
    render_deterministic: bool = False,
) -> ModelGraph:
    """A graph of the model's sites and plates, with what stays at the client in a box of its own colour.

    As `pyro.render_model`: observed sites are grey, latents white. In the box are the partitioned plate, the plates
    nested in it, and the sites there: data and latents that no message holds. What is outside is shared.

    Args:
        model: a federation, or a Pyro model.
        args: the positional arguments of a Pyro model; a federation has its own.
        kwargs: its keyword arguments.
        plate: the plate of a Pyro model that would be split, or the names of that and of the plates of rows that
            follow it, as `plate` and `rows` of `Federation` name them; by default none, and there is no box.
        filename: a file to write the graph to, see `ModelGraph.save`.
        render_distributions: name each site's distribution.
        render_deterministic: show `pyro.deterministic` sites, dashed.

    Returns:
        The graph. `.source` is its text in the DOT language, `.save("model.svg")` draws it with Graphviz, and
        notebooks show the picture.

    Raises:
        SettingError: arguments beside a federation; a plate that the model does not have; a picture without Graphviz.
        DataError: the model cannot be run on these arguments, or has plates that overlap in a way that Pyro cannot
            draw.

    Example:
        >>> print(pf.render_model(fed, render_distributions=True).source)
        >>> pf.render_model(model, (x, y), plate="data").save("model.dot")
    """
    split: Collection[str] = (plate,) if isinstance(plate, str) else tuple(plate)
    rows, federated = "", isinstance(model, Federation)
    if isinstance(model, Federation):
        if args or kwargs or split:
            raise SettingError("render_model: a federation has its own arguments and plate: pass it alone")
        problem = model.problem
        split, rows = split_plates(problem), ", ".join(name for name, *_ in problem.arguments.columns)
        model, arguments, constants = problem.model, problem.arguments, dict(problem.bound.constants)
    else:
        arguments, constants = flatten(model, args, kwargs), {}
    args, kwargs = arguments.call_arguments()
    with run_by_pyro(arguments.floating_dtype(), constants):
        run = for_pyro(model, constants, incomplete=arguments.incomplete)
        relations = get_model_relations(run, args, kwargs, include_deterministic=render_deterministic)
    if not render_deterministic:
        relations = _without_deterministic(relations)
    try:
        found = generate_graph_specification(relations)
    except NotImplementedError as error:
        raise DataError(f"render_model: {error}") from error
    known = {_plain(one) for one in found["plate_data"]}
    if unknown := [one for one in split if one not in known and not federated]:
        raise SettingError(f"render_model: the model has no plate {unknown[0]!r}; it has {listed(sorted(known))}")
    parents = {name: each["parent"] for name, each in found["plate_data"].items()}
    box = f"{STAYS}\nrows of {rows}" if rows else STAYS
    plates = _Plates(found["plate_groups"], parents, found["node_data"], split, box, render_distributions)
    edges = (f"{_quoted(source)} -> {_quoted(target)}" for source, target in found["edge_list"])
    graph = ModelGraph("\n".join(["digraph model {", FONT, f"node [{FONT}]", *plates.inside(None), *edges, "}", ""]))
    if filename is not None:
        graph.save(filename)
    return graph


def _without_deterministic(relations: Mapping[str, Any]) -> dict[str, Any]:
    """Pyro's relations without deterministic sites, through which its dependencies go already."""
    hidden = {name for name, kind in relations["sample_dist"].items() if kind == "Deterministic"}

    def rest(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: rest(part) for key, part in value.items() if key not in hidden}
        return [part for part in value if part not in hidden] if isinstance(value, list) else value

    return {kind: rest(value) for kind, value in relations.items()}


def _plain(plate: str) -> str:
    """The name of a plate in the model; Pyro draws one that overlaps with another as two."""
    return plate.split("__CLONE")[0]


def _quoted(text: str) -> str:
    """A text in the DOT language."""
    return json.dumps(text, ensure_ascii=False)
