"""Messages as bytes: what travels between a server and its clients."""

from pyro_fed.runtime.messages.codec import (
    Header,
    Message,
    Spec,
    decode,
    decode_header,
    encode,
    encoded_size,
    spec_of,
    spec_of_one,
)
from pyro_fed.runtime.messages.mailbox import Mailbox, answer, token

__all__ = [
    "Header",
    "Mailbox",
    "Message",
    "Spec",
    "answer",
    "decode",
    "decode_header",
    "encode",
    "encoded_size",
    "spec_of",
    "spec_of_one",
    "token",
]
