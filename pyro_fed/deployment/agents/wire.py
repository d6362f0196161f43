"""gRPC with mutual TLS between an agent and its neighbours: its server, and its requests.

Both ends show a certificate of the run's authority. A caller is identified by its certificate, and must be a neighbour
in the peers file. A server must have the certificate of the agent that is called, whatever its address. Requests are a
few numbers. Answers have the shapes of this agent's own message; they are the encoded messages of `runtime.messages`,
and nothing is unpickled. Generic handlers are used, and no generated code.

    Hello    returns what all agents must have in common, as JSON
    Take     returns the agent's message of a step, as soon as there is one
    Rejoin   for a link that is down: returns the round from which it is up again, and the sum of what has passed over
             it
    Flow     returns the sum of what has passed over a link
    Leave    tells that the caller leaves, and why
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
import torch
from cryptography import x509

from pyro_fed.algorithm.states import State
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.agents.certificates import Identity, dns_names
from pyro_fed.deployment.agents.outbox import At, Farewell, NoMessage, Why
from pyro_fed.deployment.agents.peers import LinkSettings, Peers
from pyro_fed.deployment.agents.statements import Statements
from pyro_fed.deployment.limits import MAX_JSON_BYTES, MAX_REQUEST_BYTES
from pyro_fed.errors import ProtocolError, PyroFedError, SettingError, listed
from pyro_fed.runtime.messages import Header, Message, Spec, answer, decode, encode, spec_of, token
from pyro_fed.runtime.safetensors_header import Entry

LOG = logging.getLogger(__name__)
#: Name of the gRPC service.
SERVICE = "pyro_fed.Agent"
#: How many requests of one neighbour may wait at a time: its present one, and earlier ones that it has given up.
MAX_WAITING_REQUESTS = 3
#: Longest time that a request waits, in seconds, so that one whose caller is gone ends.
MAX_WAIT_SECONDS = 30.0
#: The gRPC status for each reason why there is no message.
CODES = {
    Why.DOWN: grpc.StatusCode.ABORTED,
    Why.ENDED: grpc.StatusCode.OUT_OF_RANGE,
    Why.GONE: grpc.StatusCode.NOT_FOUND,
    Why.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_WHYS = {code: why for why, code in CODES.items()}
#: One step, as it travels.
_AT = Entry((3,), torch.int64)
#: The tensors of each request.
REQUESTS: dict[str, Spec] = {"Take": {"at": _AT}, "Rejoin": {"at": _AT, "last": _AT}, "Flow": {"at": _AT}}


class Unwelcome(PyroFedError):
    """A neighbour does not accept this agent's certificate, or does not have the certificate that it should have.

    Example:
        >>> try:
        ...     idata = run_agent(agent)
        ... except Unwelcome as error:
        ...     print("check both agents' certificates and peers files:", error)
    """


@dataclass(frozen=True)
class Ask:
    """One request to a neighbour: the method, the request's tensors, and the shapes and dtypes of the answer."""

    method: str
    request: State
    expected: Spec


