"""Sums of a function over a client's rows, at posterior draws: the part of an estimand that leaves the rows' place.

`RowSums` is an algorithm of one round, so that it runs on every executor: the client gets draws of the shared
parameters and the name of an estimand, and answers with sums and numbers of rows by group. What is summed, a
`Question`, each side makes from its own copy of the model's file (`ESTIMANDS`): no code travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.analysis.predicting.drawing import draw
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.analysis.predicting.own_rows import ClientRun, client_run, position_among
from pyro_fed.conventions import seeding
from pyro_fed.conventions.names import closest
from pyro_fed.density.forms import JointProblem
from pyro_fed.density.latents.draws import draw_locals
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.rows.labelled import labelled
from pyro_fed.density.running.site_values import mask_of
from pyro_fed.errors import DataError, SettingError, listed
from pyro_fed.ops.small_counts import withheld_cells
from pyro_fed.results.to_arviz import unconstrained_draws

#: A function of one draw's values by site, and of a client's columns by name, to one number a row (n,).
OfRows = Callable[[Mapping[str, Tensor], Mapping[str, Any]], Tensor]
#: The groups of rows: a column whose labels or whole numbers they are, or a column and those of its values.
By = str | Mapping[str, Sequence[Any]]
#: The dimension of clients, if these are the groups, and that of bins of predicted means.
CLIENT, PREDICTED = "client", "predicted"
#: The names of the estimand and of the observed means in the result.
ESTIMAND, OBSERVED = "estimand", "observed"
#: The name in a model's file of its estimands, and what an entry may say: arguments of `pyro_fed.estimand`.
ESTIMANDS, KEYS = "ESTIMANDS", ("f", "do", "by", "site", "fewest", "replicated")
#: The dimension of replicated and observed rows, and its labels.
OF, REPLICATED = "of", ("replicated", "observed")
#: The part of the server's state with the draws, and what stands for the number of rows of a withheld group.
DRAWS, WITHHELD = "draws", -1


class Question(NamedTuple):
    """What is averaged over the rows.

    Args:
        of_rows: f; None for the expected observations of `site`.
        site: the observed site; "" where f alone is averaged.
        settings: values in place of columns' own, one dictionary for each setting.
        by: the column whose labels or whole numbers are the groups, or `PREDICTED`; None for one group.
        groups: those groups that are asked for, or the ends of the bins; None for all that there are.
        fewest: a group of fewer rows at a client is withheld.
        replicated: whether f is of replicated observations and of the observed ones, in place of settings.
    """

    of_rows: OfRows | None
    site: str
    settings: tuple[Mapping[str, Any], ...]
    by: str | None
    groups: tuple[Any, ...] | None
    fewest: int
    replicated: bool = False

    def __repr__(self) -> str:
        """All but `fewest`, which each client chooses; the same text in every process."""
        f = "" if self.of_rows is None else f"f={self.of_rows.__name__}, "
        do = REPLICATED if self.replicated else list(map(dict, self.settings))
        return f"({f}site={self.site!r}, do={do!r}, by={self.by!r}, groups={self.groups!r})"

    @classmethod
    def of(
        cls,
        problem: Problem,
        f: OfRows | None = None,
        do: Mapping[str, Any] | None = None,
        by: By | None = None,
        site: str | None = None,
        fewest: int = 1,
        replicated: bool = False,
    ) -> Question:
        """The question of the arguments of `estimand`; SettingError for names that the model does not have."""
        if fewest < 1:
            raise SettingError(f"estimand: fewest must be at least 1, received {fewest}")
        arguments, levels = problem.arguments, levels_of(do or {})
        for name in levels:
            _check_name(arguments, name, "do")
        groups = None
        if isinstance(by, Mapping):
            if len(by) != 1 or not all(map(len, by.values())):
                raise SettingError(f"estimand: by must be one column with its groups, received {dict(by)!r:.200}")
            ((by, values),) = by.items()
            groups = tuple(values.tolist() if isinstance(values, np.ndarray | Tensor) else values)
        if by == PREDICTED:
            _check_bins(groups, do)
        elif by not in (None, CLIENT):
            _check_name(arguments, str(by), "by")
        settings = tuple(dict(zip(levels, values, strict=True)) for values in product(*levels.values()))
        if replicated and (do or by == PREDICTED):
            raise SettingError(
                "estimand: replicated observations are of the rows as they are: leave do and predicted out"
            )
        f_alone = f is not None and site is None and by != PREDICTED and not replicated
        settings = ({},) * len(REPLICATED) if replicated else settings
        return cls(f, "" if f_alone else _observed(problem, site), settings, by, groups, fewest, replicated)


class ClientSums(NamedTuple):
    """What is used of one client.

    Args:
        sums: S_k by group, (S, settings) each.
        counts: n_k by group.
        withheld: groups of fewer rows than `fewest`, and those without which their numbers of rows would follow.
        ones: rows that are observed to be one by group, if the groups are bins of predicted means.
    """

    sums: dict[Any, Tensor]
    counts: dict[Any, int]
    withheld: list[Any]
    ones: dict[Any, int]


class RowValues(NamedTuple):
    """f (S, settings, n) of a client's rows, the group of each, and what is observed (n,) if groups are bins of f."""

    values: Tensor
    groups: list[Any]
    observed: Tensor | None = None


