"""Links between agents, in one process: strangers, what fails and comes back, and what each datum counts."""

import threading
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
from agents_case import NAMES, free_ports, model, peers_file, rows_of
from cryptography import x509
from institutions import certified

import pyro_fed as pf
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.deployment.agents.agent import Agent, run_agent
from pyro_fed.deployment.agents.certificates import Identity, write_certificates
from pyro_fed.deployment.agents.links import SPREAD, Flows, Links
from pyro_fed.deployment.agents.neighbours import Neighbours, neighbours_of
from pyro_fed.deployment.agents.outbox import At, Farewell, NoMessage, Outbox, Why
from pyro_fed.deployment.agents.peers import LinkSettings, Peers, load_peers
from pyro_fed.deployment.agents.statements import Statements
from pyro_fed.deployment.agents.wire import MAX_WAITING_REQUESTS, SERVICE, Unwelcome, Wire, with_step
from pyro_fed.deployment.rows import load_rows
from pyro_fed.errors import DataError, ProtocolError, QuorumError, SettingError
from pyro_fed.graph.consensus import AlongCircuit
from pyro_fed.graph.mixing import mix
from pyro_fed.runtime.network import connect

QUICK = LinkSettings(patience=1.5, patience_all=30.0, retry_every=0.02, knock=0.5)
#: Where nobody dies: whoever is slow is waited for.
PATIENT = LinkSettings(patience=60.0, patience_all=60.0, retry_every=0.02, knock=60.0)
SAID = {"seed": "0"}


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ring")
    return load_peers(peers_file(folder)), folder / "certificates"


@pytest.fixture(scope="module")
def chords(tmp_path_factory):
    """Five in a circle, and two links across."""
    folder = tmp_path_factory.mktemp("chords")
    pairs = [*zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True), (NAMES[0], NAMES[2]), (NAMES[1], NAMES[3])]
    return load_peers(peers_file(folder, graph=f"links = {[list(pair) for pair in pairs]}")), folder / "certificates"


def wired(peers, identity, me, settings=QUICK, said=SAID):
    links = Links(me, peers, settings, said)
    links.wire = Wire(me, peers, identity, settings, links.agreement, links.answer)
    return links


def introduced(links, rows="rows"):
    """Every agent's first statement, over the graph, after which each knows the others' keys."""
    statements = links.wire.statements
    found, _ = links.spread(At(-1, -1, 0), statements.introduction(rows), 30.0, whole=True)
    statements.bind(found["nonce"])
    return found


# -- who is let in --------------------------------------------------------------------------------------------


def test_strangers_are_refused_and_impostors_are_not_believed(ring, tmp_path):
    peers, folder = ring
    north = wired(peers, Identity.load(folder, "north"), 0)
    other = tmp_path / "other"
    write_certificates(folder, ["mallory"])
    write_certificates(other, ["east", "north"])  # the same names, of another authority
    port = f"127.0.0.1:{free_ports(1)[0]}"

    def caller(identity):
        pair = Peers((identity.name, "north"), (port, peers.addresses[0]), pf.graph.complete(2))
        return wired(pair, identity, 0)

    try:
        known = caller(Identity.load(folder, "east"))
        assert known.wire.hello(1, 10.0) == SAID
        known.wire.close()
        for name, where in (("mallory", folder), ("south", folder)):  # of the same authority, but no neighbours
            stranger = caller(Identity.load(where, name))
            with pytest.raises(Unwelcome, match=f"certificate is for {name}, which is no neighbour of north"):
                stranger.wire.hello(1, 10.0)
            stranger.wire.close()
        foreign = caller(Identity.load(other, "east"))  # its certificate is signed by somebody else
        with pytest.raises(NoMessage, match="not there yet"):
            foreign.wire.hello(1, 0.4)
        foreign.wire.close()
    finally:
        north.wire.close()
    impostor = wired(peers, Identity.load(folder, "west"), 0)  # listens at north's address with another's certificate
    east = wired(peers, Identity.load(folder, "east"), 1)
    try:
        with pytest.raises(NoMessage):
            east.wire.hello(0, 0.4)
    finally:
        east.wire.close()
        impostor.wire.close()


