"""Masks of secure aggregation from ChaCha20, keyed by the whole of their seed.

Flower 1.41 has 256 bits for each mask, agreed on by elliptic curves or drawn from the operating system, and folds them
to 32 with which it seeds NumPy's Mersenne twister: whoever has a masked message can try all 2³². Here its own functions
of the protocol run with another generator, at the clients and at the server:

    key = HKDF-SHA256(seed),    mask = ChaCha20(key) as little-endian words of 32 bits

Source: RFC 5869 and RFC 8439, by `cryptography`, which Flower needs anyway. Bell et al. (2020), Section 3, ask for such
a generator. A seed serves one mask, since clients have new keys in every round; so no nonce is needed.

Flower is not changed: what is used are copies of its functions, in whose globals `pseudo_rand_gen` is `masks`. A Flower
in which that is another function, or of other arguments, is refused.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from flwr.server.workflow import SecAggPlusWorkflow


#: Flower's generator of masks, and its arguments.
GENERATOR, ARGUMENTS = "pseudo_rand_gen", ["seed", "num_range", "dimensions_list"]
#: The function of Flower's in which a client's numbers are masked.
COLLECT = "_collect_masked_vectors"
#: What the key is for (RFC 5869), so that no other use of the same seed has the same key.
PURPOSE = b"pyro_fed: mask of secure aggregation"
#: Bytes of a key: those of SHA-256.
KEY_BYTES = hashlib.sha256().digest_size


def masks(seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]) -> list[NDArray[np.int64]]:
    """Whole numbers below a power of two `num_range`, as arrays, that follow from a seed of 256 bits or more."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if len(seed) < KEY_BYTES:
        raise SettingError(
            f"secure aggregation: a mask's seed has {8 * len(seed)} bits; expected at least {8 * KEY_BYTES}"
        )
    if num_range not in {2**bits for bits in range(33)}:  # a mask's number has four bytes
        raise SettingError(f"secure aggregation: num_range must be a power of two up to 2³², received {num_range}")
    key = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=PURPOSE).derive(seed)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    found = []
    for shape in dimensions_list:
        words = np.frombuffer(stream.update(bytes(4 * math.prod(shape))), dtype="<u4")
        found.append((words & np.uint32(num_range - 1)).astype(np.int64).reshape(shape))
    return found


def client_mod() -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Flower's mod of secure aggregation with `masks`."""
    from flwr.client.mod import secaggplus_mod

    collect = secaggplus_mod.__globals__.get(COLLECT)
    if collect is None:
        raise _other_flower(secaggplus_mod, COLLECT)
    return with_globals(secaggplus_mod, **{COLLECT: with_masks(collect)})


def server_workflow() -> type[SecAggPlusWorkflow]:
    """Flower's workflow of secure aggregation with `masks`."""
    from flwr.server.workflow import SecAggPlusWorkflow

    return type("MaskedWorkflow", (SecAggPlusWorkflow,), {"unmask_stage": with_masks(SecAggPlusWorkflow.unmask_stage)})


def with_masks(function: Any) -> FunctionType:
    """A copy of a function of Flower that generates masks, with `masks` in the place of Flower's `pseudo_rand_gen`."""
    generator = function.__globals__.get(GENERATOR)
    if generator is None or list(inspect.signature(generator).parameters) != ARGUMENTS:
        raise _other_flower(function, f"{GENERATOR}({', '.join(ARGUMENTS)})")
    return with_globals(function, **{GENERATOR: masks})


def with_globals(function: Any, **others: Any) -> FunctionType:
    """A copy of a plain function that finds other objects under some global names."""
    if missing := others.keys() - set(function.__code__.co_names):
        raise _other_flower(function, ", ".join(sorted(missing)))
    found = FunctionType(function.__code__, function.__globals__ | others, function.__name__, function.__defaults__)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _other_flower(function: Any, name: str) -> SettingError:
    """The error that Flower's own masks, which are weak, would be used."""
    from flwr import __version__

    return SettingError(
        f"secure aggregation: {function.__module__}.{function.__qualname__} of Flower {__version__} does not use "
        f"{name}, which pyro_fed replaces by stronger masks; its own may have a seed of 32 bits. Install Flower 1.41"
    )


#: Name of the record by which Flower marks messages of its secure aggregation.
PROTOCOL = "secaggplus_configs"
#: Flower's name for the masked numbers in such a message.
MASKED = "masked_params"


def sums_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Handle messages of secure aggregation by Flower's own mod with strong masks, and pass others on to the app."""
    if not asks_for_a_sum(message):
        return call_next(message, context)
    return client_mod()(message, context, call_next)


def asks_for_a_sum(message: Message) -> bool:
    """Whether a message belongs to secure aggregation."""
    return message.has_content() and PROTOCOL in message.content
