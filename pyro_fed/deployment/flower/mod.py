"""The mod of secure aggregation, through which every message to a client passes; and names that Flower gives."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message

from pyro_fed.deployment.flower.masks import client_mod

#: Name of the record by which Flower marks messages of its secure aggregation.
PROTOCOL = "secaggplus_configs"
#: Flower's name for the masked numbers in such a message.
MASKED = "masked_params"
#: The key of a node's configuration that has the path of the site's policy.
POLICY_KEY = "policy"
#: Name of the record in Flower's context that has the client's state.
KEPT = "pyro_fed"


def handed_on(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Handle messages of secure aggregation by Flower's own mod with strong masks, and pass others on to the app.

    Raises:
        SettingError: this Flower makes its masks in an unknown way.
    """
    if not asks_for_a_sum(message):
        return call_next(message, context)
    return client_mod()(message, context, call_next)


def asks_for_a_sum(message: Message) -> bool:
    """Whether a message belongs to secure aggregation."""
    return message.has_content() and PROTOCOL in message.content