def test_what_is_no_request_is_refused(ring):
    peers, folder = ring
    north, east = (wired(peers, Identity.load(folder, name), i) for i, name in enumerate(NAMES[:2]))
    try:
        take = east.wire._channels[0].unary_unary(f"/{SERVICE}/Take")
        for data, code in (
            (b"", "INVALID_ARGUMENT"),
            (b"\xff" * 100, "INVALID_ARGUMENT"),
            (b"\xff" * 100_000, "RESOURCE_EXHAUSTED"),
        ):
            with pytest.raises(grpc.RpcError) as error:
                take(data, timeout=10.0)
            assert error.value.code().name == code
        north.wire.run = "f" * 16
        with pytest.raises(Unwelcome, match="the request is of run"):
            east.fetch(At(0, 0, 0), [0], {}, 5.0)
    finally:
        north.wire.close()
        east.wire.close()


def test_a_message_of_other_shapes_or_numbers_is_refused(ring):
    peers, folder = ring
    north, east = (wired(peers, Identity.load(folder, name), i) for i, name in enumerate(NAMES[:2]))
    algorithm = SimpleNamespace(needs_all=False)
    try:
        for message in ({"q": torch.zeros(1, 4)}, {"q": torch.zeros(1, 3).double()}, {"p": torch.zeros(1, 3)}):
            north.outbox.put(At(0, 0, 0), message)
            with pytest.raises(ProtocolError, match="expected"):
                east.fetch(At(0, 0, 0), [0], _spec(torch.zeros(1, 3)), 5.0)
        north.outbox.put(At(0, 0, 0), {"q": torch.full((1, 3), torch.nan)})
        network = Neighbours(east, pf.graph.Consensus((0.0,)))
        network.phase, network.needs_all, network.algorithm = 0, False, algorithm
        east.outbox.take_down(2, At(0, 0, 0))
        with pytest.raises(ProtocolError, match="north, round 0: its message is not finite"):
            network._exchange(At(0, 0, 0), _spec(torch.zeros(1, 3)), {0, 2})
    finally:
        north.wire.close()
        east.wire.close()


def test_a_neighbour_that_asks_too_much_holds_nobody_else_up(ring):
    """Its requests wait, so many at a time as one neighbour may have; what is beyond is to be asked again."""
    peers, folder = ring
    north, east, centre = (wired(peers, Identity.load(folder, NAMES[i]), i) for i in (0, 1, 4))
    never, message = At(0, 9, 0), {"q": torch.ones(1, 3)}
    north.outbox.put(At(0, 0, 0), message)
    try:
        flood = [
            east.wire._call(0, with_step("Take", never, message), 20.0)[1]
            for _ in range(2 * MAX_WAITING_REQUESTS * len(north.wire.neighbours))
        ]
        beyond = len(flood) - MAX_WAITING_REQUESTS
        end = time.monotonic() + 10.0
        while sum(call.done() for call in flood) < beyond and time.monotonic() < end:
            time.sleep(0.01)
        refused = [call for call in flood if call.done()]
        assert len(refused) == beyond
        assert {call.code().name for call in refused} == {"RESOURCE_EXHAUSTED"}
        found = centre.fetch(At(0, 0, 0), [0], _spec(message["q"]), 5.0)
        torch.testing.assert_close(found[0]["q"], message["q"])
        assert east.wire._judge(refused[0].exception(), 0) is None  # it asks again
        north.outbox.put(never, message)  # those that wait are answered, and their places are free again
        found = east.fetch(never, [0], _spec(message["q"]), 5.0)
        torch.testing.assert_close(found[0]["q"], message["q"])
    finally:
        for links in (centre, east, north):
            links.wire.close()


def _spec(value):
    from pyro_fed.runtime.messages import spec_of

    return spec_of({"q": value})


# -- who speaks for whom ---------------------------------------------------------------------------------------


@pytest.fixture
def speakers(tmp_path):
    """Four in a row: centre, north, east, south."""
    pairs = [["north", "east"], ["east", "south"], ["north", "centre"]]
    names = ("north", "east", "south", "centre")
    path = peers_file(tmp_path, names, f"links = {pairs}")
    return load_peers(path), tmp_path / "certificates"