def row_values(
    question: Question,
    posterior: xr.Dataset,
    hidden: frozenset[str],
    problem: Problem,
    rows: Tensor,
    name: str,
    seed: int = 0,
) -> RowValues | None:
    """f of each row of a client; None if its groups have no rows in the nested plates. DataError unless f is finite."""
    if question.replicated:
        return _replicated_values(question, posterior, hidden, problem, rows, name, seed)
    each: list[Tensor] = []
    observed = kept = None
    for setting in question.settings:
        arguments = _with_values(problem.arguments, setting)
        found = client_run(posterior, hidden, problem, rows, arguments, expected=True)
        if found is None:
            return None
        if question.by == PREDICTED:
            observed, kept = _observed_ones(question, found)
        each.append(_row_values(question, arguments, found, kept))
        if len(each) == 1:  # the groups are those of the rows' own values in every setting
            groups = _groups_of_rows(question, problem, name, found, each[0], kept)
    return RowValues(torch.stack(each, 1), groups, observed)


def client_sums(question: Question, found: RowValues | None) -> ClientSums:
    """A client's sums over its rows, without the groups that are too small."""
    if found is None:
        return ClientSums({}, {}, [], {})
    labels = list(dict.fromkeys(found.groups)) if question.groups is None else list(question.groups)
    masks = [torch.tensor([one == label for one in found.groups], dtype=torch.bool) for label in labels]
    counts = [int(mask.sum()) for mask in masks]
    cells = [[*counts, len(found.groups) - sum(counts)]]
    ones: list[int] = []
    if found.observed is not None:
        ones = [int(found.observed[mask].sum()) for mask in masks]
        cells += [ones, [count - one for count, one in zip(counts, ones, strict=True)]]
    hidden = set[int]().union(*(withheld_cells(one, question.fewest) for one in cells))
    leaving = [i for i, count in enumerate(counts) if count and i not in hidden]
    return ClientSums(
        {labels[i]: found.values[:, :, masks[i]].double().sum(2) for i in leaving},
        {labels[i]: counts[i] for i in leaving},
        [labels[i] for i in sorted(hidden) if i < len(labels) and counts[i]],
        {labels[i]: ones[i] for i in leaving if ones},
    )


