"""The peers file, which all agents share: their names, their addresses, and the graph; and an agent's waiting times.

    graph = "ring"                       # a builder of pyro_fed.graph over the agents in this order; or
    links = [["north", "south"], ...]    # the links themselves, with Metropolis weights

    [agents.north]
    address = "north.example.org:7443"

From the graph every agent computes W, the spectral gap (and with it the consensus steps of a round) and the
centralities, without asking the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import networkx as nx
import numpy as np
from scipy.sparse import csgraph

from pyro_fed.conventions.nested_settings import SettingsRepr
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.errors import SettingError, listed
from pyro_fed.graph import FixedGraph, from_networkx
from pyro_fed.recipes.values import resolve_component


@dataclass(frozen=True, kw_only=True)
class LinkSettings(SettingsRepr):
    """An agent's waiting times, in seconds, and the largest message that it accepts.

    Args:
        patience: how long it waits for a neighbour's message before the link counts as failed. It should be longer than
            the slowest agent's local update, with compilation, and than a restart.
        patience_all: how long it waits at the start, in rounds that need every agent (Newton's method over the graph),
            and when no neighbour answers at all. Then the run stops.
        retry_every: time between two attempts to reach a neighbour.
        knock: how long it waits, once a round, for an answer of a neighbour whose link is down; and at the end, to say
            that it leaves.
        max_bytes: the largest message that is accepted. Messages of another size than this run's are refused anyway.

    Raises:
        SettingError: a wait that is not positive, or no whole number of bytes.

    Example:
        >>> LinkSettings(patience=300.0)
        LinkSettings(patience=300.0)
    """

    patience: float = 60.0
    patience_all: float = 600.0
    retry_every: float = 0.2
    knock: float = 1.0
    max_bytes: int = 2**28

    def __post_init__(self) -> None:
        check_positive(self, "patience", "patience_all", "retry_every", "knock")
        check_at_least(self, 1, "max_bytes")


#: Names that can stand in a certificate as a DNS name.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?")
#: Name of the authority's files, beside those of the agents.
AUTHORITY = "ca"


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse agents' names that are not DNS names, are the authority's, or equal another one except for case."""
    names = list(names)
    for name in names:
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{where}: an agent's name has letters, digits and '-' within, 1 to 63 of ASCII, received {name!r:.80}"
            )
        if name.lower() == AUTHORITY:
            raise SettingError(f"{where}: {name!r} is the name of the authority's files; give the agent another name")
    if len({name.lower() for name in names}) < len(names):
        raise SettingError(f"{where}: agents' names must differ by more than case, received {listed(names)}")


#: host:port, or [IPv6]:port.
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+):[0-9]{1,5}")


@dataclass(frozen=True)
class Peers:
    """The agents of a run.

    Args:
        names: the agents' names, in the order of the graph.
        addresses: the address at which each agent listens, "host:port".
        graph: which agents talk to each other, with W.

    Example:
        >>> Peers(("north", "south"), ("10.0.0.1:9000", "10.0.0.2:9000"), pf.graph.complete(2)).number("south")
        1
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    graph: FixedGraph

    def number(self, name: str) -> int:
        """The agent's number in the graph.

        Raises:
            SettingError: there is no such agent.
        """
        if name not in self.names:
            raise SettingError(f"the peers file has no agent {name!r}; it has {listed(self.names)}")
        return self.names.index(name)

    def links(self, agent: int) -> dict[int, float]:
        """An agent's neighbours, by number, and the weights W that it gives to them; without itself."""
        row = self.graph.matrix[[agent], :]
        return {int(j): float(w) for j, w in zip(row.indices, row.data, strict=True) if int(j) != agent}

    @property
    def diameter(self) -> int:
        """The number of steps in which a message from any agent reaches every other."""
        return int(np.max(csgraph.shortest_path(self.graph.matrix, unweighted=True)))

    def described(self) -> str:
        """The part of the file that two agents must have in common, as text: names, and W to the last bit."""
        matrix = self.graph.matrix.tocoo()
        entries = zip(matrix.row.tolist(), matrix.col.tolist(), (w.hex() for w in matrix.data.tolist()), strict=True)
        return json.dumps([list(self.names), sorted(entries)])


def load_peers(path: Path) -> Peers:
    """Read and check a peers file.

    Args:
        path: the TOML file.

    Returns:
        The agents and their graph.

    Raises:
        SettingError: no such file, unknown keys, invalid names or addresses, a graph that is not connected, or one in
            which a failed link would change the weight of data.

    Example:
        >>> load_peers(Path("peers.toml")).names
        ('north', 'east', 'south')
    """
    if not path.is_file():
        raise SettingError(f"--peers {path}: there is no such file; expected a TOML file of the agents")
    content = read_toml(path, "a peers file")
    odd = sorted(set(content) - {"graph", "links", "agents"})
    if odd:
        raise SettingError(
            f"{path}: unknown keys {odd}; expected graph or links, and a table [agents.NAME] for each agent"
        )
    names, addresses = _agents(content.get("agents"), path)
    return Peers(names, addresses, _graph(content, names, path))


def _agents(table: Any, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(table, dict) or len(table) < 2:
        raise SettingError(f"{path}: expected at least two tables [agents.NAME], each with an address")
    check_names(table, str(path))
    for name, entry in table.items():
        if not isinstance(entry, dict) or set(entry) != {"address"} or not isinstance(entry["address"], str):
            raise SettingError(f'{path}: [agents.{name}] has one key, address = "host:port"; received {entry!r:.200}')
        try:
            valid = _ADDRESS.fullmatch(entry["address"]) and urlsplit(f"//{entry['address']}").port is not None
        except ValueError:  # a port that TCP does not have
            valid = False
        if not valid:
            raise SettingError(
                f'{path}: [agents.{name}]: address must be "host:port", such as "10.0.0.1:7443", with a port of at '
                f"most 65535, received {entry['address']!r:.200}"
            )
    addresses = tuple(entry["address"] for entry in table.values())
    if len(set(addresses)) < len(addresses):
        raise SettingError(
            f"{path}: two agents have the same address; each needs its own, received {listed(addresses)}"
        )
    return tuple(table), addresses


def _graph(content: dict[str, Any], names: tuple[str, ...], path: Path) -> FixedGraph:
    if ("graph" in content) == ("links" in content):
        raise SettingError(f'{path}: give either graph, such as graph = "ring", or links, pairs of names')
    if "graph" in content:
        graph = resolve_component("pyro_fed.graph", content["graph"], path, len(names))
    else:
        graph = _from_links(content["links"], names, path)
    if not isinstance(graph, FixedGraph):
        raise SettingError(f'{path}: agents talk over a fixed graph, such as "ring" or links; received {graph!r:.200}')
    if not graph.keeps_centrality:
        raise SettingError(
            f"{path}: the graph's W is not reversible: if an agent failed, data would no longer count once. Take an "
            "undirected graph with Metropolis weights, which links = [...] has"
        )
    graph.check()
    return graph


def _from_links(links: Any, names: tuple[str, ...], path: Path) -> FixedGraph:
    found = nx.Graph()
    found.add_nodes_from(range(len(names)))
    for pair in links if isinstance(links, list) else [links]:
        if not isinstance(pair, list) or len(pair) != 2 or not set(pair) <= set(names) or pair[0] == pair[1]:
            raise SettingError(
                f"{path}: a link is a pair of different agents' names, received {pair!r:.200}; the agents are "
                f"{listed(names)}"
            )
        found.add_edge(names.index(pair[0]), names.index(pair[1]))
    return from_networkx(found)