def everywhere(work):
    """The errors of pieces of work that need each other, by name."""
    errors = {}

    def run(name, one):
        try:
            one()
        except Exception as error:
            errors[name] = error

    threads = [threading.Thread(target=run, args=pair) for pair in work.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def spoken(agents, at, own=None, whole=True):
    """What all hear as each says its number; errors by name."""
    heard = {}

    def one(name, links):
        me = {"rows": torch.tensor([10 + links.me]), "nothing": torch.tensor([torch.nan])}
        heard[name] = links.spread(at, me, 2.0, whole=whole)[0]["rows"].tolist()

    return heard, everywhere({name: lambda n=name, k=links: one(n, k) for name, links in agents.items()})


def forge(message, about, earlier):
    """Its own number for another's."""
    message["known"][about], message["of.rows"][about] = True, -5


def replay(message, about, earlier):
    """What the other has signed in an earlier round."""
    message["known"][about] = True
    for name in ("of.rows", "of.signature"):
        message[name][about] = earlier[name][about]


def conceal(message, about, earlier):
    """Others' numbers, without its own."""
    message["known"][:] = False
    forge(message, about, earlier)


@pytest.mark.parametrize(("liar", "about"), [("east", "south"), ("centre", "east"), ("east", "centre")])
@pytest.mark.parametrize("lie", [forge, replay, conceal])
def test_an_agent_that_speaks_for_another_is_named_and_nobody_else_is_blamed(speakers, liar, about, lie):
    """North hears of south through east alone; of east, and of centre, also from these themselves."""
    peers, folder = speakers
    agents = {name: wired(peers, Identity.load(folder, name), i) for i, name in enumerate(peers.names)}
    box, number = agents[liar].outbox, peers.number(about)
    try:
        assert not everywhere({name: lambda links=links: introduced(links) for name, links in agents.items()})
        heard, errors = spoken(agents, At(0, 0, SPREAD))
        assert not errors and set(map(tuple, heard.values())) == {(10, 11, 12, 13)}
        earlier, put = box.get(At(0, 0, SPREAD + peers.diameter - 1), 0, 1.0), box.put

        def lying(at, message):
            message = {name: value.clone() for name, value in message.items()}
            lie(message, number, earlier)
            put(at, message)

        box.put = lying
        _, errors = spoken(agents, At(0, 1, SPREAD), whole=False)
    finally:
        for links in agents.values():
            links.wire.close()
    assert isinstance(errors["north"], ProtocolError)
    said = str(errors["north"])
    if lie is conceal:
        words = "it passes on the others' statements, without its own. Check what it runs"
        assert said == f"agent {liar}, round 1: {words}"
    else:
        assert said.startswith(
            f"agent {liar}, round 1: it has sent a statement of agent {about} that the key of {about}'s"
        )
        assert f"Look at agent {liar} alone" in said


def test_a_statement_of_another_run_or_of_a_foreign_certificate_is_refused(speakers, tmp_path):
    """Other rows make another run, though all settings are the same; the same rows and keys make the same one."""
    peers, folder = speakers
    write_certificates(tmp_path / "other", peers.names)  # of an authority of their own
    identities = [Identity.load(folder, name) for name in peers.names]
    foreign = Identity.load(tmp_path / "other", "south")

    def statements(rows, who=identities):
        made = [Statements(one, peers.names, "0" * 16) for one in who]
        first = [one.signed(At(-1, -1, 0), one.introduction(own)) for one, own in zip(made, rows, strict=True)]
        return made, first

    at, own, settings = At(0, 3, 0), {"rows": torch.tensor([7])}, ["a", "b", "c", "d"]
    runs = [statements(rows) for rows in (settings, settings, ["a", "b", "changed", "d"])]
    for made, first in runs:
        for one in made:
            for i, statement in enumerate(first):
                one.check(i, At(-1, -1, 0), statement, 1)
            one.bind(torch.cat([statement["nonce"] for statement in first]))
    north = runs[0][0][0]
    north.check(2, at, runs[1][0][2].signed(at, own), 1)
    for odd in (
        runs[2][0][2].signed(at, own),  # of another run
        runs[0][0][2].signed(At(0, 2, 0), own),  # of another round
        runs[0][0][3].signed(at, own),  # of another agent
        {**runs[0][0][2].signed(at, own), "rows": torch.tensor([8])},
        {**own, "signature": torch.zeros(1, 74, dtype=torch.uint8)},
    ):
        with pytest.raises(ProtocolError, match=r"agent east, round 3: it has sent a statement of agent south"):
            north.check(2, at, odd, 1)
    _, first = statements(settings, [*identities[:2], foreign, identities[3]])
    with pytest.raises(ProtocolError, match=r"round -1: .*\(the certificate was not issued by the authority"):
        statements(settings)[0][0].check(2, At(-1, -1, 0), first[2], 1)


@pytest.mark.parametrize("kind", ["rsa", "p521"])
def test_certificates_of_institutions_sign_too(tmp_path, kind):
    """RSA keys and other curves, certified by an authority through an intermediate one."""
    certified(tmp_path, ["a", "b"], kind)
    a, b = (Statements(Identity.load(tmp_path, name), ("a", "b"), "0" * 16) for name in "ab")
    for at, own in ((At(-1, -1, 0), a.introduction("rows")), (At(0, 0, 0), {"rows": torch.tensor([3])})):
        b.check(0, at, a.signed(at, own), 0)


# -- who leaves ------------------------------------------------------------------------------------------------


def test_who_has_left_is_not_waited_for_and_nobody_else_can_say_so(ring, tmp_path):
    peers, folder = ring
    north, east, centre = (wired(peers, Identity.load(folder, NAMES[i]), i) for i in (0, 1, 4))
    wires = [north.wire, east.wire, centre.wire]
    port = f"127.0.0.1:{free_ports(1)[0]}"

    def stranger(where, name):
        pair = Peers((name, "north"), (port, peers.addresses[0]), pf.graph.complete(2))
        found = wired(pair, Identity.load(where, name), 0).wire
        found.leave(Farewell(north.wire.run, "so they say", differs=True), [1])
        found.close()

    try:
        write_certificates(folder, ["eve"])
        write_certificates(tmp_path / "other", ["east"])
        stranger(folder, "eve")  # of the same authority, but no neighbour
        stranger(tmp_path / "other", "east")  # a neighbour's name, of another authority
        assert not north.wire.left
        with pytest.raises(grpc.RpcError) as error:
            east.wire._channels[0].unary_unary(f"/{SERVICE}/Leave")(b"[]", timeout=10.0)
        assert error.value.code().name == "INVALID_ARGUMENT"
        north.wire.agreed = {1, 4}
        east.wire.leave(Farewell("f" * 16, "another run"), [0])  # a second process of east's, of another run
        assert not north.wire.left

        at, spec, began = At(0, 0, 0), _spec(torch.zeros(1, 3)), time.monotonic()
        threading.Timer(0.3, lambda: centre.wire.leave(Farewell(north.wire.run, "it has\x1b[2J stopped"), [0])).start()
        found = north.fetch(at, [1, 4], spec, 20.0, whole=True)
        assert {j: one.why for j, one in found.items()} == {1: Why.LATE, 4: Why.LEFT}
        with pytest.raises(QuorumError, match=r"agent centre has left: it has \[2J stopped\. Start it again"):
            north.failed(4, at, found[4], needed=True)
        east.outbox.put(at, {"q": torch.ones(1, 3)})
        centre.wire.close()
        found = north.fetch(at, [1, 4], spec, 20.0)  # a round that can do without
        assert isinstance(found[4], NoMessage) and found[4].why is Why.LEFT
        assert torch.equal(found[1]["q"], torch.ones(1, 3))

        east.wire.leave(Farewell(north.wire.run, "done", done=True), [0])
        for j in (1, 4):
            north.outbox.take_down(j, At(0, 1, 0))
        network = Neighbours(north, pf.graph.Consensus((0.0,)))
        network.begin(
            0, 1, SimpleNamespace(needs_all=False), {}, {}, {"1.last": torch.zeros(3), "4.last": torch.zeros(3)}
        )
        with pytest.raises(QuorumError, match="all neighbours of north have left"):
            network.between(1, {})
        assert time.monotonic() - began < 15.0
        north.outbox.put(at, {"q": torch.ones(1, 3)})
        east.fetch(at, [0], spec, 5.0)  # it is back
        assert set(north.wire.left) == {4}
    finally:
        for wire in wires:
            wire.close()


# -- what fails and comes back --------------------------------------------------------------------------------


class Mean(OnGraph):
    """Every agent puts a number into its belief in each round; consensus makes their mean of it."""

    needs_all = False
    symmetric = coarse = frozenset()

    def __init__(self, dies_at=None, fewest=False):
        self.calls, self.dies_at, self.fewest = 0, dies_at, fewest

    def consensus_steps(self, graph, sleepers):
        return self.consensus(graph, sleepers).steps

    def consensus(self, graph, sleepers):
        return graph.consensus(1e-6) if self.fewest else pf.graph.Consensus((0.0,) * 5)

    def combine(self, mine, messages, weights):
        self.calls += 1
        if self.calls == self.dies_at:
            raise InterruptedError  # it has sent its message of this step, and has those of its neighbours
        return {name: mix(weights, value) for name, value in messages.items()}

    def witness(self, before, after):
        return {"q": after["q"]}

    def figures_of_witness(self, told):
        return {"change": 0.0}


def put_into(agent, round):
    """What an agent puts into its belief in a round."""
    news = torch.tensor([agent + 1.0, 10.0 * round * (agent - 1)], dtype=torch.float64)
    return news if round < Node.SETTLES_AT else 0 * news


class Node(threading.Thread):
    """An agent of numbers: rounds, a state on disk after each, and a death; `together` is where all leave at once."""

    LAST, WAIT_AT, SETTLES_AT = 20, 10, 13

    def __init__(self, peers, identity, saved, back, dies_at=None, fewest=False, together=None):
        super().__init__(name=identity.name)
        self.peers, self.identity, self.saved, self.back, self.together = peers, identity, saved, back, together
        self.algorithm, self.me = Mean(dies_at, fewest), peers.number(identity.name)
        self.error, self.heard = None, []

    def run(self):
        try:
            links = wired(self.peers, self.identity, self.me, PATIENT if self.together else QUICK)
        except Exception as error:
            self.error = error
            return
        try:
            self._rounds(links)
            if self.together:
                self.together.wait(60)
        except InterruptedError:
            pass
        except Exception as error:
            self.error = error
        finally:
            links.wire.close()

    def _rounds(self, links):
        introduced(links)
        network = neighbours_of(links, self.algorithm)
        round, shared, put_in, kept = self.saved.get(
            self.me, (0, {"q": torch.zeros(5, 2, dtype=torch.float64)}, torch.zeros(2, dtype=torch.float64), {})
        )
        network.begin(0, round, self.algorithm, shared, {}, kept)
        while round < self.LAST:
            if round == self.WAIT_AT:
                assert self.back.wait(30)
            shared = network.between(round, shared)
            if network.awake(round, [self.me]):
                news = put_into(self.me, round)
                message = {"q": shared["q"][self.me : self.me + 1] + news}
                after, _ = network.combine(self.algorithm, shared, message, torch.tensor([self.me]), None, round)
                self.heard.append(network.monitor(self.algorithm, shared, after)["agents_heard"])
                shared, put_in = after, put_in + news
            round += 1
            self.saved[self.me] = round, shared, put_in, network.saved_state()


@pytest.mark.parametrize("over", ["ring", "chords"])
def test_an_agent_that_dies_and_comes_back_late_counts_once(request, over):
    """Killed in round 4, after its neighbours may have taken what it loses; they go on without it for rounds."""
    peers, folder = request.getfixturevalue(over)
    fewest, steps = (True, peers.graph.consensus(1e-6).steps) if over == "chords" else (False, 5)
    saved, back = {}, threading.Event()
    dies = {"south": 4 * steps + 3}  # in the third step of round 4
    nodes = [Node(peers, Identity.load(folder, name), saved, back, dies.get(name), fewest) for name in NAMES]
    for node in nodes:
        node.start()
    nodes[2].join(60)
    end = time.monotonic() + 60
    assert nodes[2].error is None
    while min(saved[i][0] for i in (0, 1, 3, 4)) < 8:
        assert time.monotonic() < end and all(node.error is None for node in nodes)
        time.sleep(0.02)
    again = Node(peers, Identity.load(folder, "south"), saved, back, fewest=fewest)
    again.start()
    time.sleep(0.5)
    back.set()
    for node in (*nodes, again):
        node.join(90)
        assert not node.is_alive()
        assert node.error is None
    beliefs = torch.stack([saved[i][1]["q"][i] for i in range(5)])
    put_in = torch.stack([saved[i][2] for i in range(5)])
    torch.testing.assert_close(beliefs.mean(0), put_in.mean(0), rtol=1e-12, atol=1e-12)
    assert len(again.heard) < Node.LAST - 4  # it slept through the rounds that it missed
    assert min(nodes[0].heard) < 5  # who saw that it was away
    assert max(again.heard) == 5  # it has heard all of them again; a busy machine may miss one in any round
    assert float((beliefs - beliefs.mean(0)).abs().max()) < 1e-2 * float(put_in.abs().max())


def test_agents_on_a_circuit_have_the_simulation_s_beliefs_to_the_last_bit(chords):
    """A step over all links, then along the circuit: who is no neighbour on it is not waited for."""
    peers, folder = chords
    algorithm, saved, back = Mean(fewest=True), {}, threading.Event()
    assert isinstance(peers.graph.consensus(1e-6), AlongCircuit)
    back.set()
    together = threading.Barrier(len(NAMES))
    nodes = [Node(peers, Identity.load(folder, name), saved, back, fewest=True, together=together) for name in NAMES]
    for node in nodes:
        node.start()
    network, q = connect(algorithm, peers.graph, None, 5, 0), {"q": torch.zeros(5, 2, dtype=torch.float64)}
    for round in range(Node.LAST):
        message = {"q": q["q"] + torch.stack([put_into(i, round) for i in range(5)])}
        q, _ = network.combine(algorithm, q, message, torch.arange(5), None, round)
    for node in nodes:
        node.join(90)
        assert not node.is_alive() and node.error is None
        assert set(node.heard) == {5.0}
    assert torch.equal(torch.stack([saved[i][1]["q"][i] for i in range(5)]), q["q"])


def test_who_comes_back_still_has_the_last_message_of_its_last_round(ring):
    """It died with its state of a round on disk, and a neighbour had not yet taken what ends that round for it."""
    peers, folder = ring
    me, shared = peers.number("south"), {"q": torch.zeros(5, 2, dtype=torch.float64)}
    identity, last = Identity.load(folder, "south"), At(0, 0, SPREAD + peers.diameter - 1)
    told = {"known": torch.tensor([True, False]), "of.q": torch.ones(5, 2)}
    links = wired(peers, identity, me)
    try:
        network = neighbours_of(links, Mean())
        links.flows = Flows.none(links.wire.neighbours, {"q": shared["q"][:1]})
        links.outbox.put(At(0, 0, 0), {"q": torch.zeros(1, 2)})
        links.outbox.put(last, told)
        kept = network.saved_state()
    finally:
        links.wire.close()
    again = wired(peers, identity, me)
    try:
        neighbours_of(again, Mean()).begin(0, 1, Mean(), shared, {}, kept)
        answer = again.answer("Take", again.wire.neighbours[0], {"at": last.tensor()}, 0.0)
    finally:
        again.wire.close()
    assert answer.keys() == told.keys()
    assert all(torch.equal(answer[name], told[name]) for name in told)


def test_the_sums_of_a_link_are_brought_in_step():
    """The end that has missed an exchange takes the other's sum: v_i F_ij = -v_j F_ji."""
    generator = torch.Generator().manual_seed(0)
    mine, theirs = ({"q": torch.randn(1, 3, generator=generator)} for _ in range(2))
    v = {0: 0.25, 1: 0.75}
    ends = [Flows.none([1], mine), Flows.none([0], mine)]
    ends[0].add(1, At(0, 0, 0), 0.6, theirs, mine)
    ends[1].add(0, At(0, 0, 0), 0.2, mine, theirs)
    ends[0].add(1, At(0, 0, 1), 0.6, theirs, mine)  # the other end missed this one
    more = ends[1].adopt(0, ends[0].last[1], ends[0].sums[1], v[0] / v[1])
    torch.testing.assert_close(more["q"], 0.2 * (mine["q"] - theirs["q"]))
    torch.testing.assert_close(v[1] * ends[1].sums[0]["q"], -v[0] * ends[0].sums[1]["q"])
    again = Flows.restored([0], ends[1].saved_state())
    assert again.last == ends[1].last
    assert torch.equal(again.sums[0]["q"], ends[1].sums[0]["q"])


def test_the_outbox_keeps_two_rounds_and_says_why_not():
    box = Outbox()
    for round in range(4):
        box.put(At(0, round, 0), {"q": torch.tensor([round])})
    box.put(At(0, -1, 0), {"q": torch.tensor([-1])})
    assert box.get(At(0, 2, 0), 1, 0.0)["q"] == 2
    assert box.get(At(0, -1, 0), 1, 0.0)["q"] == -1
    box.take_down(1, At(0, 3, 0))
    box.end(1, 7)
    for at, why in (
        (At(0, 1, 0), Why.GONE),
        (At(0, 3, 0), Why.DOWN),
        (At(1, 8, 0), Why.DOWN),
    ):
        with pytest.raises(NoMessage) as refused:
            box.get(at, 1, 0.0)
        assert refused.value.why is why
    box.bring_up(1, At(0, 6, 0))
    assert not box.is_lost(1)
    for at, why in ((At(0, 5, 0), Why.DOWN), (At(0, 6, 0), Why.LATE), (At(1, 8, 0), Why.ENDED)):
        with pytest.raises(NoMessage) as refused:
            box.get(at, 1, 0.0)
        assert refused.value.why is why
    assert box.get(At(0, 3, 0), 2, 0.0)["q"] == 3  # the other links are as they were


def test_the_outbox_does_not_grow_with_the_run():
    """Neither its messages nor who has taken them."""
    box = Outbox()
    for round in range(50):
        for step in range(3):
            box.put(At(0, round, step), {"q": torch.zeros(1)})
            box.get(At(0, round, step), 1, 0.0)
    assert len(box._messages) == len(box._taken) == 2 * 3
    box.wait_until_taken(At(0, 49, 2), {1}, 0.0)


# -- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"num_rounds": 0}, "num_rounds must be at least 1"),
        ({"num_draws": 0}, "num_draws must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"checkpoint": " "}, "checkpoint must be a folder's path"),
    ],
)
def test_an_agent_s_settings_are_refused_before_it_waits_for_its_neighbours(ring, odd, said):
    peers, folder = ring
    agent = Agent(
        model=model,
        plate="data",
        rows=rows_of(0),
        identity=Identity.load(folder, "north"),
        peers=peers,
        algorithm=pf.P2PVI(),
        settings=LinkSettings(patience_all=0.2),
        **odd,
    )
    with pytest.raises(SettingError, match=said):
        run_agent(agent)


