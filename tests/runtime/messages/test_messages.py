"""Messages: their bytes, what is refused in them, and which replies are taken."""

import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import save

import pyro_fed as pf
from pyro_fed.conventions.names import check_client_id
from pyro_fed.runtime.messages import (
    KINDS,
    Header,
    Mailbox,
    Message,
    answer,
    decode,
    encode,
    encoded_size,
    spec_of,
    token,
)
from pyro_fed.runtime.safetensors_header import DTYPES, MAX_DIMS

HEADER = Header("reply", "0123456789abcdef", 7, "north-3", "fedcba9876543210")
STATE = {
    "precision": torch.eye(3, dtype=torch.float64),
    "eta": torch.arange(3.0),
    "usable": torch.tensor(True),
    "steps": torch.tensor(4),
    "empty": torch.zeros(0, 2),
}
SPEC = spec_of(STATE)


def frame(header, payload=b""):
    """A message of any JSON header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + payload


def edited(edit):
    """A good message with its JSON header changed by `edit`."""
    data = encode(Message(HEADER, STATE))
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return frame(edit(header) or header, data[8 + length :])


def test_a_message_comes_back():
    back = decode(encode(Message(HEADER, STATE)), SPEC)
    assert back.header == HEADER
    assert back.tensors.keys() == STATE.keys()
    assert all(torch.equal(back.tensors[name], value) for name, value in STATE.items())


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_every_dtype_travels_and_its_size_is_known(dtype):
    state = {"x": torch.ones(2, 3).to(dtype), "a": torch.tensor(1).to(dtype), "view": torch.ones(4, 4).to(dtype).T[1:]}
    for kind in KINDS:
        data = encode(Message(Header(kind, token(), 10**9, "c" * 64, token()), state))
        assert len(data) == encoded_size(spec_of(state))
        assert torch.equal(decode(data, spec_of(state)).tensors["view"], state["view"])


def test_sizes_are_exact_whatever_the_names_shapes_and_dtypes():
    generator = torch.Generator().manual_seed(0)

    def below(high):
        return int(torch.randint(high, (), generator=generator))

    for _ in range(200):
        state = {
            "nNxX_"[below(5)] * (1 + below(4)) + str(i): torch.zeros(
                [below(13) for _ in range(below(4))], dtype=list(DTYPES.values())[below(len(DTYPES))]
            )
            for i in range(below(12))
        }
        assert len(encode(Message(HEADER, state))) == encoded_size(spec_of(state))


@pytest.mark.parametrize("executor", ["vectorised", "sequential"])
def test_the_record_has_the_bytes_of_the_encoded_messages(executor, monkeypatch):
    from algorithms import unequal_lines

    from pyro_fed.runtime.executors import resolve

    inner, seen = resolve(executor), []

    def execute(work):
        reply = type(inner).execute(inner, work)
        for part, kind in ((work.shared, "work"), (reply.messages, "reply")):
            one = {name: value[0] for name, value in part.items()}
            seen.append(len(encode(Message(Header(kind, token(), work.round, "0", token()), one))))
        return reply

    monkeypatch.setattr(inner, "execute", execute)
    group = pf.run(pf.FedEP(start="prior"), unequal_lines(), executor=inner, progress=False, compile="off").federation
    assert group["bytes_down"].values[:, 0].tolist() == seen[::2]
    assert group["bytes_up"].values[:, 0].tolist() == seen[1::2]


def _set(name, **values):
    return lambda header: header[name].update(values)


BAD = {
    "a pickle": pickle.dumps({"x": 1}),
    "nothing": b"",
    "seven bytes": b"\x00" * 7,
    "a header of terabytes": struct.pack("<Q", 2**42) + b"{}",
    "a header longer than the message": struct.pack("<Q", 300) + b"{}",
    "truncated": encode(Message(HEADER, STATE))[:-1],
    "trailing bytes": encode(Message(HEADER, STATE)) + b"\x00",
    "no JSON": frame(b"nonsense"),
    "no UTF-8": frame(b'{"\xff":1}'),
    "deep JSON": frame(b"[" * 900),
    "NaN in JSON": frame(b'{"x":NaN}'),
    "a huge number": frame(b'{"x":' + b"9" * 900 + b"}"),
    "a list": frame(b"[]"),
    "two keys of one name": frame(b'{"eta":{},"eta":{}}'),
    "tensors missing": frame({}),
    "no header text": edited(lambda header: header.pop("__metadata__") and None),
    "numbers for text": edited(_set("__metadata__", round=3)),
    "another format": edited(_set("__metadata__", format="pyro_fed-0")),
    "more text": edited(_set("__metadata__", more="x")),
    "another kind": edited(_set("__metadata__", kind="order")),
    "a negative round": edited(_set("__metadata__", round="-000000001")),
    "a long nonce": edited(_set("__metadata__", nonce="a" * 17)),
    "a path as client": edited(_set("__metadata__", client="../etc".ljust(64))),
    "a short client": edited(_set("__metadata__", client="a")),
    "terabytes of shape": edited(_set("precision", shape=[2**21, 2**21])),
    "a shape of many dims": edited(_set("steps", shape=[1] * (MAX_DIMS + 1))),
    "a negative shape": edited(_set("eta", shape=[-3])),
    "a shape of floats": edited(_set("eta", shape=[3.0])),
    "a shape of booleans": edited(_set("usable", shape=[True])),
    "a transposed shape": edited(_set("precision", shape=[9, 1])),
    "another dtype": edited(_set("eta", dtype="I32")),
    "an unknown dtype": edited(_set("eta", dtype="object")),
    "a list as dtype": edited(_set("eta", dtype=["F32"])),
    "overlapping offsets": edited(_set("eta", data_offsets=[0, 12])),
    "offsets of text": edited(_set("eta", data_offsets="01")),
    "another tensor": edited(lambda header: {**header, "more": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
    "tensors alone": save(STATE),
    "NaN": encode(Message(HEADER, STATE | {"eta": torch.tensor([0.0, float("nan"), 1.0])})),
    "infinity": encode(Message(HEADER, STATE | {"eta": torch.tensor([0.0, float("-inf"), 1.0])})),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_messages_are_refused(data):
    with pytest.raises(pf.errors.ProtocolError) as error:
        decode(data, SPEC, cap=4000)
    assert len(str(error.value)) < 500


def test_a_client_with_another_model_is_named_by_its_shapes():
    """Row 21: four parameters where the server's model has three."""
    theirs = STATE | {"precision": torch.eye(4, dtype=torch.float64)}
    with pytest.raises(
        pf.errors.ProtocolError, match=r"'precision': expected .* shape \(3, 3\), received .* shape \(4, 4\)"
    ):
        decode(encode(Message(HEADER, theirs)), SPEC, cap=4000)


