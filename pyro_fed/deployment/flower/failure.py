"""What a client says of its own failure.

The text of an exception may have values of rows in it, whoever wrote the text: pandas, torch, a model, `load_rows`. So
the server gets none of it. It gets the client's name, the exception's class, and the file and line of the user's code;
the text goes to the client's own log. A refusal of the server's order is sent whole, since its text is made of the
order alone; and so is a refusal by the site's own rules, whose text is made of the rule and the order.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from flwr.app import Context

from pyro_fed.deployment.remote.refusal import is_own_refusal, place_of

LOG = logging.getLogger("flwr")


def client_name(context: Context) -> str:
    """The client's name: `name` or `partition-id` of its node's configuration, else the node's number."""
    config: Any = context.node_config
    return str(config.get("name", config.get("partition-id", context.node_id)))


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