# -- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('graph = "ring"', "at least two tables"),
        ('graph = "ring"\n[agents.a]\naddress = "h:1"', "at least two tables"),
        ('[agents.a]\naddress = "h:1"\n[agents.b]\naddress = "h:2"', "either graph"),
        ('graph = "ring"\nseed = 1\n[agents.a]\naddress = "h:1"\n[agents.b]\naddress = "h:2"', "unknown keys"),
        ('graph = "complete"\n[agents.a]\naddress = "h:1"\n[agents.b]\naddress = "h:1"', "the same address"),
        ('graph = "complete"\n[agents.a]\naddress = "h"\n[agents.b]\naddress = "h:1"', 'must be "host:port"'),
        ('graph = "complete"\n[agents.a]\naddress = "h:99999"\n[agents.b]\naddress = "h:1"', "a port of at most 65535"),
        ('graph = "complete"\n[agents."a/b"]\naddress = "h:3"\n[agents.b]\naddress = "h:1"', "letters, digits"),
        ('graph = "complete"\n[agents.A]\naddress = "h:3"\n[agents.a]\naddress = "h:1"', "more than case"),
        ('graph = "moon"\n[agents.a]\naddress = "h:3"\n[agents.b]\naddress = "h:1"', "moon"),
        (
            'links = [["a", "c"]]\n[agents.a]\naddress = "h:3"\n[agents.b]\naddress = "h:1"',
            "pair of different agents' names",
        ),
        ('links = []\n[agents.a]\naddress = "h:3"\n[agents.b]\naddress = "h:1"', "not strongly connected"),
    ],
)
def test_peers_files_that_are_none(tmp_path, text, message):
    path = tmp_path / "peers.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        load_peers(path)