@dataclass(frozen=True, kw_only=True)
class RowSums(OneRound):
    """One round in which every client adds up the estimand `name` of its model's file, at draws that it receives."""

    answer_kind: ClassVar[str] = "estimate"
    name: str
    question: Question

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The seed of a client's replications (1,)."""
        return {"seed": replication_seed(generator)[None]} if self.question.replicated else ()

    def download(self, shared: State, clients: Tensor) -> State:
        """The draws of the shared parameters."""
        return super().download(prefixed(DRAWS, within(shared, DRAWS)), clients)

    def reply_like(self, shared: State) -> State:
        """A client's message: sums (S, settings, groups), and numbers of rows (groups,) and of those that are one."""
        count = len(next(iter(within(shared, DRAWS).values()))[0])
        groups = len(self.question.groups or ("",))
        rows = torch.zeros(groups, dtype=torch.int64)
        sums = torch.zeros(count, len(self.question.settings), groups, dtype=torch.float64)
        return {"sums": sums, "rows": rows} | ({"ones": rows.clone()} if self.question.by == PREDICTED else {})

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Each client's sums; a group that it withholds has no sum, and -1 rows."""
        each = []
        for k in range(len(data.num_rows)):
            message = {name: value.clone() for name, value in self.reply_like(shared).items()}
            seed = int(noise["seed"][0, k]) if self.question.replicated else 0
            found = client_sums(self.question, self.values_of(problem, shared, data, k, seed))
            for i, group in enumerate(self.question.groups or ("",)):
                if group in found.counts:
                    message["sums"][:, :, i], message["rows"][i] = found.sums[group], found.counts[group]
                    if "ones" in message:
                        message["ones"][i] = found.ones[group]
                elif group in found.withheld:
                    message["rows"][i] = WITHHELD
            each.append(message)
        return {name: torch.stack([one[name] for one in each]) for name in each[0]}, local, {}

    def cells(self, messages: State) -> dict[str, int]:
        """A client's numbers of rows by group, -1 for one that it withholds."""
        return dict(zip(map(str, self.question.groups or ("all",)), messages["rows"][0].tolist(), strict=True))

    def values_of(
        self, problem: Problem, shared: State, data: ClientData, client: int, seed: int = 0
    ) -> RowValues | None:
        """f of each of a client's rows at the draws that it received, of the model's shared parameters."""
        draws = {name: value[client] for name, value in within(shared, DRAWS).items()}
        known = {**problem.sites, **problem.layout.reported}
        if not set(problem.sites) <= set(draws) <= set(known) or any(
            value.shape[1:] != known[name].shape for name, value in draws.items()
        ):
            raise DataError(f"estimand: the draws are of {listed(draws)}, and the model has {listed(problem.sites)}")
        dims = {name: [f"{name}_dim_{i}" for i in range(value.dim() - 1)] for name, value in draws.items()}
        posterior = xr.Dataset({n: (["chain", "draw", *dims[n]], value[None].numpy()) for n, value in draws.items()})
        rows = data.row_index[client][: int(data.num_rows[client])]
        question = self.question._replace(by=None) if self.question.by == CLIENT else self.question
        whole, hidden = _with_own_groups(posterior, problem), frozenset(problem.layout.local)
        return row_values(question, whole, hidden, problem, rows, "", seed)


def _with_own_groups(posterior: xr.Dataset, problem: Problem) -> xr.Dataset:
    """Draws of shared parameters with those of the latents inside the plate, as `own_effects` draws them by seed 0."""
    if not problem.local_dim:
        return posterior
    theta = unconstrained_draws({"posterior": posterior}, problem)
    local = draw_locals(problem, theta, problem.all_rows, seeding.torch_generator(0, seeding.LOCALS))
    joint = JointProblem.of(problem)
    values = joint.constrain(joint.join(theta, local))
    own = {
        name: (["chain", "draw", *site.dims], values[name][None].numpy()) for name, site in problem.layout.local.items()
    }
    return posterior.assign(own)


def replication_seed(generator: torch.Generator) -> Tensor:
    """The seed () of a client's replications, drawn from its own stream."""
    return torch.randint(2**62, (), generator=generator)


def named_questions(module: Any, problem: Problem, fewest: int = 1) -> dict[str, RowSums]:
    """The estimands that a model's file names, by name; SettingError names an entry that cannot be asked of clients."""
    found = {}
    for name, given in getattr(module, ESTIMANDS, {}).items():
        where = f"{ESTIMANDS}[{name!r}] of the model's file"
        if not (isinstance(name, str) and name.isidentifier()):
            raise SettingError(f"{where}: a name must be letters, digits and underscores")
        if odd := [key for key in given if key not in KEYS]:
            raise SettingError(f"{where} has no {odd[0]!r}; {closest(str(odd[0]), KEYS)}")
        question = Question.of(problem, **given)
        if question.by not in (None, CLIENT) and question.groups is None:
            raise SettingError(f"{where}: say by={{{question.by!r}: [...]}} with the groups, which no site tells")
        found[name] = RowSums(name=name, question=question._replace(fewest=max(fewest, question.fewest)))
    return found