def test_no_more_than_the_cap_is_looked_at():
    data = encode(Message(HEADER, STATE))
    assert decode(data, SPEC, cap=len(data)).header == HEADER
    with pytest.raises(
        pf.errors.ProtocolError, match=f"a message of {len(data)} bytes, at most {len(data) - 1} are accepted"
    ):
        decode(data, SPEC, cap=len(data) - 1)
    with pytest.raises(pf.errors.ProtocolError, match="at most"):
        decode(bytes(10**6), SPEC)


@pytest.mark.parametrize(
    "name", ["", "../", "..", "a/b", "a\\b", "a\n", " a", "a ", "é", "x" * 65, "x" * 10**7, "\x00"]
)
def test_client_ids_that_are_no_plain_names_are_refused(name):
    with pytest.raises(pf.errors.ProtocolError, match="a client id") as error:
        check_client_id(name)
    assert len(str(error.value)) < 500
    with pytest.raises(pf.errors.ProtocolError):
        Header("work", token(), 0, name, token())


def test_a_name_that_would_do_is_said():
    with pytest.raises(pf.errors.ProtocolError, match="received 'Köln'; 'Koln' would be accepted"):
        check_client_id("Köln")


@pytest.mark.parametrize("name", ["0", "north-3", "Site_7.b", "St Mary", "x" * 64])
def test_plain_names_are_client_ids(name):
    check_client_id(name)
    assert Header("work", token(), 0, name, token()).client == name


def test_what_cannot_travel_is_refused_by_the_sender():
    with pytest.raises(pf.errors.ProtocolError, match="cannot be sent"):
        encode(Message(HEADER, {"x": torch.zeros(1, dtype=torch.complex64)}))
    with pytest.raises(pf.errors.ProtocolError, match="tensor's name"):
        encode(Message(HEADER, {"../x": torch.zeros(1)}))


def test_each_request_is_answered_once_in_its_round_by_its_client():
    box = Mailbox()
    first, second = box.request("work", 3, "0"), box.request("work", 3, "1")
    assert box.take(answer(first))
    assert not box.take(answer(first))  # a duplicate
    assert not box.take(Header("reply", token(), 3, "1", second.nonce))  # of another run
    assert not box.take(Header("reply", box.run, 3, "1", token()))  # a made-up nonce
    assert not box.take(Header("reply", box.run, 2, "1", second.nonce))  # of another round
    assert not box.take(Header("reply", box.run, 3, "0", second.nonce))  # by another client
    assert not box.take(second)  # the request itself, sent back
    box.close()
    assert not box.take(answer(second))  # late
    again = box.request("work", 4, "1")
    assert not box.take(answer(first))  # a replay
    assert box.take(answer(again))
    reasons = [reason for _, reason in box.dropped]
    assert ["answered already" in reasons[0], "of run" in reasons[1], "late, or a replay" in reasons[6]] == [True] * 3
    assert len(reasons) == 8


def test_the_list_of_dropped_replies_is_bounded():
    box = Mailbox(keep=5)
    for _ in range(20):
        assert not box.take(Header("reply", box.run, 0, "0", token()))
    assert len(box.dropped) == 5