def test_links_have_metropolis_weights(tmp_path):
    path = tmp_path / "peers.toml"
    tables = "".join(f'[agents.{name}]\naddress = "h:{i}"\n' for i, name in enumerate("abc"))
    path.write_text(f'links = [["a", "b"], ["c", "b"]]\n{tables}')
    peers = load_peers(path)
    assert peers.links(0) == {1: pytest.approx(1 / 3)}
    assert peers.diameter == 2
    np.testing.assert_allclose(peers.graph.centrality(), 1 / 3)


def test_certificates_are_for_one_name_and_keys_for_one_owner(tmp_path):
    write_certificates(tmp_path, ["a"])
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert write_certificates(tmp_path, ["b"])[0].name == "b.key"  # the authority that is there signs again
    with pytest.raises(SettingError, match="exists already"):
        write_certificates(tmp_path, ["a"])
    (tmp_path / "a.crt").write_bytes((tmp_path / "b.crt").read_bytes())
    with pytest.raises(SettingError, match="is for \\['b'\\], expected 'a'"):
        Identity.load(tmp_path, "a")
    with pytest.raises(SettingError, match=r"expected c\.key"):
        Identity.load(tmp_path, "c")


@pytest.mark.parametrize(
    "alternative",
    [
        lambda name: [x509.DNSName(f"not-{name}"), x509.RFC822Name(name)],
        lambda name: [x509.DNSName(f"not-{name}"), x509.UniformResourceIdentifier(name)],
        lambda name: [],
    ],
)
def test_nothing_but_a_dns_name_is_an_agents_name(tmp_path, alternative):
    """An e-mail address, a URI or a common name of east's: at north's server, in its own folder, and in a statement."""
    names, ports, folder = ("north", "east"), free_ports(2), tmp_path / "certificates"
    certified(folder, names, alternative=lambda name: alternative(name) if name == "east" else [x509.DNSName(name)])
    with pytest.raises(SettingError, match=r"east\.crt is (for \['not-east'\], expected 'east'|no certificate with a)"):
        Identity.load(folder, "east")
    peers = Peers(names, tuple(f"127.0.0.1:{port}" for port in ports), pf.graph.complete(2))
    north = wired(peers, Identity.load(folder, "north"), 0)
    parts = [(folder / file).read_bytes() for file in ("east.key", "east.crt", "ca.crt")]
    east = wired(peers, Identity("east", *parts), 1)
    try:
        with pytest.raises(Unwelcome, match=r"the certificate is for .*, which is no neighbour of north"):
            east.wire.hello(0, 10.0)
        first = east.wire.statements
        at = At(-1, -1, 0)
        with pytest.raises(ProtocolError, match=r"the certificate is for|it has no alternative names"):
            north.wire.statements.check(1, at, first.signed(at, first.introduction("rows")), 1)
    finally:
        east.wire.close()
        north.wire.close()


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o602])
def test_a_key_that_others_can_use_is_refused(tmp_path, mode):
    write_certificates(tmp_path, ["a"])
    key = tmp_path / "a.key"
    key.chmod(mode)
    with pytest.raises(SettingError, match=rf"a\.key has mode 0{mode:o}: .* Run chmod 600 "):
        Identity.load(tmp_path, "a")
    key.chmod(0o600)
    assert Identity.load(tmp_path, "a").key == key.read_bytes()