class Wire:
    """An agent's gRPC server, and its channels to its neighbours.

    Args:
        me: the agent's number.
        agreement: what all agents must have in common, name → text; the run's id, `run`, is its digest.
        answer: the answer to "Take", "Rejoin" or "Flow" of a neighbour with the tensors of `REQUESTS`, within seconds;
            NoMessage says why there is none. It is called in the server's threads.
        listen: address at which to listen; by default the one in the peers file.
    """

    def __init__(
        self,
        me: int,
        peers: Peers,
        identity: Identity,
        settings: LinkSettings,
        agreement: Mapping[str, str],
        answer: Callable[[str, int, State, float], State],
        listen: str | None = None,
    ) -> None:
        self.me, self.peers, self.settings, self._answer = me, peers, settings, answer
        self._agreement = json.dumps(agreement)
        self.neighbours = sorted(peers.links(me))
        self.run = hash_tensors([], self._agreement)[:16]
        self.statements = Statements(identity, peers.names, self.run)
        self.failures: dict[int, str] = {}  # the last reason why there was no answer, by neighbour
        self.left: dict[int, Farewell] = {}  # farewells of neighbours that have left and have not come back
        self.agreed: set[int] = set()  # neighbours that are known to run the same
        self._numbers = {peers.names[j]: j for j in self.neighbours}
        self._places = {j: threading.Semaphore(MAX_WAITING_REQUESTS) for j in self.neighbours}
        self._server = self._serve(identity, listen or peers.addresses[me])
        self._channels = {j: self._channel(identity, j) for j in self.neighbours}

    def _serve(self, identity: Identity, address: str) -> Any:
        # The last one tells further callers that too many are waiting.
        at_a_time = MAX_WAITING_REQUESTS * len(self.neighbours) + 1
        server = grpc.server(
            futures.ThreadPoolExecutor(at_a_time, thread_name_prefix="agent"),
            maximum_concurrent_rpcs=at_a_time,
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_send_message_length", self.settings.max_bytes),
                ("grpc.so_reuseport", 0),
            ],
        )
        handlers = {
            "Hello": self._hello,
            "Leave": self._on_farewell,
            **{name: self._handler(name) for name in REQUESTS},
        }
        unary = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, unary),))
        credentials = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)], root_certificates=identity.authority, require_client_auth=True
        )
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            raise SettingError(
                f"agent {identity.name} cannot listen at {address}: the port may be in use, or the address not this "
                "machine's. End the other process, or give another address by listen"
            )
        server.start()
        return server

    def _channel(self, identity: Identity, neighbour: int) -> Any:
        credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
        again = int(1000 * self.settings.retry_every)
        options = [
            ("grpc.ssl_target_name_override", self.peers.names[neighbour]),
            ("grpc.max_receive_message_length", self.settings.max_bytes),
            ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
            ("grpc.initial_reconnect_backoff_ms", again),
            ("grpc.min_reconnect_backoff_ms", again),
            ("grpc.max_reconnect_backoff_ms", 10 * again),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        return grpc.secure_channel(self.peers.addresses[neighbour], credentials, options)

    def close(self) -> None:
        """End the server and the channels."""
        for channel in self._channels.values():
            channel.close()
        self._server.stop(grace=None).wait()

    # -- the server ------------------------------------------------------------------------------------------
    def _hello(self, data: bytes, context: Any) -> bytes:
        self._caller(context)
        return self._agreement.encode()

    def _on_farewell(self, data: bytes, context: Any) -> bytes:
        caller = self._caller(context)
        try:
            farewell = Farewell.decode(data)
        except ProtocolError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort raises
        if caller not in self.agreed or farewell.run == self.run:  # not from another process with that certificate
            self.left[caller] = farewell
        return b""

    def _handler(self, method: str) -> Callable[[bytes, Any], bytes]:
        def handle(data: bytes, context: Any) -> bytes:
            caller = self._caller(context)
            if not self._places[caller].acquire(blocking=False):  # one neighbour must not take all threads
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{MAX_WAITING_REQUESTS} requests of {self.peers.names[caller]} are waiting already",
                )
            try:
                asked = decode(data, REQUESTS[method])
                self._check(asked.header, self.peers.names[caller])
                self.left.pop(caller, None)
                wait = min(MAX_WAIT_SECONDS, context.time_remaining() or 0.0)
                found = self._answer(method, caller, asked.tensors, wait)
            except NoMessage as refused:
                context.abort(CODES[refused.why], str(refused.round))
            except ProtocolError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Exception as error:  # gRPC would send its text, whatever that is
                LOG.error("agent %s could not answer", self.peers.names[self.me], exc_info=error)
                context.abort(grpc.StatusCode.INTERNAL, type(error).__name__)
            finally:
                self._places[caller].release()
            return encode(Message(answer(asked.header), found))

        return handle

    def _caller(self, context: Any) -> int:
        """The neighbour that a caller's certificate names."""
        try:
            (pem,) = context.auth_context()["x509_pem_cert"]
            shown = dns_names(x509.load_pem_x509_certificate(pem))
        except (KeyError, ValueError):
            shown = []
        for name in shown:
            if name in self._numbers:
                return self._numbers[name]
        context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate is for {listed(shown)}, which is no neighbour of {self.peers.names[self.me]}",
        )
        raise AssertionError  # abort raises

    def _check(self, header: Header, caller: str) -> None:
        if header.kind != "ask" or header.client != caller:
            raise ProtocolError(
                f"expected a request (ask) of {caller!r}, the certificate's name, received {header.kind} of "
                f"{header.client!r}"
            )
        if header.run != self.run:
            raise ProtocolError(
                f"the request is of run {header.run}, this is run {self.run}: agents do not run the same"
            )

    # -- the channels ----------------------------------------------------------------------------------------
    def hello(self, neighbour: int, seconds: float) -> dict[str, str]:
        """A neighbour's version of what all agents must have in common, name → text; or NoMessage."""
        call = self._channels[neighbour].unary_unary(f"/{SERVICE}/Hello")
        data = self._until(lambda left: call(b"", timeout=left), neighbour, seconds)
        try:
            if len(data) > MAX_JSON_BYTES:
                raise ValueError(f"{len(data)} bytes, at most {MAX_JSON_BYTES} are accepted")
            found = json.loads(data)
            if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
                raise ValueError(f"expected a JSON object of texts, received {type(found).__name__}")
        except (ValueError, RecursionError) as error:
            raise ProtocolError(
                f"agent {self.peers.names[neighbour]}: its answer to Hello cannot be read: {error!s:.200}"
            ) from error
        return found

    def _until(self, call: Callable[[float], bytes], neighbour: int, seconds: float) -> bytes:
        """Repeat a call until it is answered, a neighbour has left, or the time is over."""
        end = time.monotonic() + seconds
        while True:
            try:
                return call(max(0.01, end - time.monotonic()))
            except grpc.RpcError as error:
                self._judge(error, neighbour)
                if self.left:
                    raise NoMessage(Why.LEFT) from error
                if time.monotonic() + self.settings.retry_every > end:
                    raise NoMessage(Why.LATE) from error
            time.sleep(self.settings.retry_every)

    def once(self, asks: Mapping[int, Ask]) -> dict[int, State | NoMessage]:
        """Ask neighbours that may be absent, each once, and wait for `knock` seconds."""
        return self.ask(asks, self.settings.knock, again=False)

    def ask(
        self, asks: Mapping[int, Ask], seconds: float, again: bool = True, whole: bool = False
    ) -> dict[int, State | NoMessage]:
        """Each neighbour's answer, or why there is none; all are asked at once and, if `again`, for `seconds` anew.

        `whole` says that the answers are useless if one is missing: waiting then ends once a neighbour has left.
        """
        end = time.monotonic() + seconds
        found: dict[int, State | NoMessage] = {}
        waiting = dict(asks)
        while waiting:
            calls = {j: self._call(j, one, end - time.monotonic()) for j, one in waiting.items()}
            for j, (header, call) in calls.items():
                while not self._over(call) and not (whole and not self.left.keys().isdisjoint(waiting)):
                    pass  # a neighbour may leave while another one is waited for
                if not call.done():
                    call.cancel()
                answered = self._answered(j, waiting[j], header, call, over=not again or time.monotonic() >= end)
                if answered is not None:
                    found[j] = answered
                    del waiting[j]
            if whole and any(isinstance(one, NoMessage) and one.why is Why.LEFT for one in found.values()):
                return found | dict.fromkeys(waiting, NoMessage(Why.LATE))
            if waiting:
                time.sleep(self.settings.retry_every)
        return found

    def _over(self, call: Any) -> bool:
        """Whether a call has ended, waiting a moment for it."""
        try:
            call.exception(timeout=self.settings.retry_every)
        except grpc.FutureTimeoutError:
            return False
        except grpc.FutureCancelledError:
            return True
        return True

    def leave(self, farewell: Farewell, neighbours: Iterable[int]) -> None:
        """Tell neighbours that this agent leaves; those that are not reached within `knock` seconds are not told."""
        data, wait = farewell.encode(), self.settings.knock
        calls = [  # wait_for_ready: a channel that has just failed tries again, since its neighbour may be back
            self._channels[j].unary_unary(f"/{SERVICE}/Leave").future(data, timeout=wait, wait_for_ready=True)
            for j in neighbours
        ]
        for call in calls:
            call.exception()

    def _call(self, neighbour: int, one: Ask, seconds: float) -> tuple[Header, Any]:
        header = Header("ask", self.run, 0, self.peers.names[self.me], token())
        stub = self._channels[neighbour].unary_unary(f"/{SERVICE}/{one.method}")
        return header, stub.future(
            encode(Message(header, one.request)), timeout=min(MAX_WAIT_SECONDS, max(0.01, seconds))
        )

    def _answered(self, neighbour: int, one: Ask, header: Header, call: Any, over: bool) -> State | NoMessage | None:
        """A neighbour's answer, or the reason why there is none; None if it has to be asked again."""
        try:
            data = call.result()
        except grpc.FutureCancelledError:
            return NoMessage(Why.LEFT) if neighbour in self.left else None
        except grpc.RpcError as error:
            why = self._judge(error, neighbour)
            if why in (None, Why.LATE):
                if neighbour in self.left:
                    return NoMessage(Why.LEFT)
                return NoMessage(Why.LATE) if over else None
            ended = error.details() or ""
            return NoMessage(why, int(ended) if ended.isdecimal() and len(ended) < 11 else 0)
        message = decode(data, one.expected, finite=False)
        if message.header != answer(header):
            raise Unwelcome(f"agent {self.peers.names[neighbour]} answered another question than the one it was asked")
        return message.tensors

    def _judge(self, error: Any, neighbour: int) -> Why | None:
        """Why there is no answer, None if the neighbour is not reached; Unwelcome if asking again would not help."""
        code, name = error.code(), self.peers.names[neighbour]
        self.failures[neighbour] = f"{code.name.lower()}: {error.details()!s:.300}"
        hopeless = (
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.UNIMPLEMENTED,
        )
        if code in hopeless:
            raise Unwelcome(
                f"agent {name} refuses this one: {error.details()!s:.300}. Compare both agents' certificates, peers "
                "files and versions"
            ) from error
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in (error.details() or ""):
            raise Unwelcome(
                f"agent {name} sent a message above max_bytes={self.settings.max_bytes}: {error.details()!s:.200}. "
                "Raise max_bytes of LinkSettings"
            ) from error
        return _WHYS.get(code)


def with_step(method: str, at: At, expected: State | Spec, **more: At) -> Ask:
    """A request "Take", "Rejoin" or "Flow" about a step; `expected` are the answer's specification or like tensors."""
    spec = {
        name: value if isinstance(value, Entry) else spec_of({name: value})[name] for name, value in expected.items()
    }
    return Ask(method, {"at": at.tensor(), **{name: value.tensor() for name, value in more.items()}}, spec)
