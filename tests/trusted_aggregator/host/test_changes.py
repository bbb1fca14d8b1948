"""Turns of the host with its enclave: one after the other, and a pause in which others have theirs."""

from __future__ import annotations

import pytest

from odp.errors import PrivacyError, StateError
from trusted_aggregator.host.changes import Changes


class Storage:
    def apply(self, writes):
        raise StateError("disk full")


@pytest.fixture
def changes():
    return Changes(None, Storage(), failed=lambda error: None)


def test_in_a_pause_others_have_their_turn_and_the_turn_goes_on_after_it(changes):
    with changes.turn():
        with changes.pause(), changes.turn():
            pass
        assert changes._lock.locked()
    assert not changes._lock.locked()


def test_an_error_in_a_pause_is_raised_within_the_turn(changes):
    with changes.turn():
        with pytest.raises(PrivacyError, match="lost"), changes.pause():
            raise PrivacyError("the sum is lost")
        assert changes._lock.locked()


def test_what_could_not_be_stored_in_a_pause_ends_the_turn(changes):
    def waiting():
        with changes.pause():
            with pytest.raises(StateError), changes.turn():
                changes.store([])
            raise PrivacyError("the sum is lost")

    with changes.turn():
        with pytest.raises(StateError, match="disk full"):
            waiting()
        assert changes._lock.locked()
