"""The coordinator's side of a study by files: its beginning, each `combine`, and questions about the result.

The round loop is the one of every run. It is begun anew by each `combine`, and does the same again, since a run follows
from its seed: exchanges that were answered are answered from the study's folder. At the first exchange whose answers
have not come the loop ends, by `AnswersPending`, with the requests that are to be mailed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.conventions.output import write_result
from pyro_fed.density.compiling.process import with_known_structure
from pyro_fed.deployment.files.letter import REQUEST, Letter, body_of, write_json
from pyro_fed.deployment.files.study import REVIEW, STOPPED, Study, make_study
from pyro_fed.deployment.files.words import needs_words, needs_words_of
from pyro_fed.deployment.remote.clients import RemoteClients, algorithm_and_options, run_at_clients
from pyro_fed.deployment.remote.questions import (
    ABOUT_CLIENTS,
    ESTIMAND,
    INFLUENCE,
    LEFT_OUT,
    LOO,
    check_questions,
    with_answer,
)
from pyro_fed.deployment.remote.remote_federation import Description, RemoteFederation
from pyro_fed.deployment.rows import load_rows
from pyro_fed.errors import CheckpointError, ProtocolError, SettingError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.policy import Setup, chain_of, resolve_for_run, stages_of
from pyro_fed.recipes import recipe as recipes
from pyro_fed.recipes.library import labels_in, load_model
from pyro_fed.results.inference_data import InferenceData, check_savable
from pyro_fed.runtime.executors.remote import Request
from pyro_fed.runtime.messages import Header, Message, answer
from pyro_fed.runtime.run import check_numbers
from pyro_fed.runtime.start import is_result, read_start, require_sites

#: Why a site has no part in an exchange.
MISSING = "had not answered when the study went on without it"


class AnswersPending(BaseException):
    """The round loop needs answers that have not come. No `Exception`: no stage of a run counts it as a failure."""

    def __init__(self, exchange: int, letters: Mapping[str, Letter], waiting: list[str]) -> None:
        super().__init__(f"exchange {exchange} waits for {', '.join(waiting)}")
        self.exchange, self.letters, self.waiting = exchange, letters, waiting


class Files(RemoteClients):
    """Sites that get their orders and give their answers as files.

    `first` is the number of the run's first exchange. `copied` are the algorithms (as `settings_line`; None is all)
    from which another starts, whose sites send their new states. By the id `run` sites know their states.
    """

    def __init__(self, study: Study, first: int, copied: frozenset[str] | None, go_on: bool, run: str) -> None:
        super().__init__()
        self.study, self.copied, self.go_on, self._next, self._run = study, copied, go_on, first, run

    @property
    def names(self) -> list[str]:
        """The sites' names."""
        return self.study.sites

    def prepare(self) -> None:
        """Begin a phase; sites send copies of their states if another algorithm starts from them."""
        super().prepare()
        self.copies = self.copied is None or settings_line(self.algorithm) in self.copied

    def accept(self, header: Header) -> None:
        """Require the header of the answer to the present request."""
        if header != self._awaited:
            raise ProtocolError(f"it answers another request: round {header.round} of client {header.client}")

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """The sites' answers to an exchange, from the study's folder; AnswersPending if some have not come."""
        number, self._next = self._next, self._next + 1
        headers = {client: self._header(client, number, request) for client, request in requests.items()}
        letters = {
            self.names[client]: self._letter(client, number, request, headers[client])
            for client, request in requests.items()
        }
        self.study.check_again(number, letters)
        answers: dict[int, Any] = {}
        for client, request in requests.items():
            found = self.study.answer_to(number, self.names[client])
            if found is None:
                continue
            self._awaited = answer(headers[client])
            try:
                answers[client] = self.decoded(client, request, found.letter.body)
            except ProtocolError as error:
                self.study.refuse(found, number, f"it is no answer to its request: {error}")
        waiting = [self.names[client] for client in requests if client not in answers]
        if waiting and not self.study.is_closed(number):
            if not self.go_on or len(waiting) == len(requests):
                raise AnswersPending(number, letters, waiting)
            if self.algorithm.needs_all:
                raise SettingError(
                    f"exchange {number} cannot go on without {', '.join(waiting)}: {type(self.algorithm).__name__} "
                    "needs every site. Wait for the answers, or begin a new study without these sites"
                )
            self.go_on = False  # of this exchange alone
        self.study.close(number, [self.names[client] for client in answers])
        return {client: answers.get(client, MISSING) for client in requests}

    def _header(self, client: int, number: int, request: Request) -> Header:
        """The header of a request's message, the same whenever the request is made again."""
        name = self.names[client]
        nonce = hashlib.sha256(f"{self.study.id} {number} {name}".encode()).hexdigest()[:16]
        return Header(self.kind(request), self._run, self.number(request), name, nonce)

    def _letter(self, client: int, number: int, request: Request, header: Header) -> Letter:
        order = self.order(client, request).to_record()
        body = body_of(Message(header, self.tensors(request)))
        return Letter(REQUEST, self.study.id, self.names[client], number, {"order": order}, body)


