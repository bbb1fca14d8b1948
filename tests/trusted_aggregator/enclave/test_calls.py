"""The list of calls, the messages that carry them and what enclaves serve are the same."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from trees import TreeWorld

from distributor.program import DistributorCalls
from odp.trust.enclave.calls import Call, Calls
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1.aggregator_enclave_pb2 import (
    AskNonce,
    DrawnNonce,
)
from odp.v1.enclave_pb2 import EnclaveReply, EnclaveRequest, Ping
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.enclave.core import AggregatorCore
from trusted_aggregator.enclave.leaf_core import LeafCore
from trusted_aggregator.enclave.process import leaf_routes, routes

#: Of every enclave, or of its start.
APART = {"start", "records", "contributions", "take_over", "reseal", "ping"}
#: Methods, since contributions are encoded by hand.
BY_HAND = {"submit", "sign_refusal"}


def _listed(kind: type[Calls]) -> set[str]:
    return {name for name, call in vars(kind).items() if isinstance(call, Call)}


def _fields(message: type[Message], union: str) -> dict[str, tuple[int, str]]:
    return {
        field.name: (field.number, field.message_type.full_name)
        for field in message.DESCRIPTOR.oneofs_by_name[union].fields
        if field.message_type is not None
    }


def test_every_request_is_listed_once() -> None:
    assert _listed(AggregatorCalls) | BY_HAND | APART == {*_fields(AggregatorCalls.interface.request, "call")}
    assert _listed(DistributorCalls) | {"start", "ping", "chunk"} == {
        *_fields(DistributorCalls.interface.request, "call")
    }


@pytest.mark.parametrize("calls", [AggregatorCalls, DistributorCalls])
def test_enclaves_share_the_fields_that_every_enclave_has(calls: type[Calls]) -> None:
    """The frames of a start and of signs of life are read without knowing whose enclave it is."""
    assert _fields(EnclaveRequest, "call").items() <= _fields(calls.interface.request, "call").items()
    assert _fields(EnclaveReply, "answer").items() <= _fields(calls.interface.reply, "answer").items()


@pytest.mark.parametrize("calls", [AggregatorCalls, DistributorCalls])
def test_no_two_answers_have_the_same_message(calls: type[Calls]) -> None:
    """A dispatcher finds the field of an answer by its message."""
    names = [message for _, message in _fields(calls.interface.reply, "answer").values()]
    assert len(set(names)) == len(names)


def test_what_a_host_calls_is_what_a_root_and_its_leaves_serve(tmp_path) -> None:
    tree = TreeWorld(EmulatedPlatform.open(tmp_path), "tree", minimum=3)
    root, leaf = set(routes(AggregatorCore(tree.core.state))), set(leaf_routes(LeafCore(tree.leaves[0].identity)))
    assert root | leaf == _listed(AggregatorCalls) | BY_HAND
    assert root & leaf == BY_HAND | {"evidence", "sealed_length", "rounds", "ask_nonce"}
    plain = {"leaf_nonce", "delegate", "check_close", "give_part"}
    assert plain <= root, "what only the root of a tree has"


def test_a_call_of_another_message_than_its_field_has_is_refused_where_it_is_listed() -> None:
    for name, asked in (("ping", AskNonce), ("unheard", Ping)):
        with pytest.raises((TypeError, RuntimeError)):
            type("Wrong", (Calls,), {name: Call(asked, DrawnNonce)})
