"""Merkle tree of an append-only log: heads, inclusion and consistency proofs, and how both are verified.

A tree of ``size`` leaves is made of *complete* subtrees, which never change once they are full. They are numbered by
level and place (level 0: leaves) and kept in the order in which they become full, so that appending a leaf appends its
hash and those of the subtrees that it completes. Everything else, a head or a proof of any earlier size, follows from
O(log size) of them::

    level 2          6
    level 1      2       5       9        positions in the store of a tree of 6 leaves
    level 0    0   1   3   4   7   8

The two verifiers trust nothing but the heads that they are given. They raise ``ProofError`` and never anything else.

Source: RFC 9162 section 2.1 (the same tree as RFC 6962); sections named at each function.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence

from odp import _validate
from odp.errors import OdpError

HASH_BYTES = 32
#: Head of a tree without leaves (RFC 9162, 2.1.1).
EMPTY_ROOT = hashlib.sha256(b"").digest()
LARGEST_TREE = 2**48
_LONGEST_PROOF = 64

#: (level, place) -> hash of a complete subtree; its leaves are ``place * 2^level .. (place + 1) * 2^level - 1``.
Nodes = Callable[[int, int], bytes]


class ProofError(OdpError):
    """A proof is not valid."""


def leaf_hash(data: bytes) -> bytes:
    """Hash of a leaf with the content ``data`` (RFC 9162, 2.1.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node (RFC 9162, 2.1.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def position(level: int, place: int) -> int:
    """The position of a complete subtree's hash in the store.

    Its last leaf is number ``m``; before the hashes of that leaf stand those of all earlier leaves: ``2 m`` minus the
    ones of ``m`` in binary.
    """
    last = ((place + 1) << level) - 1
    return 2 * last - last.bit_count() + level


def stored_hashes(size: int) -> int:
    """The number of hashes in the store of a tree of ``size`` leaves."""
    return 2 * size - size.bit_count()


def completed(leaf: bytes, index: int, nodes: Nodes) -> list[bytes]:
    """The hashes that leaf number ``index`` with hash ``leaf`` adds to the store: its own, then those that it
    completes.
    """
    hashes = [leaf]
    level = 0
    while index >> level & 1:
        hashes.append(node_hash(nodes(level, (index >> level) - 1), hashes[-1]))
        level += 1
    return hashes


def root(size: int, nodes: Nodes) -> bytes:
    """Head of the tree of the first ``size`` leaves."""
    return _range_hash(0, size, nodes) if size else EMPTY_ROOT


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Head of the tree with these leaf *hashes*; O(log n) memory."""
    return Frontier().extended(leaves).root()


class Frontier:
    """A tree for appending, reduced to the input of its root: the largest complete subtrees, left to right. Immutable.

    ``hashes`` has one hash per one in the binary form of ``size``.
    """

    def __init__(self, size: int = 0, hashes: Sequence[bytes] = ()) -> None:
        _validate.integer(low=0, high=LARGEST_TREE, size=size)
        if len(hashes) != size.bit_count() or any(len(value) != HASH_BYTES for value in hashes):
            raise ProofError(f"a tree of {size} leaves has {size.bit_count()} complete subtrees of 32 bytes")
        self.size = size
        self.hashes = tuple(hashes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and (self.size, self.hashes) == (other.size, other.hashes)

    def __hash__(self) -> int:
        return hash((self.size, self.hashes))

    def extended(self, leaves: Iterable[bytes]) -> Frontier:
        """The frontier after these leaf hashes."""
        size, hashes = self.size, list(self.hashes)
        for leaf in leaves:
            hashes.append(leaf)
            for _ in range((size ^ (size + 1)).bit_length() - 1):
                right = hashes.pop()
                hashes.append(node_hash(hashes.pop(), right))
            size += 1
        return Frontier(size, hashes)

    def root(self) -> bytes:
        """Head of the tree."""
        return (
            functools.reduce(lambda right, left: node_hash(left, right), reversed(self.hashes))
            if self.size
            else (EMPTY_ROOT)
        )


def inclusion_proof(index: int, size: int, nodes: Nodes) -> list[bytes]:
    """Proof that leaf ``index`` is in the tree of ``size`` leaves (RFC 9162, 2.1.3.1), from the leaf upwards.

    Raises:
        ConfigurationError: there is no such leaf.
    """
    _validate.integer(low=1, high=LARGEST_TREE, size=size)
    _validate.integer(low=0, high=size - 1, index=index)
    low, high, siblings = 0, size, []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            siblings.append((middle, high))
            high = middle
        else:
            siblings.append((low, middle))
            low = middle
    return [_range_hash(start, end, nodes) for start, end in reversed(siblings)]


def consistency_proof(first: int, second: int, nodes: Nodes) -> list[bytes]:
    """Proof that the tree of ``first`` leaves is the beginning of that of ``second`` (RFC 9162, 2.1.4.1).

    Empty where ``first`` is 0 or equals ``second``.

    Raises:
        ConfigurationError: ``first`` is above ``second``.
    """
    _validate.integer(low=0, high=LARGEST_TREE, second=second)
    _validate.integer(low=0, high=second, first=first)
    if first in (0, second):
        return []
    low, high, ranges = 0, second, []
    whole = True
    while first != high:
        middle = low + _split(high - low)
        if first <= middle:
            ranges.append((middle, high))
            high = middle
        else:
            ranges.append((low, middle))
            low, whole = middle, False
    if not whole:
        ranges.append((low, high))
    return [_range_hash(start, end, nodes) for start, end in reversed(ranges)]


def verify_inclusion(*, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Returns if ``proof`` shows that the leaf hash ``leaf`` is number ``index`` under ``root`` (RFC 9162, 2.1.3.2).

    Raises:
        ProofError: it does not.
    """
    _check_hashes(proof)
    if not 0 <= index < size <= LARGEST_TREE:
        raise ProofError(f"there is no leaf {index} in a tree of {size}")
    place, last, node = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise ProofError("the proof is longer than its tree is high")
        if place & 1 or place == last:
            node = node_hash(sibling, node)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        place, last = place >> 1, last >> 1
    if last != 0:
        raise ProofError("the proof is shorter than its tree is high")
    if node != root:
        raise ProofError(f"the proof of leaf {index} leads to another head")


def verify_consistency(
    *, first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Returns if ``proof`` shows that the second tree continues the first (RFC 9162, 2.1.4.2).

    An empty tree is the beginning of every other; its head has to be ``EMPTY_ROOT``.

    Raises:
        ProofError: it does not.
    """
    _check_hashes(proof)
    if not 0 <= first <= second <= LARGEST_TREE:
        raise ProofError(f"a tree of {second} leaves cannot continue one of {first}")
    if first in (0, second):
        if proof:
            raise ProofError("the proof should be empty")
        if first_root != (second_root if first else EMPTY_ROOT):
            raise ProofError(f"two trees of {first} leaves have different heads")
        return
    if not proof:
        raise ProofError("the proof is empty")
    rest = list(proof)
    # Where the first tree is one complete subtree, its head is the first hash of the proof and is left out.
    if first.bit_count() == 1:
        rest.insert(0, first_root)
    place, last = first - 1, second - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = rest[0]
    for sibling in rest[1:]:
        if last == 0:
            raise ProofError("the proof is longer than its tree is high")
        if place & 1 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    if last != 0:
        raise ProofError("the proof is shorter than its tree is high")
    if old != first_root:
        raise ProofError("the proof does not start from the first head")
    if new != second_root:
        raise ProofError("the proof does not lead to the second head")


def _split(size: int) -> int:
    """The largest power of two below ``size``, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def _range_hash(low: int, high: int, nodes: Nodes) -> bytes:
    """Hash of the leaves ``low .. high - 1``, a range that some inner node of a tree stands for."""
    subtrees = []
    while low < high:
        # Ranges of inner nodes start at a multiple of the subtrees that they are made of.
        level = (high - low).bit_length() - 1
        subtrees.append(nodes(level, low >> level))
        low += 1 << level
    return functools.reduce(lambda right, left: node_hash(left, right), reversed(subtrees))


def _check_hashes(proof: Sequence[bytes]) -> None:
    if len(proof) > _LONGEST_PROOF or any(len(value) != HASH_BYTES for value in proof):
        raise ProofError(f"Expected a proof of at most {_LONGEST_PROOF} hashes of {HASH_BYTES} bytes")