@dataclass(frozen=True)
class Combined:
    """What a `combine` has come to.

    Attributes:
        answers_taken: a sentence on each answer that was taken.
        refused: a sentence on each that was not.
        exchange: the number of the exchange that is waited for; -1 at the end.
        waiting: the sites whose answers are waited for.
        requests: the files that are to be mailed to them.
        needs: how many exchanges there are in all, once the descriptions are here; "" before.
        result: the result's file, at the end.
        findings: the warnings about the result.
    """

    answers_taken: list[str]
    refused: list[str]
    exchange: int = -1
    waiting: list[str] = field(default_factory=list)
    requests: list[Path] = field(default_factory=list)
    needs: str = ""
    result: Path | None = None
    findings: list[str] = field(default_factory=list)


def init_study(
    folder: Path,
    model: str | Path,
    recipe: str | Path,
    sites: Sequence[str],
    *,
    name: str | None = None,
    seed: int = 0,
    num_rounds: int | None = None,
    num_draws: int | None = None,
    min_clients: int | None = None,
    audit: bool = True,
    compile: str = "off",
    template: Path | None = None,
    start: Path | None = None,
) -> Study:
    """Begin a study: a folder with a key, the model, the recipe, and the requests of exchange 0 in `outbox/`.

    Args:
        folder: a new folder.
        model: the model's file, or its name in the library. The sites get its text.
        recipe: the recipe's file, or its name in the library.
        sites: the sites' names; they are numbered in this order.
        name: the study's name; by default that of the folder.
        seed: the only source of randomness, as of `pyro_fed.run`.
        num_rounds: rounds, in place of the recipe's.
        num_draws: number of draws.
        min_clients: the number of answers without which a round is not applied.
        audit: whether one more exchange checks the result.
        compile: level of the compiler; "off" gives the simulation's draws to the bit.
        template: a file as of `deployment.rows` with one made-up row, if a row of ones does not suit the model.
        start: the result of an earlier study of the same model, from whose sites this one begins, as `start` of
            `pyro_fed.run`. Sites may have new rows, and may have joined or left.

    Raises:
        SettingError: the folder exists; a setting out of its range; a recipe that cannot run so.
        CheckpointError: `start` is no file of a result, or has no sites.

    Example:
        >>> study = init_study(Path("trial"), "logistic_regression", "files", ["north", "south"])
    """
    chosen = recipes.load(recipe)
    module = load_model(model, with_data=False)
    algorithm = chosen.build()
    asked = {"num_rounds": num_rounds, "num_draws": num_draws, "min_clients": min_clients}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    options |= {"seed": seed, "audit": audit, "compile": compile}
    check_numbers(num_rounds or 1, num_draws or 1, seed, min_clients, len(sites), 1)
    if isinstance(algorithm, Algorithm) and algorithm.pooled:
        raise SettingError(
            f"{type(algorithm).__name__} needs all rows in one place, but in a study they stay at the sites"
        )
    own = chosen.run_options(len(sites))
    rounds = own.get("num_rounds") if num_rounds is None else num_rounds
    needs = needs_words(algorithm, rounds, len(sites), audit)
    if template is not None:
        rows = load_rows(template, module.model, module, {}, option="--template")
        nested = getattr(module, "ROWS", None)
        like = Federation.from_clients(module.model, {sites[0]: rows}, plate=module.PLATE, rows=nested).problem
        needs = needs_words_of(algorithm, rounds, len(sites), audit, like, own.get("graph"))
    if start is not None:
        earlier = read_start(start)
        if not is_result(earlier):
            raise CheckpointError(f"{start} is no file: --start takes the result.nc of an earlier study")
        require_sites(algorithm, earlier)
    files = {"template": template, "start": start}
    return make_study(folder, model, recipe, sites, name=name, options=options, files=files, needs=needs)


