"""The arguments of an adapter: an ordinary Pyro model, and the clients' data as arguments of that model.

An adapter is a Python file that exposes::

    def run(model, clients):          # → InferenceData, or draws (chain, draw, *shape) by site
        for args in clients:          # a client's arguments: model(*args)
            ...
        return clients.result({"w": draws}, draws_are="chains", rounds=1, bytes_sent=8 * draws.size)

An adapter needs nothing else of this package. `clients.pooled` are the arguments for all rows together, for methods
that work on pooled data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from pyro.distributions import ImproperUniform
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import make_result

if TYPE_CHECKING:
    from pyro_fed.results.inference_data import InferenceData

#: Kinds of draws, as in the attribute `draws_are` of a result.
KINDS = ("independent", "particles", "chains", "agents", "point")


class Clients(Sequence[tuple[Any, ...]]):
    """The clients' data: a sequence with a tuple of the model's arguments for each client.

    Args:
        federation: the federation of these clients.
        pooled: the model's arguments for all rows.
        seed: seed of all randomness; Pyro and torch have been seeded with it.
        num_draws: number of draws that the adapter should return.

    Attributes:
        plate: name of the plate over the rows.
        row_counts: number of rows of each client.
    """

    def __init__(self, federation: Federation, pooled: tuple[Any, ...], seed: int, num_draws: int) -> None:
        self._each = [federation.client_args(client)[0] for client in range(federation.num_clients)]
        self.pooled, self.plate = pooled, federation.problem.plate
        self.seed, self.num_draws = seed, num_draws
        self.row_counts = [int(count) for count in federation.row_counts]

    def __len__(self) -> int:
        return len(self._each)

    def __getitem__(self, client: Any) -> Any:
        return self._each[client]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._each)

    def result(
        self,
        draws: Mapping[str, Any],
        *,
        draws_are: str = "chains",
        rounds: int | None = None,
        bytes_sent: float | None = None,
        doubts: Sequence[str] = (),
        settings: str = "",
    ) -> InferenceData:
        """Make a result of draws.

        Args:
            draws: by site, an array or tensor `(chain, draw, *shape)`.
            draws_are: "chains", "independent" (draws of a density), "particles", "agents" or "point".
            rounds: number of rounds of communication; None if the data were pooled.
            bytes_sent: bytes of all clients in both directions; None if the data were pooled.
            doubts: sentences by which the method doubts its own answer.
            settings: the method's settings, in a line.

        Raises:
            SettingError: `draws_are` is something else.

        Example:
            >>> clients.result({"w": mcmc.get_samples(group_by_chain=True)["w"]}, rounds=None)
        """
        if draws_are not in KINDS:
            raise SettingError(f"draws_are must be one of {KINDS}, received {draws_are!r}")
        spent = {"rounds": rounds, "bytes": bytes_sent}
        attrs: dict[str, Any] = {"draws_are": draws_are, "doubts": "\n".join(doubts), "settings": settings}
        attrs |= {name: value for name, value in spent.items() if value is not None}
        result: InferenceData = make_result({"posterior": dataset(draws)}, attrs)
        return result


def dataset(draws: Mapping[str, Any]) -> xr.Dataset:
    """Draws (chain, draw, *shape) by site as a dataset."""
    arrays = {name: np.asarray(value.detach() if isinstance(value, Tensor) else value) for name, value in draws.items()}
    dims = {
        name: ("chain", "draw", *(f"{name}_dim_{i}" for i in range(value.ndim - 2))) for name, value in arrays.items()
    }
    return xr.Dataset({name: (dims[name], value) for name, value in arrays.items()})


class _Startable(ImproperUniform):
    """An improper prior whose `sample` returns a fixed value, zero on the unconstrained scale."""

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        made: Any = _Startable
        return made(self.support, torch.Size(batch_shape), self.event_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        transform = biject_to(self.support)
        value: Tensor = transform(torch.zeros(transform.inverse_shape(shape)))
        return value


class _StartsAnywhere(Messenger):
    """Replaces improper priors by priors that can be drawn from: Pyro's algorithms draw once for shapes and a start."""

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if type(fn) is ImproperUniform:
            made: Any = _Startable
            msg["fn"] = made(fn.support, fn.batch_shape, fn.event_shape)


def startable_clients(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, whose improper priors give a fixed value where Pyro draws once for a start; the same density."""

    def started(*args: Any) -> Any:
        with _StartsAnywhere():
            return model(*args)

    return started
