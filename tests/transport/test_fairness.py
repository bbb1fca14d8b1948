"""Bounded sets that connections share: who holds the most loses first, and nobody is forgotten."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, strategies as st

from odp.transport.fairness import Fair


@dataclass(frozen=True)
class OneCall:
    number: int
    connection: str
    address: str = "a"


@st.composite
def arrivals(draw: st.DrawFn) -> list[OneCall]:
    connections = draw(st.lists(st.integers(0, 5), max_size=60))
    return [OneCall(number, str(connection), str(connection % 2)) for number, connection in enumerate(connections)]


@given(calls=arrivals(), most=st.integers(1, 10), of_address=st.integers(1, 10), newest=st.booleans())
def test_it_stays_within_its_bounds_and_each_call_is_in_it_or_has_left(
    calls: list[OneCall], most: int, of_address: int, newest: bool
) -> None:
    fair: Fair[OneCall] = Fair(most=most, most_of_address=of_address, newest=newest)
    left = [evicted for call in calls if (evicted := fair.add(call, weight=call.number)) is not None]
    assert len(fair) <= most
    kept = []
    while (taken := fair.take()) is not None:
        kept.append(taken)
    assert sorted([*kept, *left], key=lambda each: each.number) == calls
    assert max(Counter(call.address for call in kept).values(), default=0) <= of_address
    assert fair.weight == 0


@given(greedy=st.integers(2, 40), newest=st.booleans())
def test_a_connection_with_one_call_keeps_it_while_another_has_more(greedy: int, newest: bool) -> None:
    fair: Fair[OneCall] = Fair(most=5, most_of_address=5, newest=newest)
    for number in range(greedy):
        fair.add(OneCall(number, "greedy"))
    honest = OneCall(-1, "honest")
    assert fair.add(honest) != honest
    for number in range(greedy):
        assert fair.add(OneCall(100 + number, "greedy")) != honest
    assert fair.discard(honest)


def test_connections_have_their_turns_one_after_the_other() -> None:
    fair: Fair[OneCall] = Fair(most=10, most_of_address=10, newest=True)
    for number, connection in enumerate("aaabbc"):
        fair.add(OneCall(number, connection))
    order = [call.connection for call in iter(fair.take, None)]
    assert order == ["a", "b", "c", "a", "b", "a"]
