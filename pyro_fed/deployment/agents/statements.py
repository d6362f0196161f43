"""Signed statements: what an agent says of itself passes through others, who can withhold it but not change it.

Every agent's number of rows, first digest and figures reach the whole graph through its neighbours. A statement is
signed with the private key of the agent's certificate, over

    run | phase, round, step | the agent's name | names, shapes, dtypes and values of its tensors

The first statement carries the certificate itself, which must come from the authority that the receiver trusts and
have the agent's DNS name, and a nonce: an HMAC of the agent's rows under its private key. From then on all nonces are a
part of the run's identity, so that a statement of an earlier run, even one with the same settings, is refused. An agent
that is started again with the same rows and the same key has the same nonce, and continues.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.agents.certificates import (
    HASH,
    RSA_PADDING,
    Identity,
    PublicKey,
    load_private_key,
    verified_key,
)
from pyro_fed.deployment.agents.outbox import At
from pyro_fed.deployment.limits import MAX_CERTIFICATE_BYTES, MAX_SIGNATURE_BYTES
from pyro_fed.errors import ProtocolError, SettingError

#: The tensors by which an agent proves who it is, which its rows do not change or show.
PROOFS = ("certificate", "nonce")
#: A signature's length, in the two bytes before it.
_LENGTH = struct.Struct(">H")


class Statements:
    """An agent's signatures of its own statements in a run, and the check of those of others."""

    def __init__(self, identity: Identity, names: Sequence[str], run: str) -> None:
        self._identity, self._names, self._run = identity, names, run
        self._key = load_private_key(identity.key, f"agent {identity.name}'s key")
        self._keys: dict[int, PublicKey] = {self._names.index(identity.name): self._key.public_key()}
        self._width = _LENGTH.size + MAX_SIGNATURE_BYTES
        long = {
            "certificate": (len(identity.certificate), MAX_CERTIFICATE_BYTES),
            "signatures": (_size(self._key), MAX_SIGNATURE_BYTES),
        }
        for what, (size, most) in long.items():
            if size > most:
                raise SettingError(
                    f"agent {identity.name}'s {what}: {size} bytes, at most {most} can be sent. Use a certificate of "
                    "a key "
                    "on an elliptic curve, or of an RSA key of at most 4096 bits"
                )

    def introduction(self, rows: str) -> State:
        """The certificate and the nonce (1, ...) for an agent's first statement; the digest of its rows stays here."""
        padded = self._identity.certificate.ljust(MAX_CERTIFICATE_BYTES, b"\n")  # PEM ignores empty lines
        return {
            "certificate": _bytes(padded),
            "nonce": _bytes(hmac.digest(self._identity.key, rows.encode(), "sha256")),
        }

    def bind(self, nonces: Tensor) -> None:
        """Make the nonces (A, 32) of all agents, in their order, a part of the run's identity."""
        self._run = hash_tensors([nonces], self._run)
        self._width = _LENGTH.size + max(map(_size, self._keys.values()))

    def signed(self, at: At, own: State) -> State:
        """A statement (1, ...) of this agent with its signature, to be spread at a step."""
        data = _payload(self._run, at, self._identity.name, own)
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            signature = self._key.sign(data, ec.ECDSA(HASH))
        else:
            signature = self._key.sign(data, RSA_PADDING, HASH)
        padded = (_LENGTH.pack(len(signature)) + signature).ljust(self._width, b"\0")
        return {**own, "signature": _bytes(padded)}

    def check(self, agent: int, at: At, statement: State, passed_on_by: int) -> None:
        """Require that a statement (1, ...) from a neighbour is signed by the agent it is of, for this run and step."""
        own = {name: value for name, value in statement.items() if name != "signature"}
        try:
            if "certificate" in own:
                pem = own["certificate"].numpy().tobytes()
                self._keys[agent] = verified_key(pem, self._names[agent], self._identity.authority)
            self._verify(agent, at, own, statement["signature"].numpy().tobytes())
        except (InvalidSignature, ValueError) as error:
            name, other = self._names[agent], self._names[passed_on_by]
            whose = "of itself" if agent == passed_on_by else f"of agent {name}"
            reason = f" ({error!s:.200})" if str(error) else ""
            raise ProtocolError(
                f"agent {other}, round {at.round}: it has sent a statement {whose} that the key of {name}'s "
                f"certificate has not signed for this run and round{reason}. Look at agent {other} alone: what it "
                "runs, and whether it has the certificates that all agents were started with"
            ) from error

    def _verify(self, agent: int, at: At, own: State, padded: bytes) -> None:
        key = self._keys.get(agent)
        if key is None:
            raise ValueError("its certificate is unknown")
        (length,) = _LENGTH.unpack_from(padded)
        signature, data = padded[_LENGTH.size :][:length], _payload(self._run, at, self._names[agent], own)
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(HASH))
        else:
            key.verify(signature, data, RSA_PADDING, HASH)


def _payload(run: str, at: At, name: str, own: State) -> bytes:
    """The bytes that are signed."""
    names = sorted(own)
    return hash_tensors([own[one] for one in names], repr(("pyro_fed statement", run, tuple(at), name, names))).encode()


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())[None]


def _size(key: object) -> int:
    """The maximal number of bytes of a key's signature."""
    bits: int = key.key_size  # type: ignore[attr-defined]  # both kinds of keys have it
    size = -(-bits // 8)
    return 2 * size + 9 if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) else size
