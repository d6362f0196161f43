"""Flower's ClientApp, and the mod through which every reply of a client leaves: answers, masked numbers and errors.

Its work is done by `site`, which is imported with the first message: torch takes seconds. Where the node's
configuration has `policy`, the path of the site's own `policy.toml`, each reply passes the site's gate: it is judged by
the bytes that leave. The approval is checked before the app's model is imported. Without a policy all replies leave.

An exception's text may have values of rows in it, whoever wrote it. So the server gets the client's name, the class,
and file and line of the user's code; the text goes to the client's own log. Refusals of an order and by the site's
rules say nothing of rows, and are sent whole.
"""

from __future__ import annotations

import hashlib
import logging
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from pyro_fed.deployment.flower.masks import MASKED, PROTOCOL, asks_for_a_sum, sums_mod
from pyro_fed.deployment.flower.wire import KEPT, MESSAGE, POLICY_KEY, SETTINGS, client_name
from pyro_fed.errors import OURS, PolicyError, ProtocolError

if TYPE_CHECKING:
    from pyro_fed.deployment.flower.site import Site
    from pyro_fed.deployment.policy.gate import Gate, Outgoing
    from pyro_fed.deployment.remote.site import LoadRows

LOG = logging.getLogger("flwr")
#: Where installed packages are, whose lines are not the user's.
INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
#: The packages whose refusals are sent whole.
ROOM = f"{OURS}.deployment."


def reason_of(error: BaseException, name: str, error_text: bool = False) -> str:
    """What the server is told of an exception; its text too if the site's rules let `error_text` out."""
    where = place_of(error)
    LOG.error("Client %s failed at %s; the server is not told the following text", name, where, exc_info=error)
    if is_own_refusal(error):
        return f"client {name}: {error}"
    text = "; the text is in the client's own log"
    if error_text:  # of an exception whose own text fails too
        text = f": {''.join(traceback.format_exception_only(error)).strip()}"
    return f"client {name}: {type(error).__name__} at {where}{text}"


def is_own_refusal(error: BaseException) -> bool:
    """Whether an error is a refusal of this package, and was raised by it: user code may raise the same class."""
    from pyro_fed.deployment.remote.order import Refusal  # here, since it imports torch

    modules = [module for _, _, module in _frames(error)]
    return type(error) in (Refusal, PolicyError) and bool(modules) and modules[-1].startswith(ROOM)


def place_of(error: BaseException) -> str:
    """File and line of the user's code in which an exception was raised, else those of the innermost call."""
    chain, innermost = [error], ""
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        frames = ((file, line, module) for file, line, module in _frames(one) if file.endswith(".py"))
        places = [(file, f"{Path(file).name}:{line}", module) for file, line, module in frames]
        innermost = innermost or (places[-1][1] if places else "")
        users = ((file, place) for file, place, module in places if module.partition(".")[0] != OURS)
        theirs = [place for file, place in users if not any(Path(file).is_relative_to(path) for path in INSTALLED)]
        if theirs:
            return theirs[-1]
    return innermost or "an unknown line"


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, str(frame.f_globals.get("__name__", ""))


class Leaving:
    """The outermost mod of a client's app; `site` gives the process's site once a message needs it."""

    def __init__(self, site: Callable[[], Site]) -> None:
        self.site = site
        self._told = False

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """The reply to a message by `call_next`, or an error of Flower without values of rows."""
        gate: Gate | None = None
        try:
            if POLICY_KEY in context.node_config:
                gate = self.site().gate(context)
            self._tell(gate, context)
            if gate is None:
                return call_next(message, context)
            asked, before = content_bytes(message), state_hash(context)
            reply = call_next(message, context)
            if MESSAGE in reply.content:  # the rules under which it leaves, for a reviewer
                settings: Any = reply.content[SETTINGS]
                settings.update({"policy": gate.policy.digest, "approval": gate.approval})
            gate.rows = self.site().num_rows(context)
            gate.release(self._outgoing(message, context, reply, asked, before))
            return reply
        except (Exception, SystemExit) as error:
            reason = reason_of(error, client_name(context), gate is not None and gate.policy.error_text)
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, _record_failure(gate, reason)), reply_to=message
            )

    def _tell(self, gate: Gate | None, context: Context) -> None:
        """Log once in each process which rules are in force."""
        if not self._told:
            self._told = True
            none = f"Client {client_name(context)} has no policy: everything that the run asks for may leave"
            LOG.info(none if gate is None else gate.in_words())

    def _outgoing(self, message: Message, context: Context, reply: Message, asked: bytes, before: str) -> Outgoing:
        """The reply as the gate judges it; `asked` are the bytes of the order, `before` is the hash of the state."""
        from pyro_fed.deployment.policy.gate import Outgoing

        data = content_bytes(reply)
        if asks_for_a_sum(message) and MASKED not in reply.content[PROTOCOL]:
            return Outgoing(kind="keys", data=data, asked=asked)
        return self.site().outgoing(message.content, context, reply.content, data, asked, before)