def levels_of(do: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each column that is set."""
    found = {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for name, value in do.items()
    }
    if empty := [name for name, values in found.items() if not values]:
        raise SettingError(f"estimand: do has no value for {listed(empty)}")
    return found


def _check_name(arguments: Arguments, name: str, where: str) -> None:
    known = list(_columns(arguments)) if where == "by" else [column for column, _, _ in arguments.columns]
    if name not in known:
        raise SettingError(f"estimand: {where} names {name!r}, which has no rows in the model; {closest(name, known)}")


def _check_bins(ends: tuple[Any, ...] | None, do: Mapping[str, Any] | None) -> None:
    """Require ends of bins of predicted means, the last one at least 1; and rows with their own values."""
    numbers = ends is not None and all(isinstance(end, int | float) for end in ends)
    if not ends or not numbers or any(not before < after for before, after in pairwise(ends)) or not ends[-1] >= 1:
        raise SettingError(
            f"estimand: by={PREDICTED!r} takes the ends of the bins, ascending to 1, as in by={{{PREDICTED!r}: [0.1, "
            f"0.2, 0.5, 1.0]}}, received {ends!r:.200}"
        )
    if do:
        raise SettingError(f"estimand: by={PREDICTED!r} is about the rows as they were observed: leave do out")


def _columns(arguments: Arguments) -> dict[str, tuple[str | None, Tensor]]:
    """Nested plate (None: the partitioned one) and values of each argument with rows, by name."""
    leaves = dict(zip(arguments.names, arguments.leaves, strict=False))
    owners = {names[0]: (plate, leaves[names[0]]) for plate, names in arguments.nested_by_name.items()}
    return owners | {name: (plate, values) for name, plate, values in arguments.columns}


def _observed(problem: Problem, site: str | None) -> str:
    """The observed site: the named one, or the only one."""
    known = [name for name in problem.layout.observed if name not in problem.layout.factors]
    if site is None and len(known) == 1:
        return known[0]
    if site is None:
        raise SettingError(f"estimand: the model observes {listed(known) or 'no distribution'}: name one by site=")
    if site not in known:
        raise SettingError(f"estimand: the model does not observe {site!r}; {closest(site, known)}")
    return site


def _with_values(arguments: Arguments, setting: Mapping[str, Any]) -> Arguments:
    """The arguments with one value in all rows of some columns; SettingError for an unknown label."""
    leaves = list(arguments.leaves)
    for name, value in setting.items():
        at, labels = arguments.names.index(name), arguments.labels.get(name)
        if labels is None and isinstance(value, str):
            raise SettingError(f"estimand: do sets {name!r}, which is not a column of text, to {value!r}")
        if labels is not None:
            if value not in labels:
                raise SettingError(f"estimand: do sets {name!r} to {value!r}, which is not one of {listed(labels)}")
            value = labels.index(value)
        leaves[at] = torch.full_like(leaves[at], value)
    return replace(arguments, leaves=tuple(leaves))


def _replicated_values(
    question: Question,
    posterior: xr.Dataset,
    hidden: frozenset[str],
    problem: Problem,
    rows: Tensor,
    name: str,
    seed: int,
) -> RowValues | None:
    """f (S, 2, n) of replicated observations and of a client's own, and which are one if all of these are 0 or 1."""
    found, site, generator = client_run(posterior, hidden, problem, rows), question.site, torch.Generator()
    if found is None:
        return None
    drawn = draw(found.run, found.values, generator.manual_seed(seed))[site]
    given, kept = _observations(question, found)
    own = question if question.of_rows is not None else question._replace(of_rows=lambda values, _: values[site])
    each = [
        _row_values(own, problem.arguments, found._replace(values={**found.values, site: one.to(drawn.dtype)}), kept)
        for one in (drawn, given.expand_as(drawn))
    ]
    observed, first = each[1], each[1][0]
    is_share = bool(((observed == 0) | (observed == 1)).all())
    if is_share and question.fewest > 1 and _takes_latents(question, problem.arguments, found, given.to(drawn.dtype)):
        raise DataError(
            "estimand: f of the observed rows is 0 or 1 and takes latents of the draw: its sums at several draws would "
            f"tell single rows, and groups of fewer than {question.fewest} are withheld: let f take '{site}' of the "
            "draw alone, or return other numbers, such as distances from what the draw expects"
        )
    groups = _groups_of_rows(question, problem, name, found, observed, kept)
    return RowValues(torch.stack(each, 1), groups, first == 1 if is_share else None)


def _observations(question: Question, found: ClientRun) -> tuple[Tensor, Tensor | None]:
    """What a client observes at the site, and which rows (n,) the model's mask does not leave out; None for all."""
    site = found.run.first({name: value[0] for name, value in found.values.items()})[question.site]
    given, mask = site["given"], mask_of(site)
    if not isinstance(given, Tensor):
        raise DataError(f"estimand: nothing is observed of '{question.site}' to compare with")
    if mask is None or bool(mask.all()):
        return given, None
    kept = mask.bool().expand(given.shape).reshape(len(given), -1)
    if bool((kept != kept[:, :1]).any()):
        raise DataError(
            f"estimand: a mask leaves out parts of rows of '{question.site}', where whole rows are compared"
        )
    return given, kept[:, 0]


def _takes_latents(question: Question, arguments: Arguments, found: ClientRun, given: Tensor) -> bool:
    """Whether f takes more of a draw than the observations."""
    if question.of_rows is None:
        return False
    try:
        question.of_rows({question.site: given}, _named_rows(arguments, found))
    except KeyError:
        return True
    return False


def _row_values(question: Question, arguments: Arguments, found: ClientRun, kept: Tensor | None = None) -> Tensor:
    """f of each row at each draw (S, n), of those that are kept."""
    values = _values(question, arguments, found)
    if values.dim() != 2:
        what = f"the mean of '{question.site}'" if question.of_rows is None else "f"
        raise DataError(
            f"estimand: {what} must be one number for each row, (n,), received {tuple(values.shape[1:])}: return one "
            "number, "
            "such as the probability of one category"
        )
    if kept is not None:
        if len(kept) != values.shape[1]:
            raise DataError(
                f"estimand: f returns {values.shape[1]} numbers, and '{question.site}' has {len(kept)} rows: return "
                "one for each row"
            )
        values = values[:, kept]
    if not bool(values.isfinite().all()):
        cure = "pass f, such as a probability or a median" if question.of_rows is None else "mend f"
        raise DataError(f"estimand: there are values that are not finite: {cure}")
    return values


def _values(question: Question, arguments: Arguments, found: ClientRun) -> Tensor:
    """f (S, ...) of one client's rows."""
    of_rows, generator = question.of_rows, seeding.torch_generator(0, seeding.DRAWS)
    if of_rows is None:
        return draw(found.run, found.values, generator)[question.site]
    rows = _named_rows(arguments, found)
    return draw(lambda values: {ESTIMAND: torch.as_tensor(of_rows(values, rows))}, found.values, generator)[ESTIMAND]


def _named_rows(arguments: Arguments, found: ClientRun) -> dict[str, Any]:
    """A client's columns by name; those that hold each row's group count the client's own groups from 0."""
    owners = {owner for owner, *_ in arguments.nested_by_name.values()}
    rows: dict[str, Any] = dict(zip(arguments.names, arguments.leaves, strict=False))
    for name, (plate, column) in _columns(arguments).items():
        value = column[found.places[plate or found.plate]]
        if name in owners:
            value = position_among(found.places[found.plate], value)
        elif name in arguments.labels:
            value = labelled(value, arguments.labels[name], name)
        rows[name] = value
    return rows


def _observed_ones(question: Question, found: ClientRun) -> tuple[Tensor, Tensor]:
    """Which of a client's observed rows are one, of zeros and ones, and which rows (n,) are observed."""
    given, kept = _observations(question, found)
    given = given if kept is None else given[kept]
    if given.dim() != 1 or not bool(((given == 0) | (given == 1)).all()):
        raise DataError(
            f"estimand: by={PREDICTED!r} compares means with what is observed of '{question.site}', which must be 0 "
            "or 1, one for each row"
        )
    return given == 1, torch.ones(len(given), dtype=torch.bool) if kept is None else kept


def _groups_of_rows(
    question: Question, problem: Problem, name: str, found: ClientRun, values: Tensor, kept: Tensor | None
) -> list[Any]:
    """The group of each of a client's rows in use, with f (S, n): by their values, or by the mean of f."""
    size, ends = values.shape[1], question.groups
    if question.by == PREDICTED and ends is not None:
        places = torch.searchsorted(torch.tensor(ends, dtype=torch.float64), values.double().mean(0))
        return [ends[min(int(place), len(ends) - 1)] for place in places]
    if question.by in (None, CLIENT):
        return [name if question.by else ""] * size
    plate, column = _columns(problem.arguments)[str(question.by)]
    codes = column[found.places[plate or problem.plate]]
    if kept is not None and len(codes) == len(kept):
        codes = codes[kept]
    if codes.dim() != 1 or (codes.is_floating_point() and bool((codes != codes.round()).any())):
        raise SettingError(f"estimand: by={question.by!r} must be labels or whole numbers, one for each row")
    if len(codes) != size:
        raise DataError(
            f"estimand: {question.by!r} has {len(codes)} rows at a client, and there are {size} numbers to average: "
            "groups must be those of the same plate's rows"
        )
    labels = problem.arguments.labels.get(str(question.by))
    return [labels[int(code)] if labels is not None else int(code) for code in codes]
