"""Columns of numbers from texts: hashed words and parts of words, reduced to what several items share.

No rating is read and nothing is learned from labels, so the columns are public where the texts are.

1. A text is folded (NFKC, lower case), loses a release year at its end, and is cut into words. Its parts are words,
   pairs of neighbouring words, and runs of 3 to 5 letters of a word with its ends marked.
2. A keyed hash (BLAKE2b), the same on every machine and in every version, gives each part one of 2^18 columns.
3. Counts become 1 + log(count), times the log of (items / items that have the part). What a single item has tells
   nothing of others and is left out. Words and letters count alike: each kind has norm sqrt(1/2) in a row.
4. A truncated singular value decomposition keeps the strongest directions.

Sources: Weinberger et al. 2009 (feature hashing); Bojanowski et al. 2017 (letters of words); Halko, Martinsson, Tropp
2011 (randomized decomposition).
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import DataError
from odp.numerics.arrays import Float64Array

#: Columns that texts become, unless told otherwise.
TEXT_COLUMNS = 32
MOST_TEXT_COLUMNS = 512
#: Characters of a text that count; what follows is left out.
MOST_CHARACTERS = 20_000

_HASHED_BITS = 18
_KEY = b"odp-text-1"
_WORDS, _LETTERS = 0, 1
# Without the spaces around: a pattern for these takes the square of their number.
_YEAR = re.compile(r"\(\d{4}\)$")
_WORD = re.compile(r"[^\W_]+")
_RUNS = (3, 4, 5)
_OVERSAMPLED = 10
_ITERATIONS = 6
_SEED = 1
# Directions of less than this share of the largest singular value are rounding errors.
_SMALLEST = 1e-6


def text_columns(texts: Sequence[str], *, columns: int = TEXT_COLUMNS) -> npt.NDArray[np.float32]:
    """At most ``columns`` numbers per text, float32 [n, q], the strongest direction first; rows of norm at most 1.

    A text that shares no part with another gets zeros. q is 0 where no two texts have anything in common.

    Args:
      texts: one per item; empty ones are allowed. Characters after the first 20,000 are left out.
      columns: from 1 to 512.

    Raises:
      ConfigurationError: ``columns`` is out of range.
      DataError: an entry is no text.
    """
    from scipy import sparse

    _validate.integer(columns=columns, low=1, high=MOST_TEXT_COLUMNS)
    matrix = sparse.hstack([_weighted(counts) for counts in _counted(texts)], format="csr")
    if not matrix.nnz:
        return np.zeros((len(texts), 0), dtype=np.float32)
    return _strongest(matrix, columns).astype(np.float32)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """(kind, part) of a text, with repetitions."""
    undated = _YEAR.sub("", text[:MOST_CHARACTERS].rstrip())
    # Folding makes up to 18 characters of one.
    folded = unicodedata.normalize("NFKC", undated).casefold()[:MOST_CHARACTERS]
    words = _WORD.findall(folded)
    for word in words:
        yield _WORDS, word
        marked = f"<{word}>"
        for length in _RUNS:
            for place in range(len(marked) - length + 1):
                yield _LETTERS, marked[place : place + length]
    for first_word, other in itertools.pairwise(words):
        yield _WORDS, f"{first_word} {other}"


def _column(kind: int, part: str) -> int:
    # A lone surrogate is no UTF-8, but a part like any other.
    content = f"{kind}:{part}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, key=_KEY, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _HASHED_BITS)


def _counted(texts: Sequence[str]) -> list[Any]:
    """Counts of parts, a sparse matrix [n, 2^18] for each kind."""
    from scipy import sparse

    column_of: dict[tuple[int, str], int] = {}
    entries: list[list[tuple[int, int, int]]] = [[], []]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"Expected a text for each item (got a {type(text).__name__} for item {row})")
        for part, count in Counter(_parts(text)).items():
            if part not in column_of:
                column_of[part] = _column(*part)
            entries[part[0]].append((row, column_of[part], count))
    matrices = []
    for triples in entries:
        rows, columns, counts = np.array(triples, dtype=np.int64).reshape(-1, 3).T
        shape = (len(texts), 2**_HASHED_BITS)
        matrices.append(sparse.csr_matrix((counts.astype(np.float64), (rows, columns)), shape=shape))
    return matrices


def _weighted(counts: Any) -> Any:
    """Columns of parts that several items have but not all, weighted, with rows of norm sqrt(1/2) or 0."""
    from scipy import sparse

    items = counts.shape[0]
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    shared = np.flatnonzero((having > 1) & (having < items))
    weighted = counts[:, shared]
    weighted.data = 1.0 + np.log(weighted.data)
    weighted = weighted @ sparse.diags(np.log(items / having[shared]))
    norms = np.sqrt(2.0 * np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return sparse.diags(1.0 / np.where(norms > 0, norms, 1.0)) @ weighted


def _strongest(matrix: Any, columns: int) -> Float64Array:
    """Left singular vectors times singular values [n, q] by subspace iteration from a public start."""
    width = min(columns + _OVERSAMPLED, *matrix.shape)
    basis = matrix @ np.random.default_rng(_SEED).normal(size=(matrix.shape[1], width))
    for _ in range(_ITERATIONS):
        basis = matrix @ (matrix.T @ np.linalg.qr(basis)[0])
    basis = np.linalg.qr(basis)[0]
    left, sizes, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    rank = min(columns, int((sizes > _SMALLEST * sizes[0]).sum()))
    return np.asarray((basis @ left[:, :rank]) * sizes[:rank])
