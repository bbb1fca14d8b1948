"""Runtime registers: extended and never set, and a log that leads to them or does not."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.registers import LARGEST_LOG, NAMES, Registers, read, replay

EVENTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.from_regex(r"[!-~]{1,8}( [!-~]{1,8}){0,3}", fullmatch=True)), max_size=12
)


def made(events: list[tuple[str, str]]) -> Registers:
    registers = Registers()
    for register, event in events:
        registers.extend(register, event)
    return registers


def test_a_register_is_the_chain_of_hashes_that_it_is_said_to_be() -> None:
    registers = made([("runtime", "one"), ("runtime", "two words")])
    value = bytes(48)
    for event in (b"one", b"two words"):
        value = hashlib.sha384(value + hashlib.sha384(event).digest()).digest()
    assert registers.values() == {"configuration": bytes(48), "sandbox": bytes(48), "runtime": value}
    assert registers.log == b"runtime one\nruntime two words\n"


@settings(derandomize=True, database=None, deadline=None, max_examples=80)
@given(events=EVENTS)
def test_replaying_the_log_gives_the_registers_and_the_events(events: list[tuple[str, str]]) -> None:
    registers = made(events)
    assert replay(registers.log) == registers.values()
    assert read(registers.log) == events


@settings(derandomize=True, database=None, deadline=None, max_examples=80)
@given(first=EVENTS, second=EVENTS)
def test_two_histories_with_the_same_registers_are_the_same_register_by_register(
    first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    same = all([event for event in first if event[0] == name] == [e for e in second if e[0] == name] for name in NAMES)
    assert (made(first).values() == made(second).values()) == same


def test_what_was_read_cannot_change_a_register() -> None:
    registers = made([("runtime", "one")])
    registers.values()["runtime"] = bytes(48)
    assert registers.values()["runtime"] != bytes(48)


@pytest.mark.parametrize("event", ["", " ", "a  b", " a", "a ", "a\nb", "a\tb", "\u00e9", "x" * 513])
def test_an_event_is_one_line_of_words(event: str) -> None:
    registers = Registers()
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        registers.extend("runtime", event)
    assert registers.log == b""


def test_an_unknown_register_is_named() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'runtime'"):
        Registers().extend("runtme", "x")


def test_a_full_log_takes_nothing_more_and_stays_readable() -> None:
    registers = Registers()
    event = "x" * 512
    line = len(f"runtime {event}\n")
    for _ in range(LARGEST_LOG // line):
        registers.extend("runtime", event)
    with pytest.raises(StateError, match="full"):
        registers.extend("runtime", event)
    assert len(registers.log) == LARGEST_LOG // line * line
    assert replay(registers.log) == registers.values()


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(data=st.binary(max_size=60))
def test_bytes_that_are_no_log_are_refused_and_others_read_back(data: bytes) -> None:
    try:
        events = read(data)
    except ConfigurationError:
        return
    assert made(events).log == data