def combine(folder: Path, answers: Sequence[Path] = (), *, go_on: bool = False) -> Combined:
    """Take the answers that came, and go on as far as they reach: to the next requests, or the result.

    The run is repeated from its seed up to the present exchange. It costs the server's work alone: the sites' answers
    are in the study's folder. Answers that cannot be used are refused by name, and those that can are kept all the
    same.

    Args:
        folder: the study's folder.
        answers: files that the sites have sent; those that are here already may be among them.
        go_on: close the present exchange without the sites that have not answered.

    Raises:
        SettingError: it cannot go on without them; or the folder is of other versions.
        StoppedError: as of `pyro_fed.run`; the result until then is in the folder, if there is one.

    Example:
        >>> combined = combine(Path("trial"), [Path("answer-north-000.study"), Path("answer-south-000.study")])
    """
    with Study.opened(folder) as study:
        answers_taken, refused = _take_answers(study, answers)
        if study.result.exists():
            return _ask(study, answers_taken, refused, go_on)
        silent = [site for site in study.sites if study.answer_to(0, site) is None]
        if silent:
            if go_on:
                raise SettingError(
                    f"without the description of {', '.join(silent)} its rows are unknown: begin a study without it"
                )
            return Combined(answers_taken, refused, 0, silent, study.ask(0, study.first_letters()))
        study.close(0, study.sites)
        try:
            made = _Run(study)
            found, notes = made.result(go_on)
        except AnswersPending as pending:
            study.commit()
            return _waits(study, pending, answers_taken, refused, made.needs)
        _finish(study, found)
        return Combined(answers_taken, refused + study.refusals, needs=made.needs, result=study.result, findings=notes)


def ask_sites(folder: Path, name: str) -> Combined:
    """Ask about the result in one more exchange, whose answers `combine` takes.

    Args:
        folder: the study's folder, with a result.
        name: an estimand in `ESTIMANDS` of the model's file; "loo" for leave-one-out and WAIC; "influence"; or
            "leave_one_client_out", how well the others predict each site.

    Returns:
        The requests. Once the answers are combined, `result.nc` has the group `estimand_NAME`, or one of that name.

    Raises:
        SettingError: there is no result yet, a question is open, or the model's file names no such estimand; or the
            result has the answer without asking.

    Example:
        >>> ask_sites(Path("trial"), "risk").requests
    """
    with Study.opened(folder) as study:
        if not study.result.exists():
            raise SettingError(f"{folder} has no result yet: combine the answers first")
        if study.open_question is not None:
            raise SettingError(f"{folder} waits for the answers to {study.open_question[0]!r}: combine these first")
        federation, module = _federation_of(study)
        check_questions(federation, module, [] if name in ABOUT_CLIENTS else [name], "" if name == LOO else None)
        _check_needs_asking(study, name)
        if name not in study.questions:
            study.add_question(name)
        return _ask(study, [], [], False)


def _check_needs_asking(study: Study, name: str) -> None:
    """Refuse what the sites' Gaussian sites in the result answer, or cannot answer without them."""
    import arviz

    if name in (INFLUENCE, LEFT_OUT):
        has_sites = "sites" in arviz.from_netcdf(str(study.result))
        if name == INFLUENCE and has_sites:
            raise SettingError(
                f"{study.folder} needs no exchange for the influence of its sites: "
                f"pf.influence(arviz.from_netcdf({str(study.result)!r})) has it"
            )
        if name == LEFT_OUT and not has_sites:
            raise SettingError(
                f"{study.folder}: {LEFT_OUT} draws around the Gaussians that sites' messages stand for, and this "
                "recipe leaves none: use files, fedep or fedlaplace"
            )


