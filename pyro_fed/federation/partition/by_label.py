"""Partitions by labels: `Dirichlet`, `LabelShards`, `MajorityShare` skew their mix, `FeatureSkew` a feature in each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from pyro_fed.federation.partition.base import ByValue, check_alpha, deal, dirichlet


@dataclass(frozen=True, eq=False)
class Dirichlet(ByValue):
    """Label skew: the rows of each label go to the clients in shares ~ Dirichlet(alpha, ..., alpha).

    A client may end without rows, the more easily the smaller alpha is.

    Args:
        alpha: concentration, > 0. Small: a label sits at few clients. Large: every client has the
            pooled mix of labels.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `alpha` out of its range; labels that are missing or not one a row.

    Source: Yurochkin et al., Bayesian nonparametric federated learning of neural networks (2019).

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.Dirichlet(0.3, by=y))
    """

    alpha: float
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_alpha(self, self.alpha)
        self._freeze_by()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        weights = [dirichlet(self, self.alpha, num_clients, rng) for _ in per_label]
        return deal(per_label, weights, rng)


@dataclass(frozen=True, eq=False)
class LabelShards(ByValue):
    """Each client holds rows of `classes_per_client` labels, and of no other.

    The clients choose in turn, each the labels with the fewest holders so far (ties at random); a
    label's rows are then dealt out evenly to its holders. A label with fewer rows than holders leaves
    some of them without it. Unlike shards cut from sorted rows, none straddles two labels.

    Args:
        classes_per_client: labels a client holds, at least 1.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `classes_per_client` is more than the labels, or so few that the clients cannot hold all of them.

    Source: the "pathological" split of McMahan et al. (2017), in the form "each client owns only three
    types" of Yang, Liu and Kassab, Client selection for federated Bayesian learning, Section IV-A.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=10, partition=pf.partition.LabelShards(2, by=y))
    """

    classes_per_client: int
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.classes_per_client, int | np.integer) or self.classes_per_client < 1:
            raise self.error(
                f"classes_per_client is {self.classes_per_client!r}, expected a whole number of at least 1"
            )
        self._freeze_by()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        holders = self._holders(len(per_label), num_clients, rng)
        return deal(per_label, [h / h.sum() for h in holders], rng)

    def _holders(self, num_labels: int, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """(labels, clients) matrix of ones where the client holds the label."""
        if self.classes_per_client > num_labels:
            raise self.error(
                f"classes_per_client is {self.classes_per_client}, but the data have {num_labels} labels; "
                f"take at most {num_labels}"
            )
        if self.classes_per_client * num_clients < num_labels:
            least = math.ceil(num_labels / num_clients)
            raise self.error(
                f"{num_clients} clients of {self.classes_per_client} classes cannot hold "
                f"{num_labels} labels; raise classes_per_client to at least {least} or add clients"
            )
        holders = np.zeros((num_labels, num_clients))
        for client in range(num_clients):
            least_held = np.lexsort((rng.random(num_labels), holders.sum(axis=1)))
            holders[least_held[: self.classes_per_client], client] = 1.0
        return holders


@dataclass(frozen=True, eq=False)
class MajorityShare(ByValue):
    """Label skew of a set strength: a part `share` of every label goes to the clients at home with it.

    Labels in ascending order are dealt out to the clients in turn (client k is at home with label
    k mod C when there are at least as many clients as labels C; otherwise label c is at home with client
    c mod K). Each label's home clients share `share` of its rows evenly; all others share the rest evenly.

    Two labels, four clients, share 0.8: "each agent stores 40% of one label and 10% of the other"
    (Kassab and Simeone, DSVGD, Section 7). Two equally frequent labels and share 0.9 give every client
    "the ratio 1:9" (Yang, Liu and Kassab, Section IV-A); where labels are not equally frequent, a client's
    ratio is 1:9 times that of the labels' frequencies.

    Args:
        share: part of a label's rows that stays at home, in [0, 1].
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: `share` out of its range; labels that are missing or not one a row.

    Example:
        >>> pf.Federation(model, (x, y), plate="data", num_clients=4, partition=pf.partition.MajorityShare(0.8, by=y))
    """

    share: float
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.share, Real) or not 0 <= float(self.share) <= 1:
            raise self.error(f"share is {self.share!r}, expected a number in [0, 1]")
        self._freeze_by()

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        per_label = self.rows_by_label(num_rows, labels)
        cycle = min(len(per_label), num_clients)
        homes = [np.arange(num_clients) % cycle == label % cycle for label in range(len(per_label))]
        return deal(per_label, [self._weights(home) for home in homes], rng)

    def _weights(self, home: np.ndarray) -> np.ndarray:
        if home.all():
            return np.full(len(home), 1 / len(home))
        weights: np.ndarray = np.where(home, self.share / home.sum(), (1 - self.share) / (~home).sum())
        return weights


@dataclass(frozen=True, eq=False)
class FeatureSkew(ByValue):
    """Same labels, different features: within each label the rows sorted by a feature are cut into equal blocks.

    Every client has the pooled mix of labels, up to a row a label, and its own range of the feature: writers whose
    digits look different, hospitals whose patients differ in age. Ties are in row order.

    Args:
        feature: value that differs between clients, one a row.
        by: labels, one a row; None takes those handed to `split`.

    Raises:
        SettingError: a feature or labels that are not one value a row.

    Source: the third kind of non-IID data of Wang et al., Peer-to-peer variational federated learning over arbitrary
    graphs, Definition 2; "concept drift (same label, different features)" of Kairouz et al. (2021), Section 3.1.

    Example:
        >>> skewed = pf.partition.FeatureSkew(feature=x[:, 0], by=y)
        >>> pf.Federation(model, (x, y), plate="data", num_clients=5, partition=skewed)
    """

    feature: Any = field(repr=False)
    by: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._freeze_by()
        values = self._freeze("feature")
        if values.dtype.kind not in "biuf" or not np.isfinite(values.astype(float)).all():
            raise self.error(f"feature must be one finite number a row, received {values.dtype} values")

    def dealt_by(self, num_rows: int, labels: Any = None) -> np.ndarray | None:
        """The feature, since every client has the pooled mix of labels."""
        return np.asarray(self.feature)

    def assign(self, num_rows: int, num_clients: int, rng: np.random.Generator, labels: Any) -> list[np.ndarray]:
        if len(self.feature) != num_rows:
            raise self.error(f"feature has {len(self.feature)} values for {num_rows} rows")
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        for rows in self.rows_by_label(num_rows, labels):
            ordered = rows[np.argsort(self.feature[rows], kind="stable")]
            for mine, block in zip(parts, np.array_split(ordered, num_clients), strict=True):
                mine.append(block)
        return [np.concatenate(mine) for mine in parts]
