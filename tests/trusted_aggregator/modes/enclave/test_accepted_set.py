"""What a round remembers of its contributions: exactly what a set and a dictionary would."""

from __future__ import annotations

import hashlib
import random

import pytest

from trusted_aggregator.modes.enclave import accepted_set
from trusted_aggregator.modes.enclave.accepted_set import AcceptedSet


def tags(held):
    """What is kept of the pseudonyms."""
    return {
        row.tobytes() for row in held._column(accepted_set._PAIR + accepted_set._PLACE, accepted_set._RECORD, len(held))
    }


def _value(*names):
    return hashlib.sha256(repr(names).encode()).digest()


def _hash(pairs):
    return hashlib.sha256(b"".join(sorted(pairs))).digest()


@pytest.mark.parametrize("values", [50, 3000])
def test_it_answers_as_sets_do_while_its_tables_grow(values):
    chosen = random.Random(values)
    held, ids, pseudonyms, pairs = AcceptedSet(), set(), set(), []
    for number in range(5000):
        one, other = _value("id", chosen.randrange(values)), _value("pseudonym", chosen.randrange(values))
        known = one in ids or other in pseudonyms
        assert held.holds(one, other) is known
        assert held.add(one, other, _value("payload", number)) is not known
        if not known:
            ids.add(one)
            pseudonyms.add(other)
            pairs.append(one + _value("payload", number))
    assert len(held) == len(pairs) == len(tags(held))
    assert held.sha256() == _hash(pairs)


def test_the_hash_of_the_set_is_that_of_the_sorted_pairs_whatever_their_order():
    rows = [(_value("id", number), _value("pseudonym", number), _value(number)) for number in range(300)]
    # Bytes that a comparison of strings could take for their ends.
    rows += [(bytes(31) + bytes([number]), bytes([number]) + bytes(31), bytes(32)) for number in range(3)]
    rows += [(b"a" + bytes(31), bytes([9]) * 32, bytes(32)), (b"a" + bytes(30) + b"b", bytes([8]) * 32, bytes(32))]
    first, second = AcceptedSet(), AcceptedSet()
    for row in rows:
        assert first.add(*row)
    for row in reversed(rows):
        assert second.add(*row)
    assert first.sha256() == second.sha256() == _hash([one + digest for one, _, digest in rows])
    assert AcceptedSet().sha256() == hashlib.sha256(b"").digest()


def test_hashes_that_all_share_one_place_only_make_it_slower(monkeypatch):
    last = bytes([255]) * 8
    monkeypatch.setattr(AcceptedSet, "_hashes", lambda _, one, other: (last, last + other[:8]))
    monkeypatch.setattr(accepted_set, "_FEWEST_BITS", 2)
    monkeypatch.setattr(accepted_set, "_TAIL", 64)
    held = AcceptedSet()
    rows = [(_value("id", number), _value("pseudonym", number), bytes(32)) for number in range(40)]
    added = [held.add(*row) for row in rows]
    assert all(added)
    assert not any(held.add(*row) for row in rows)
    assert not held.holds(_value("another"), _value("another"))


def test_a_contribution_takes_little_memory():
    held = AcceptedSet()
    for number in range(20_000):
        held.add(_value("id", number), _value("pseudonym", number), bytes(32))
    tables = sum(4 * len(table._places) for table in (held._ids, held._pseudonyms))
    assert (sum(map(len, held._blocks)) + tables) / 20_000 < 130


def test_two_rounds_keep_one_pseudonym_as_different_values():
    first, second = AcceptedSet(), AcceptedSet()
    for held in (first, second):
        held.add(_value("id"), _value("pseudonym"), bytes(32))
    assert not tags(first) & tags(second)