def _ask(study: Study, answers_taken: list[str], refused: list[str], go_on: bool) -> Combined:
    """Take the present question about the result as far as its answers reach."""
    import arviz

    if study.open_question is None:
        if not (study.folder / REVIEW).exists():  # a command was killed before it
            write_json(study.folder / REVIEW, study.review())
        return Combined(answers_taken, refused, result=study.result)
    name, number = study.open_question
    federation, module = _federation_of(study)
    run = hashlib.sha256(f"{study.id} {number}".encode()).hexdigest()[: len(study.id)]
    executor, before = Files(study, number, frozenset(), go_on, run), arviz.from_netcdf(str(study.result)).load()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = with_answer(before, federation, executor, module, name)
        except AnswersPending as pending:
            return _waits(study, pending, answers_taken, refused)
    why = [str(found.attrs[f"no_{group}"]) for group in (name, f"{ESTIMAND}{name}") if f"no_{group}" in found.attrs]
    if why:
        raise SettingError(f"{name!r} has no answer: {why[0]}")
    _finish(study, found)
    notes = [str(one.message) for one in caught]
    return Combined(answers_taken, refused + study.refusals, result=study.result, findings=notes)


def _waits(
    study: Study, pending: AnswersPending, answers_taken: list[str], refused: list[str], needs: str = ""
) -> Combined:
    """What a `combine` has come to that waits for answers, once their requests are written."""
    requests = study.ask(pending.exchange, pending.letters)
    waiting = [path for site, path in zip(pending.letters, requests, strict=True) if site in pending.waiting]
    return Combined(answers_taken, refused + study.refusals, pending.exchange, pending.waiting, waiting, needs)


def _take_answers(study: Study, answers: Sequence[Path]) -> tuple[list[str], list[str]]:
    answers_taken, refused = [], []
    for path in answers:
        try:
            answers_taken.append(study.take(path))
        except ProtocolError as error:
            refused.append(str(error))
    return answers_taken, refused


def _federation_of(study: Study) -> tuple[RemoteFederation, ModuleType]:
    """The federation of the sites' descriptions, in the order of their numbers, and the model's module."""
    module = load_model(study.model, with_data=False)
    rows = study.template
    template = None if rows is None else load_rows(rows, module.model, module, {}, option="--template")
    found = []
    for site in study.sites:
        answer = study.answer_to(0, site)
        more = {} if answer is None else answer.letter.more
        found.append(Description.from_record({"description": json.dumps(more.get("description"))}))
        if found[-1].name != site:
            raise ProtocolError(f"the description of {site} says that it is of {found[-1].name}")
    return RemoteFederation(module.model, module.PLATE, found, template, **labels_in(module)), module


class _Run:
    """The study's run, repeated from its seed, until an answer is missing or there is a result."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.federation, _ = _federation_of(study)
        check_savable(self.federation.problem)
        self.problem = with_known_structure(self.federation.problem, "off")
        chosen, self.num_sites = recipes.load(study.recipe), self.federation.num_clients
        self.algorithm, self.options = algorithm_and_options(
            chosen, study.content["options"], self.num_sites, "--rounds"
        )
        self.graph, rounds = self.options.get("graph"), self.options.get("num_rounds")
        audit = bool(self.options.get("audit", True))
        self.needs = needs_words_of(self.algorithm, rounds, self.num_sites, audit, self.problem, self.graph)

    def result(self, go_on: bool) -> tuple[InferenceData, list[str]]:
        """The result and the warnings about it. What a run had found that ends without one is written to the folder."""
        first = 1  # exchange 0 has the descriptions
        executor = Files(self.study, first, self._source_algorithms(), go_on, self.study.id)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                options = {"progress": False, "start": self.study.start, **self.options}
                found = run_at_clients(self.algorithm, self.federation, executor, options)
            except StoppedError as error:
                if error.result is not None:
                    write_result(error.result, self.study.folder / STOPPED)
                raise
        return found, [str(one.message) for one in caught]

    def _source_algorithms(self) -> frozenset[str] | None:
        """The algorithms from whose sites' states another starts, as `settings_line`; None is all."""
        if isinstance(self.algorithm, Plan):
            return None
        (stage,) = stages_of(self.algorithm, self.problem, self.graph)
        first = resolve_for_run(stage.algorithm, self.problem, Setup(self.graph)).algorithm
        return frozenset(settings_line(part) for part in chain_of(first, self.problem)[:-1])


def _finish(study: Study, result: InferenceData) -> None:
    """Write the result, close its exchange, and write what a reviewer asks."""
    write_result(result, study.result)
    study.commit()
    write_json(study.folder / REVIEW, study.review())
