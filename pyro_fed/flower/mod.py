"""The mod of secure aggregation, through which every message to a client passes."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message

#: Name of the record by which Flower marks messages of its secure aggregation.
PROTOCOL = "secaggplus_configs"


def handed_on(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Handle messages of secure aggregation by Flower's own mod, and hand others on to the app.

    Args:
        message: the message.
        context: the client's context.
        call_next: the app.
    """
    if not asks_for_a_sum(message):
        return call_next(message, context)
    from flwr.client.mod import secaggplus_mod

    return secaggplus_mod(message, context, call_next)


def asks_for_a_sum(message: Message) -> bool:
    """Whether a message belongs to secure aggregation."""
    return message.has_content() and PROTOCOL in message.content
