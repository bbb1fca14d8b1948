"""The tree: the known answers of Certificate Transparency's test data, and a naive reading of the RFC as reference."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from odp.errors import ConfigurationError
from odp.trust.log import merkle
from odp.trust.log.merkle import (
    EMPTY_ROOT,
    Frontier,
    ProofError,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)

# Leaves, roots and proofs of the test data of google/certificate-transparency (merkletree).
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = {
    (0, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (5, 8): (
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 3): ("fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",),
    (1, 5): (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}
CONSISTENCY = {
    (1, 1): (),
    (1, 8): INCLUSION[0, 8],
    (6, 8): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 5): INCLUSION[1, 5][1:],
}


class Tree:
    """The store of hashes, in memory."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.leaves = [leaf_hash(data) for data in leaves]
        self.store: list[bytes] = []
        for number, leaf in enumerate(self.leaves):
            self.store += merkle.completed(leaf, number, self.node)

    def node(self, level: int, place: int) -> bytes:
        return self.store[merkle.position(level, place)]

    def root(self, size: int) -> bytes:
        return merkle.root(size, self.node)


def naive_root(leaves: Sequence[bytes]) -> bytes:
    """RFC 9162, 2.1.1, as it stands there."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = naive_split(len(leaves))
    return node_hash(naive_root(leaves[:middle]), naive_root(leaves[middle:]))


def naive_split(size: int) -> int:
    middle = 1
    while 2 * middle < size:
        middle *= 2
    return middle


def naive_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """RFC 9162, 2.1.3.1."""
    if len(leaves) == 1:
        return []
    middle = naive_split(len(leaves))
    if index < middle:
        return [*naive_path(index, leaves[:middle]), naive_root(leaves[middle:])]
    return [*naive_path(index - middle, leaves[middle:]), naive_root(leaves[:middle])]


def naive_subproof(first: int, leaves: Sequence[bytes], whole: bool) -> list[bytes]:
    """RFC 9162, 2.1.4.1."""
    if first == len(leaves):
        return [] if whole else [naive_root(leaves)]
    middle = naive_split(len(leaves))
    if first <= middle:
        return [*naive_subproof(first, leaves[:middle], whole), naive_root(leaves[middle:])]
    return [*naive_subproof(first - middle, leaves[middle:], False), naive_root(leaves[:middle])]


def test_roots_and_proofs_are_those_of_the_known_test_data() -> None:
    tree = Tree(LEAVES)
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert [tree.root(size).hex() for size in range(1, 9)] == ROOTS
    for (index, size), expected in INCLUSION.items():
        assert [value.hex() for value in merkle.inclusion_proof(index, size, tree.node)] == list(expected)
    for (first, second), expected in CONSISTENCY.items():
        assert [value.hex() for value in merkle.consistency_proof(first, second, tree.node)] == list(expected)


def test_every_proof_of_every_tree_up_to_70_leaves_is_that_of_a_naive_reading_and_verifies() -> None:
    tree = Tree([bytes([number]) for number in range(70)])
    roots = [naive_root(tree.leaves[:size]) for size in range(71)]
    for size in range(1, 71):
        leaves, root = tree.leaves[:size], roots[size]
        assert tree.root(size) == root == merkle.root_of(leaves)
        for index in range(size):
            proof = merkle.inclusion_proof(index, size, tree.node)
            assert proof == naive_path(index, leaves)
            verify_inclusion(leaf=leaves[index], index=index, size=size, proof=proof, root=root)
        for first in range(1, size + 1):
            proof = merkle.consistency_proof(first, size, tree.node)
            assert proof == naive_subproof(first, leaves, True)
            verify_consistency(first=first, second=size, first_root=roots[first], second_root=root, proof=proof)


def test_the_store_holds_each_complete_subtree_once_where_it_is_looked_for() -> None:
    tree = Tree([bytes([number]) for number in range(70)])
    places = [(level, place) for level in range(7) for place in range(70 >> level)]
    assert sorted(merkle.position(*place) for place in places) == list(range(len(tree.store)))
    assert len(tree.store) == merkle.stored_hashes(70)


def test_a_frontier_gives_the_root_however_the_leaves_came() -> None:
    leaves = [leaf_hash(bytes([number])) for number in range(40)]
    for split in range(41):
        frontier = Frontier().extended(leaves[:split]).extended(leaves[split:])
        assert frontier.root() == naive_root(leaves)
        assert Frontier(frontier.size, frontier.hashes).root() == frontier.root()
    with pytest.raises(ProofError, match="complete subtrees"):
        Frontier(3, [leaves[0]])


@settings(max_examples=300, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_no_other_leaf_index_size_root_or_proof_is_accepted(data: st.DataObject) -> None:
    """Chance of a false alarm: a collision of SHA-256."""
    size = data.draw(st.integers(1, 40))
    tree = Tree([bytes([number]) for number in range(41)])
    index = data.draw(st.integers(0, size - 1))
    right = {
        "leaf": tree.leaves[index],
        "index": index,
        "size": size,
        "proof": merkle.inclusion_proof(index, size, tree.node),
        "root": tree.root(size),
    }
    changed = data.draw(
        st.one_of(
            st.integers(0, 40).filter(lambda n: n != index).map(lambda n: {"leaf": tree.leaves[n]}),
            st.integers(-1, 45).filter(lambda n: n != index).map(lambda n: {"index": n}),
            st.integers(0, 40).filter(lambda n: n != size).map(lambda n: {"root": tree.root(n)}),
            _damaged(right["proof"]).map(lambda proof: {"proof": proof}),
        )
    )
    verify_inclusion(**right)
    with pytest.raises(ProofError):
        verify_inclusion(**{**right, **changed})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_other_tree_or_proof_passes_for_a_continuation(data: st.DataObject) -> None:
    second = data.draw(st.integers(1, 40))
    first = data.draw(st.integers(0, second))
    tree = Tree([bytes([number]) for number in range(41)])
    right = {
        "first": first,
        "second": second,
        "first_root": tree.root(first),
        "second_root": tree.root(second),
        "proof": merkle.consistency_proof(first, second, tree.node),
    }
    other_first = st.integers(0, 40).filter(lambda n: n != first).map(lambda n: {"first_root": tree.root(n)})
    other_second = st.integers(0, 40).filter(lambda n: n != second).map(lambda n: {"second_root": tree.root(n)})
    damaged = _damaged(right["proof"]).map(lambda proof: {"proof": proof})
    # Every tree continues the empty one, so there the second root proves nothing.
    changed = data.draw(st.one_of(other_first, damaged, *([other_second] if first else [])))
    verify_consistency(**right)
    with pytest.raises(ProofError):
        verify_consistency(**{**right, **changed})


def _damaged(proof: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    """The proof with a bit flipped, a hash taken away, added, doubled or cut short."""
    junk = st.binary(min_size=32, max_size=32).map(lambda value: [*proof, value])
    if not proof:
        return junk
    place = st.integers(0, len(proof) - 1)

    def flipped(at: int, bit: int) -> list[bytes]:
        value = bytearray(proof[at])
        value[bit // 8] ^= 1 << bit % 8
        return [*proof[:at], bytes(value), *proof[at + 1 :]]

    return st.one_of(
        junk,
        st.builds(flipped, place, st.integers(0, 255)),
        place.map(lambda at: [*proof[:at], *proof[at + 1 :]]),
        place.map(lambda at: [*proof[:at], proof[at], *proof[at:]]),
        place.map(lambda at: [*proof[:at], proof[at][:31], *proof[at + 1 :]]),
    )


def test_proofs_of_what_is_not_there_are_refused() -> None:
    tree = Tree(LEAVES)
    for index, size in ((8, 8), (-1, 8), (0, 0)):
        with pytest.raises(ConfigurationError):
            merkle.inclusion_proof(index, size, tree.node)
    for first, second in ((9, 8), (-1, 8)):
        with pytest.raises(ConfigurationError):
            merkle.consistency_proof(first, second, tree.node)


def test_an_inner_node_is_no_leaf() -> None:
    """A leaf whose content is two hashes does not have the hash of their parent (second preimage, RFC 9162, 2.1.1)."""
    left, right = (leaf_hash(data) for data in LEAVES[:2])
    assert leaf_hash(left + right) != node_hash(left, right)
    tree = Tree(LEAVES[:4])
    with pytest.raises(ProofError):
        verify_inclusion(leaf=node_hash(left, right), index=0, size=4, proof=[tree.node(1, 1)], root=tree.root(4))


def test_a_proof_of_a_large_tree_reads_few_hashes() -> None:
    reads = itertools.count()

    def node(level: int, place: int) -> bytes:
        next(reads)
        return hashlib.sha256(f"{level} {place}".encode()).digest()

    merkle.inclusion_proof(98_765, 100_000, node)
    merkle.consistency_proof(98_765, 100_000, node)
    assert next(reads) < 100
