"""The largest numbers and sizes that a process accepts from others: it refuses larger ones before it uses memory."""

from __future__ import annotations

#: The most clients, phases, or exchanges of a run.
MAX_CLIENTS = 10**6
#: The most rounds of a run: a header has ten digits for them.
MAX_ROUNDS = 10**10
#: The most rows that a client may claim to have.
MAX_ROWS = 10**12
#: The most numbers in one row, over all arguments: the server makes up such a row.
MAX_ROW_NUMBERS = 10**7

#: The most bytes of any message, however large the model.
MAX_MESSAGE_BYTES = 2**30
#: The most particles or draws, and full matrices, that a client receives for each of its positions in a round.
MAX_VECTORS, MAX_MATRICES = 100_000, 10
#: Numbers of a vector other than its coordinates, such as its weight.
EXTRA_VECTOR_NUMBERS = 10

#: The most bytes of JSON in a message; it may have a model's file in it.
MAX_JSON_BYTES = 10**7
#: The longest text of a description or an order that is read, in characters.
MAX_TEXT = 100_000
#: The most bytes of a request that has no tensors but the numbers of a step.
MAX_REQUEST_BYTES = 10_000
#: The most characters of a reason that agents tell each other; it fits into a request however JSON encodes it.
MAX_REASON_CHARACTERS = MAX_REQUEST_BYTES // 20
#: Bytes of a certificate with its intermediate ones, PEM; and of a signature, an RSA key's of 4096 bits.
MAX_CERTIFICATE_BYTES, MAX_SIGNATURE_BYTES = 8192, 512
