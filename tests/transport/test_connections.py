"""Which connections are ended, and which addresses are kept out: the rules without sockets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from odp.transport.connections import Connections
from odp.transport.kernel_sockets import Traffic
from odp.transport.limits import AHEAD_BYTES, Limits

KIB, MIB = 2**10, 2**20


class World:
    """Connections with a clock of their own; each look is 20 ms after the one before, and the loop turns between."""

    def __init__(self, limits: Limits | None = None, *, most: int = 64) -> None:
        self.now = 0.0
        self.connections = Connections(limits or Limits(), most=most, clock=lambda: self.now)

    def look(
        self, traffic: Sequence[Traffic], *, seconds: float = 0.02, resident: int = 0, turns: bool = True
    ) -> dict[int, str]:
        self.now += seconds
        if turns:
            self.connections.turned()
        return self.connections.judge(lambda: traffic, resident=resident).ended

    def answer(self, peer: str, *, size: int = 0) -> None:
        progress = self.connections.begin(peer)
        progress.messages += 1
        progress.message_bytes += size
        progress.answered += 1
        progress.calls -= 1


def _of(number: int, received: int, *, address: str = "10.0.0.1", acknowledged: int = 0) -> Traffic:
    return Traffic(number, f"ipv4:{address}:{number}", received, acknowledged)


def test_bytes_without_a_call_end_a_connection_and_keep_its_address_out_for_a_while() -> None:
    world = World()
    looks = [world.look([_of(1, 40 * KIB), _of(2, 4 * KIB, address="10.0.0.2")]) for _ in range(10)]
    assert [set(ended) for ended in looks[:2]] == [set(), set()], "a call that has just arrived may explain them"
    assert {1} in [set(ended) for ended in looks[2:]]
    assert world.connections.kept_out() == ["10.0.0.1"]
    world.now += 1.0
    assert world.connections.kept_out() == []


def test_r436_a_program_that_stood_still_has_time_to_begin_what_arrived_meanwhile() -> None:
    for number, size, calm in ((1, 40, 3), (2, 150, 240)):
        world = World()
        traffic = [_of(number, size * KIB)]
        if number == 2:
            world.answer(traffic[0].peer)
        world.look(traffic, turns=False)
        assert world.look(traffic, seconds=60.0, turns=False) == {}, "the guard was the first to run again"
        ended = [world.look(traffic, turns=False).keys() for _ in range(calm + 10)]
        assert ended[:calm] == [set()] * calm
        assert {number} in ended, "a loop that hangs protects no attack"


def test_r360_what_arrives_while_the_sockets_are_looked_at_explains_what_the_next_look_sees() -> None:
    """Looks take long where many connections send at once: whole bursts of messages arrive meanwhile."""
    world = World()
    peer = _of(1, 0).peer
    world.answer(peer)
    world.look([_of(1, 4 * KIB)])

    def sockets() -> list[Traffic]:
        for _ in range(10):
            world.answer(peer, size=64 * KIB)
        return [_of(1, 4 * KIB)]

    world.now += 0.02
    world.connections.judge(sockets)
    for _ in range(100):
        assert world.look([_of(1, 700 * KIB)]) == {}


def test_a_known_connection_is_looked_at_soon_unless_its_messages_arrive() -> None:
    world = World()
    peer = _of(1, 0).peer
    world.answer(peer)
    assert not world.connections.judge(lambda: [_of(1, 4 * KIB)]).busy
    world.connections.begin(peer).messages += 1
    assert not world.connections.judge(lambda: [_of(1, 200 * KIB)]).busy, "an upload whose next call has not begun yet"
    assert world.connections.judge(lambda: [_of(1, 200 * KIB)]).busy, "no message came since"


def test_r436_looks_that_are_meant_to_be_rare_count_for_what_they_last() -> None:
    world = World()
    traffic = [_of(1, 40 * KIB)]
    world.connections.judge(lambda: traffic)
    world.now += 0.6
    assert world.connections.judge(lambda: traffic, pause=0.6).ended.keys() == {1}


def test_r405_a_new_connection_has_no_more_ahead_of_its_first_answer_than_http2_lets_a_caller_send() -> None:
    world = World()
    assert world.look([_of(1, 90 * KIB), _of(2, 100 * KIB)]).keys() == {2}


def test_r405_connections_whose_bytes_take_memory_are_ended_those_with_the_most_bytes_first() -> None:
    world = World()
    small = [_of(n, 20 * KIB + n, address=f"10.0.0.{n}") for n in range(1, 9)]
    assert world.look([], resident=200 * MIB) == {}
    assert world.look([*small, _of(100, KIB)], resident=230 * MIB) == {}
    ended = world.look([*small, _of(100, KIB)], resident=240 * MIB)
    assert ended.keys() == {7, 8}, "128 KiB of bytes are left"
    left = [*small[:6], _of(100, KIB)]
    assert world.look(left, resident=240 * MIB) == {}


def test_r405_memory_that_grows_without_such_bytes_ends_nobody() -> None:
    world = World()
    for n in range(20):
        world.answer(_of(n, 0).peer)
    callers = [_of(n, 30 * KIB) for n in range(20)]
    for step in range(10):
        world.connections.begin(callers[0].peer)  # calls arrive
        assert world.look(callers, resident=(100 + 100 * step) * MIB) == {}


def test_an_address_that_goes_on_waits_longer_each_time() -> None:
    world, waits = World(), []
    for wave in range(4):
        while not world.look([_of(wave, 2**21)]):
            pass
        began = world.now
        while world.connections.kept_out():
            world.now += 0.01
        waits.append(world.now - began)
    assert all(1.5 * before < after for before, after in pairwise(waits))


def test_what_calls_sent_and_may_still_send_explains_bytes() -> None:
    world = World()
    peer = _of(1, 0).peer
    received = 0
    for _ in range(20):
        received += 2**20
        world.answer(peer, size=2**20)
        assert world.look([_of(1, received)]) == {}
    under_way = [world.connections.begin(peer) for _ in range(64)]
    received += 64 * AHEAD_BYTES
    assert [world.look([_of(1, received)]) for _ in range(5)] == [{}] * 5
    under_way[0].expected += 1
    received += Limits().request_bytes
    assert [world.look([_of(1, received)]) for _ in range(5)] == [{}] * 5


def test_a_known_connection_whose_calls_wait_behind_those_of_others_stays() -> None:
    world = World(Limits(unasked_all_bytes=2**20))
    callers = [_of(n, 40 * AHEAD_BYTES) for n in range(8)]
    for each in callers:
        world.answer(each.peer)
    for _ in range(40):  # each arrived with 40 calls, and gRPC hands them over one by one
        for each in callers:
            world.connections.begin(each.peer)
            assert world.look(callers, seconds=0.001) == {}


def test_replies_explain_their_acknowledgements_and_time_what_keeps_a_connection_alive() -> None:
    world = World()
    acknowledged = received = 0
    for _ in range(20):
        acknowledged, received = acknowledged + 2**20, received + 2**14
        assert world.look([_of(1, received, acknowledged=acknowledged)]) == {}
    for _ in range(100):
        received += 600
        assert world.look([_of(1, received, acknowledged=acknowledged)], seconds=12.0) == {}


def test_calls_cancelled_at_once_explain_nothing() -> None:
    world = World()
    received, ended = 0, {}
    for _ in range(10):
        world.connections.begin(_of(1, 0).peer).calls -= 1
        received += 40 * KIB
        ended = ended or world.look([_of(1, received)])
    assert set(ended) == {1}


def test_of_many_small_floods_the_largest_are_ended_until_the_sum_is_small() -> None:
    world = World(Limits(unasked_all_bytes=10 * 60 * KIB))
    ended = world.look([_of(n, (50 + n % 2) * KIB, address=f"10.0.0.{n}") for n in range(20)])
    assert len(ended) == 9  # of 1,010 KiB, nine times 51 leave less than 600
    assert all(number % 2 for number in ended)


def test_new_connections_beyond_their_number_are_those_of_the_address_with_most_of_them() -> None:
    world = World(Limits(new_connections=8))
    honest = [_of(100, 1 * KIB, address="10.0.0.9"), _of(101, 1 * KIB, address="10.0.0.8")]
    ended = world.look([*(_of(n, 1 * KIB) for n in range(20)), *honest])
    assert len(ended) == 14
    assert not {100, 101} & set(ended)
    assert world.connections.kept_out() == [], "being many is no attack"


def test_r361_the_address_with_the_most_new_connections_loses_them_though_those_of_others_are_older() -> None:
    world = World(Limits(new_connections=8))
    honest = [_of(100, KIB, address="10.0.0.9"), _of(101, KIB, address="10.0.0.8")]
    assert world.look(honest) == {}
    ended = world.look([*honest, *(_of(n, KIB) for n in range(20))])
    assert len(ended) == 14
    assert not {100, 101} & set(ended)


def test_an_address_has_its_share_of_all_connections_and_those_at_work_stay() -> None:
    world = World(Limits(share_of_address=0.5), most=32)  # 28 of 32 are used, and 14 of one address
    for n in range(20):
        world.answer(_of(n, 0).peer)
    world.connections.begin(_of(0, 0).peer)
    ended = world.look([_of(n, KIB) for n in range(20)])
    assert len(ended) == 6
    assert 0 not in ended


def test_connections_that_close_unused_again_and_again_keep_their_address_out() -> None:
    world = World()
    for wave in range(20):
        world.look([_of(100 * wave + n, KIB) for n in range(10)])
        world.look([])
    assert world.connections.kept_out() == ["10.0.0.1"]


def test_closed_connections_leave_nothing_behind() -> None:
    world = World()
    for n in range(50):
        world.answer(_of(n, 0).peer)
        world.look([_of(n, KIB)])
    for _ in range(3):
        world.look([])
    assert not world.connections._connections
    assert not world.connections._progress


def _of_network(number: int, received: int) -> Traffic:
    """Of one IPv6 /64, each from another address of it."""
    return Traffic(number, f"ipv6:%5B2001:db8::{number:x}%5D:4000", received, 0)


def test_r390_connections_of_one_ipv6_network_keep_no_newcomer_out() -> None:
    world = World(Limits(new_connections=8), most=1024)
    hostile = [_of_network(n, KIB) for n in range(1, 9)]
    assert world.look(hostile) == {}
    ended = world.look([*hostile, _of(100, KIB)])
    assert len(ended) == 1
    assert 100 not in ended


def test_r390_of_addresses_with_the_same_number_the_oldest_connection_is_ended() -> None:
    world = World(Limits(new_connections=8))
    rested = [_of(n, KIB, address=f"203.0.113.{n}") for n in range(8)]
    for n in range(8):
        world.look(rested[: n + 1])
    assert set(world.look([*rested, _of(100, KIB, address="10.0.0.9")])) == {0}


def test_r390_an_ipv6_network_has_the_share_of_one_address() -> None:
    world = World(Limits(share_of_address=0.5), most=32)  # 28 of 32 are used, and 14 of one address
    traffic = [_of_network(n, KIB) for n in range(20)]
    for each in traffic:
        world.answer(each.peer)
    assert len(world.look(traffic)) == 6


def test_r390_an_ipv6_network_that_misbehaves_waits_as_one_address() -> None:
    world = World(most=1024)
    while not world.look([_of_network(n, 2**21) for n in range(512)]):
        pass
    assert world.connections.kept_out() == ["2001:db8::/64"]


def test_r391_more_connections_with_calls_than_there_are_places_end_no_look() -> None:
    world = World(most=64)  # 56 are used
    traffic = [_of(n, KIB, address=f"10.0.0.{n}") for n in range(64)]
    for each in traffic[:-2]:
        world.connections.begin(each.peer)
    assert set(world.look(traffic)) == {62, 63}, "those without a call"
