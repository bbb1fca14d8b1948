"""A matrix of public item features from what a data set says about its items, for ``item_features=`` of a model.

=============================  =================================================================================
columns                        value
=============================  =================================================================================
one per feature (genre flag)   feature / sqrt(sum of the item's features): rows of norm 1 for flags, or 0
11 knots of the release year   1 at the knot, falling in a straight line to 0 at its neighbours; they add up to 1
=============================  =================================================================================

The year is the "(1995)" at the end of a MovieLens title. There is no column of ones: models have an intercept.

``auto_features`` adds texts, each kind as a group of its own, whose weight the training learns.

Columns of numbers from texts: hashed words and parts of words, reduced to what several items share.

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
from odp.datasets.item_texts import ItemTexts
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.arrays import Float64Array

_YEAR = re.compile(r"\((\d{4})\)\s*$")
# Public and fixed: decades, closer together where most films of MovieLens are from.
_KNOTS = (1920, 1930, 1940, 1950, 1960, 1970, 1980, 1985, 1990, 1995, 2000)
# Below this share of dated titles the years would say which items lack one, not when they are from.
_DATED = 0.5


def item_features(ratings: Ratings) -> npt.NDArray[np.float32]:
    """Features float32 [n_items, p]: the data set's own, scaled by row, and release years where titles end in one.

    No rating is read. An item without a year gets zeros there.

    Raises:
      DataError: the data set has neither features nor years.
    """
    parts = [part for part in (_flags(ratings), _years(ratings)) if part is not None]
    if not parts:
        raise DataError(f"the data set {ratings.name!r} has no public item features: no genres and no years in titles")
    return np.concatenate(parts, axis=1).astype(np.float32)


def auto_features(ratings: Ratings, texts: ItemTexts | None = None) -> dict[str, npt.NDArray[np.float32]]:
    """All public features of a data set as groups float32 [n_items, p] by name, for ``item_features=`` of a model.

    "features" are those of :func:`item_features`, where there are any. "title" and the columns of ``texts`` become 32
    columns each by :func:`text_columns`; a column "title" of ``texts`` stands in for the data set's titles. The
    training estimates how much each group tells, so a group that tells nothing does no harm. Add groups of your own,
    such as embeddings of images: ``auto_features(ratings) | {"image": matrix}``.

    No rating is read.

    Raises:
      DataError: there are no genres, and no texts that several items share words of; or ``texts`` names an item that
        the data set does not have.
    """
    groups = {"features": item_features(ratings)} if has_item_features(ratings) else {}
    named: dict[str, list[str]] = {} if ratings.titles is None else {"title": list(ratings.titles)}
    named |= {} if texts is None else texts.of(ratings)
    for name, column in named.items():
        derived = text_columns(column)
        if derived.shape[1]:
            groups["features of texts" if name == "features" else name] = derived
    if not groups:
        raise DataError(
            f"the data set {ratings.name!r} has no public item features: no genres, and no texts with words in common"
        )
    return groups


def has_item_features(ratings: Ratings) -> bool:
    """Whether :func:`item_features` finds anything."""
    return _flags(ratings) is not None or _years(ratings) is not None


def _flags(ratings: Ratings) -> npt.NDArray[np.float64] | None:
    if ratings.features is None or not ratings.features.shape[1]:
        return None
    features = ratings.features.astype(np.float64)
    norm = np.sqrt(np.abs(features).sum(axis=1, keepdims=True))
    return np.asarray(features / np.where(norm > 0, norm, 1.0))


def _years(ratings: Ratings) -> npt.NDArray[np.float64] | None:
    matches = [_YEAR.search(title) for title in ratings.titles or ()]
    dated = np.array([match is not None for match in matches], dtype=np.bool_)
    if not len(matches) or dated.mean() < _DATED:
        return None
    years = np.array([float(match[1]) if match else 0.0 for match in matches])
    basis = np.stack([np.interp(years, _KNOTS, row) for row in np.eye(len(_KNOTS))], axis=1)
    return np.asarray(np.where(dated[:, None], basis, 0.0))


#: Columns that texts become, unless told otherwise.
TEXT_COLUMNS = 32
MOST_TEXT_COLUMNS = 512
#: Characters of a text that count; what follows is left out.
MOST_CHARACTERS = 20_000

_HASHED_BITS = 18
_KEY = b"odp-text-1"
_WORDS, _LETTERS = 0, 1
# Without the spaces around: a pattern for these takes the square of their number.
_RELEASE_YEAR = re.compile(r"\(\d{4}\)$")
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
    undated = _RELEASE_YEAR.sub("", text[:MOST_CHARACTERS].rstrip())
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
