"""The executor of a study by files: an exchange is a file for each site, and its answers come days later.

The round loop is the one of every run. It is begun anew by each `combine`, and does the same again, since a run follows
from its seed: exchanges that were answered are answered from the study's folder. At the first exchange whose answers
have not come the loop ends, by `AnswersPending`, with the requests that are to be mailed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.deployment.files.letter import REQUEST, Letter, body_of
from pyro_fed.deployment.files.study import Study
from pyro_fed.deployment.remote.clients import RemoteClients
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.runtime.executors.remote import Request
from pyro_fed.runtime.messages import Header, Message, answer

#: Why a site has no part in an exchange.
MISSING = "had not answered when the study went on without it"


class AnswersPending(BaseException):
    """The round loop needs answers that have not come. It is no `Exception`: no stage of a run counts it as a failure.

    Attributes:
        exchange: the number of the exchange.
        letters: the requests, by site.
        waiting: the sites that have not answered.
    """

    def __init__(self, exchange: int, letters: Mapping[str, Letter], waiting: list[str]) -> None:
        super().__init__(f"exchange {exchange} waits for {', '.join(waiting)}")
        self.exchange, self.letters, self.waiting = exchange, letters, waiting


class Files(RemoteClients):
    """Sites that get their orders and give their answers as files.

    Args:
        study: the study's folder, which has the answers so far.
        first: the number of the run's first exchange.
        copied: algorithms, as `settings_line`, whose sites send their new states with their answers: those from which
            another algorithm starts. None is all.
        go_on: whether the present exchange is closed without the sites that have not answered.
        run: the run's id, of 16 hexadecimal digits, by which sites know whether their states are of this run.
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
        """The sites' answers to an exchange, from the study's folder.

        Raises:
            AnswersPending: some have not come, and the study does not go on without them.
            SettingError: it was to go on without them, and the algorithm needs every site.
        """
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
