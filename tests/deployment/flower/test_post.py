"""How often replies are looked for: a quick round does not wait for a look, and a long one costs few."""

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]


class Clock:
    """Time that passes in sleep alone."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Slow:
    """A grid whose one node replies after some seconds."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.looks = clock, seconds, 0

    def get_nodes(self):
        return [SimpleNamespace(node_id=7)]

    def push_messages(self, messages):
        return ["asked"]

    def pull_messages(self, ids):
        self.looks += 1
        reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="asked"))
        return [reply] if self.clock.now >= self.seconds else []


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5, 10.0, 100.0])
def test_a_reply_is_seen_soon_by_few_looks(flower, seconds, monkeypatch):
    from pyro_fed.deployment.flower import joining as post

    clock = Clock()
    monkeypatch.setattr(post, "time", clock)
    grid = Slow(clock, seconds)
    question = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=7))
    found = post.Post(grid).exchange({7: question}, 1000.0)
    assert found[7].metadata.reply_to_message_id == "asked"
    assert clock.now <= 1.1 * seconds + post.MIN_POLL_SECONDS
    assert clock.now <= seconds + post.MAX_POLL_SECONDS
    assert grid.looks <= 50 + seconds / post.MAX_POLL_SECONDS
