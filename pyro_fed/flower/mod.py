"""The part of secure aggregation that every message to a client passes: Flower's own mod for those of its protocol."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message

#: Flower's record of the protocol in a message.
PROTOCOL = "secaggplus_configs"


def handed_on(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Flower's mod for messages of its protocol; others pass.

    Args:
        message: what came.
        context: the client's.
        call_next: the app.
    """
    if not asks_for_a_sum(message):
        return call_next(message, context)
    from flwr.client.mod import secaggplus_mod

    return secaggplus_mod(message, context, call_next)


def asks_for_a_sum(message: Message) -> bool:
    """Whether it belongs to the protocol."""
    return message.has_content() and PROTOCOL in message.content