def test_a_key_and_a_certificate_that_do_not_belong_together(tmp_path):
    write_certificates(tmp_path, ["a"])
    write_certificates(tmp_path / "other", ["a"])
    for file, said in (("a.key", "belongs to another key than a.key"), ("ca.crt", "cannot be verified against ca.crt")):
        kept = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes((tmp_path / "other" / file).read_bytes())
        with pytest.raises(SettingError, match=said):
            Identity.load(tmp_path, "a")
        (tmp_path / file).write_bytes(kept)


@pytest.mark.parametrize("file", ["a.crt", "a.key", "ca.crt", "ca.key"])
def test_no_link_is_followed_where_certificates_are_written(tmp_path, file):
    victim, folder = tmp_path / "victim", tmp_path / "certificates"
    victim.write_text("precious")
    folder.mkdir()
    (folder / file).symlink_to(victim)
    with pytest.raises(SettingError):
        write_certificates(folder, ["a"])
    assert victim.read_text() == "precious"


def test_certificates_do_not_outlive_their_authority(tmp_path, monkeypatch):
    from pyro_fed.deployment.agents import certificates

    def end(file):
        return x509.load_pem_x509_certificate((tmp_path / file).read_bytes()).not_valid_after_utc

    write_certificates(tmp_path, ["a"], days=30)
    write_certificates(tmp_path, ["b"], days=3000)
    assert end("a.crt") < end("b.crt") <= end("ca.crt")
    with pytest.raises(SettingError, match="certificates of 4000 days would outlive it: ask for fewer days"):
        write_certificates(tmp_path, ["c"], days=4000)
    assert not (tmp_path / "c.key").exists()
    write_certificates(tmp_path / "long", ["a"], days=4000)
    Identity.load(tmp_path, "b")
    (tmp_path / "ca.crt").write_bytes(b"nothing")
    with pytest.raises(SettingError, match=r"ca\.crt is no certificate"):
        Identity.load(tmp_path, "b")
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    monkeypatch.setattr(certificates, "MAX_CLOCK_SKEW_MINUTES", 10 * 24 * 60)
    write_certificates(tmp_path / "old", ["a"], days=-1)  # of an authority whose time is over
    for make in (lambda: Identity.load(tmp_path / "old", "a"), lambda: write_certificates(tmp_path / "old", ["b"])):
        with pytest.raises(SettingError, match=r"\.crt is valid from .* until .*, and the time is"):
            make()
    good = write_certificates(tmp_path / "new", ["a"], days=30)
    (tmp_path / "new" / "ca.crt").write_bytes((tmp_path / "old" / "ca.crt").read_bytes())
    with pytest.raises(SettingError, match=r"ca\.crt is valid from"):
        Identity.load(tmp_path / "new", "a")
    assert good[0].name == "ca.key"


def test_rows_from_files(tmp_path):
    def model(x, y, scale=1.0):
        pass

    np.savez(tmp_path / "rows.npz", y=np.ones(2), x=np.zeros((2, 3)))
    x, y = load_rows(tmp_path / "rows.npz", model)
    assert x.shape == (2, 3) and y.shape == (2,)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.ones(1))
    (tmp_path / "rows.py").write_text("def load_rows():\n    return [1], [2]\n")
    assert load_rows(tmp_path / "rows.py", model) == ([1], [2])
    np.savez(tmp_path / "other.npz", x=np.ones(1), z=np.ones(1))
    for name, message in (
        ("objects.npz", "cannot be read"),
        ("other.npz", "arguments are"),
        ("none.npz", "no such"),
    ):
        with pytest.raises(DataError, match=message):
            load_rows(tmp_path / name, model)
