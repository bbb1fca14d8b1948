"""The enclaves of a tree as their hosts see them: the calls that a root and a leaf have besides."""

from __future__ import annotations

from odp.v1 import aggregator_pb2, leaf_pb2
from odp.v1.enclave_pb2 import EnclaveRequest
from trusted_aggregator.host.remote import RemoteAggregator


class RemoteRoot(RemoteAggregator):
    """The enclave of a root; ``trusted_aggregator.enclave.tree.Tree`` says what each call does and raises."""

    def leaf_nonce(self, leaf: int) -> bytes:
        """For the evidence of a leaf."""
        return self._client.call(EnclaveRequest(leaf_nonce=leaf_pb2.AskLeafNonce(leaf=leaf))).nonce.nonce

    def delegate(
        self, task_sha256: bytes, round: int, leaf: int, greeting: leaf_pb2.GreetResponse
    ) -> leaf_pb2.Delegation:
        """The secrets of an open round for a leaf."""
        given = leaf_pb2.DelegateRound(task_sha256=task_sha256, round=round, leaf=leaf, greeting=greeting)
        return self._client.call(EnclaveRequest(delegate=given)).delegation

    def check_close(self, order: bytes, signature: bytes, contributions: int) -> bool:
        """Whether the leaves have to close their parts."""
        given = leaf_pb2.CheckClose(order=order, signature=signature, contributions=contributions)
        return self._client.call(EnclaveRequest(check_close=given)).told.yes

    def give_part(self, task_sha256: bytes, round: int, piece: bytes) -> bool:
        """Hands in a piece of a leaf's sum; whether that is whole now."""
        given = leaf_pb2.GivePart(task_sha256=task_sha256, round=round, piece=piece)
        return self._client.call(EnclaveRequest(give_part=given)).told.yes


class RemoteLeaf(RemoteAggregator):
    """The enclave of a leaf; ``trusted_aggregator.enclave.leaf_core.LeafCore`` says what each call does and raises."""

    def open_part(self, given: leaf_pb2.Delegation) -> None:
        """Passes it the secrets of a round."""
        self._client.call(EnclaveRequest(open_part=given))

    def close_part(self, task_sha256: bytes, round: int) -> tuple[int, int]:
        """(contributions, pieces of the sealed sum)."""
        given = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        found = self._client.call(EnclaveRequest(close_part=given)).closed_part
        return found.contributions, found.pieces

    def take_part(self, task_sha256: bytes, round: int, number: int) -> bytes:
        """A piece of the sealed sum."""
        given = leaf_pb2.TakePart(task_sha256=task_sha256, round=round, number=number)
        return self._client.call(EnclaveRequest(take_part=given)).piece.data

    def erase_part(self, task_sha256: bytes, round: int) -> None:
        """Erases a part."""
        given = aggregator_pb2.GetRoundRequest(task_sha256=task_sha256, round=round)
        self._client.call(EnclaveRequest(erase_part=given))

    def ledger(self, task_sha256: bytes) -> tuple[bytes, bytes] | None:
        """None: the root has it."""
        return None