def content_bytes(message: Message) -> bytes:
    """The bytes of a message's content, as Flower sends them."""
    from flwr.common.serde import recorddict_to_proto

    data: bytes = recorddict_to_proto(message.content).SerializeToString(deterministic=True)
    return data


def state_hash(context: Context) -> str:
    """SHA-256 of the client's state before a message; "" if it has none."""
    kept: Any = context.state.config_records.get(KEPT)
    return "" if kept is None else hashlib.sha256(kept["data"]).hexdigest()


def _record_failure(gate: Gate | None, reason: str) -> str:
    """The reason of an error, after the ledger has a line on it; the error leaves even if the ledger is not whole."""
    if gate is None:
        return reason
    from pyro_fed.deployment.policy.gate import Outgoing

    try:
        gate.release(Outgoing(kind="notice", data=reason.encode()))
    except (ProtocolError, OSError) as error:
        LOG.error("The ledger has no line on this failure", exc_info=error)
    return reason


def client_app(
    model: str | Path,
    recipe: str | Path | Sequence[str | Path],
    load_rows: LoadRows,
    secure: bool = False,
    questions: bool = True,
) -> ClientApp:
    """Flower's ClientApp for a model and a recipe.

    It is a part of an app, which comes from whoever starts a run. So `secure` and `questions` bind at a hospital whose
    node runs only apps that the hospital has signed (`--trusted-entities`, `pyro-fed flower sign`), and elsewhere an
    honest operator alone.

    Where the node's configuration has `policy="/path/policy.toml"`, every reply is judged by these rules before it
    leaves, and the site's ledger beside that file has a line for each. If the site has approved a model and recipes
    (`pyro-fed node approve`), the app's are compared with them before the model is imported, and the site's own copies
    are run.

    An order of the server that is not one of this recipe, or does not fit this client's rows, is refused before it is
    unpacked. Of an exception, whoever raises it, the server gets the client's name, the exception's class, and file and
    line of the user's code; its text, which may have values of rows in it, goes to the client's own log.

    Args:
        model: the model's file, or its name in the library.
        recipe: the recipe's file, or its name in the library; or several, among which the server chooses.
        load_rows: a function of the model's module and Flower's `node_config` that returns the model's positional
            arguments, with this client's rows.
        secure: only answer in secure aggregation, in which the server gets masked numbers and their sum.
        questions: also answer questions besides the recipe: for the audit and `influence` the summed log-likelihood of
            its rows, at no more than 4000 draws a message; for `loo` sums of leave-one-out.

    Example:
        >>> app = client_app("model.py", "recipe.toml", lambda model, node_config: read_rows(node_config["name"]))
    """
    given = [recipe] if isinstance(recipe, str | Path) else list(recipe)
    made: list[Site] = []

    def site() -> Site:
        if not made:
            from pyro_fed.deployment.flower.site import Site

            made.append(Site(model, given, load_rows, questions, secure=secure))
        return made[0]

    app = ClientApp(mods=[Leaving(site), sums_mod])

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        from pyro_fed.density.compiling.compiler import threads

        with threads(1):
            return Message(RecordDict({SETTINGS: site().describe(context)}), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        import torch

        from pyro_fed.density.compiling.compiler import threads

        with threads(1), torch.no_grad():
            return Message(site().work(message.content, context, asks_for_a_sum(message)), reply_to=message)

    return app
