"""Rankings of the whole catalogue: Recall@k and NDCG@k with the user's history masked, on held-out items.

==========================  =====================================================================================
protocol                    what is held out
==========================  =====================================================================================
weak generalisation         items of users who took part in training (``simulate`` on a Split)
strong generalisation       whole users; each one's row is solved on 80 % of its items, the rest are its targets
==========================  =====================================================================================

Recall@k of a user is hits among the first k / number of targets; ``capped`` divides by min(k, targets) instead, as
studies of strong generalisation do. NDCG@k has gain 1 per hit and discount 1 / log2(place + 1). Figures are means over
users with at least one target. Equal scores rank by item number.

Sources: He et al. 2020 (LightGCN) for the weak protocol, Liang et al. 2018 (arXiv 1802.05814) for the strong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.crypto.keyed_hash import key_of, keyed_hash
from odp.datasets.ratings import Ratings
from odp.errors import DataError
from odp.numerics.arrays import Float32Array, Float64Array, Int64Array

_BLOCK = 256  # users whose scores are in memory at once: 40 MB for 40,000 items
_GROUP = 64

Scores = Callable[[Int64Array], Float32Array]


@dataclass(frozen=True)
class Ranking:
    """Mean Recall@k and NDCG@k over ``users`` users, by cutoff k.

    ``recall_by_user`` is each one's Recall at the first cutoff, float64 [users].
    """

    users: int
    recall: dict[int, float]
    ndcg: dict[int, float]
    recall_by_user: Float64Array | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, object]:
        """A JSON-able value: keys such as "recall@20"."""
        result: dict[str, object] = {"users": self.users}
        for name, values in (("recall", self.recall), ("ndcg", self.ndcg)):
            result |= {f"{name}@{cutoff}": value for cutoff, value in values.items()}
        return result


def evaluate(
    scores: Scores, history: Ratings, targets: Ratings, *, cutoffs: tuple[int, ...] = (20,), capped: bool = False
) -> Ranking:
    """Ranks every item outside of each user's history.

    Args:
      scores: from users int64 [b] to scores float32 [b, n_items]; asked for in blocks.
      history: items that are known of each user, and masked.
      targets: the held-out items of the same users.
      cutoffs: values of k.
      capped: see the module.

    Raises:
      DataError: the two data sets have different sizes, or there is no target.
      ConfigurationError: a cutoff is not positive or beyond the catalogue.
    """
    if (history.n_users, history.n_items) != (targets.n_users, targets.n_items):
        raise DataError(f"Expected history and targets of {targets.name!r} to have the same users and items")
    for cutoff in cutoffs:
        _validate.integer(low=1, high=targets.n_items, cutoff=cutoff)
    users = np.flatnonzero(targets.counts())
    if not len(users):
        raise DataError(f"the data set {targets.name!r} has no held-out items to rank")
    most = max(cutoffs)
    discount = 1.0 / np.log2(np.arange(2, most + 2))
    ideal = np.concatenate(([0.0], np.cumsum(discount)))
    recall, ndcg = dict.fromkeys(cutoffs, 0.0), dict.fromkeys(cutoffs, 0.0)
    recall_by_user = np.empty(len(users))
    for start in range(0, len(users), _BLOCK):
        block = users[start : start + _BLOCK]
        hits = _hits(scores(block), history.select_users(block), targets.select_users(block), most)
        wanted = targets.counts()[block]
        for cutoff in cutoffs:
            reachable = np.minimum(wanted, cutoff)
            block_hits = hits[:, :cutoff]
            of_block = block_hits.sum(axis=1) / (reachable if capped else wanted)
            if cutoff == cutoffs[0]:
                recall_by_user[start : start + len(block)] = of_block
            recall[cutoff] += float(of_block.sum())
            ndcg[cutoff] += float(((block_hits @ discount[:cutoff]) / ideal[reachable]).sum())
    return Ranking(
        users=len(users),
        recall={cutoff: value / len(users) for cutoff, value in recall.items()},
        ndcg={cutoff: value / len(users) for cutoff, value in ndcg.items()},
        recall_by_user=recall_by_user,
    )


def found_targets(scores: Scores, history: Ratings, targets: Ratings, *, cutoff: int = 20) -> npt.NDArray[np.bool_]:
    """Whether each held-out item is among its user's first ``cutoff``: bool [targets.n_ratings].

    Arguments and errors: as of :func:`evaluate`.
    """
    if (history.n_users, history.n_items) != (targets.n_users, targets.n_items):
        raise DataError(f"Expected history and targets of {targets.name!r} to have the same users and items")
    _validate.integer(low=1, high=targets.n_items, cutoff=cutoff)
    hits = np.zeros(targets.n_ratings, dtype=np.bool_)
    for start in range(0, targets.n_users, _BLOCK):
        users = np.arange(start, min(start + _BLOCK, targets.n_users))
        here = slice(int(targets.offsets[users[0]]), int(targets.offsets[users[-1] + 1]))
        block_targets = targets.select_users(users)
        hits[here] = np.isin(
            _keys(block_targets), _ranked(scores(users), history.select_users(users), block_targets, cutoff)
        )
    return hits


@dataclass(frozen=True, eq=False)
class StrongSplit:
    """Users for training, and held-out users whose items are cut into ``history`` and ``targets``."""

    train: Ratings
    history: Ratings
    targets: Ratings


def strong_split(ratings: Ratings, *, held_out: int, share: float = 0.8, seed: int = 1234) -> StrongSplit:
    """Holds ``held_out`` random users out; a random ``share`` of each one's items, rounded up, is its history.

    Raises:
      DataError: fewer than one user would be left for training.
      ConfigurationError: a number is out of range.
    """
    _validate.integer(low=1, high=2**31, held_out=held_out)
    _validate.within(low=0.0, high=1.0, share=share)
    if held_out >= ratings.n_users:
        raise DataError(f"Expected held_out={held_out} to be below the number of users, {ratings.n_users}")
    # By who the users are, and not by what anybody rated: a user without data takes the place that it had with them.
    order = np.argsort(keyed_hash(key_of("held-out users", seed), ratings.user_keys), kind="stable")
    chosen = ratings.select_users(np.sort(order[:held_out]))
    hashes = keyed_hash(
        key_of("targets of held-out users", seed), chosen.user_keys[chosen.users()], chosen.item_keys[chosen.items]
    )
    shuffled = np.lexsort((hashes, chosen.users()))
    place = np.empty(chosen.n_ratings, dtype=np.int64)
    place[shuffled] = np.arange(chosen.n_ratings) - np.repeat(chosen.offsets[:-1], chosen.counts())
    in_history = place < np.ceil(share * np.repeat(chosen.counts(), chosen.counts()))
    return StrongSplit(
        train=ratings.select_users(np.sort(order[held_out:])),
        history=chosen.take(in_history),
        targets=chosen.take(~in_history),
    )


def factor_scores(user_rows: npt.NDArray[np.floating], item_rows: npt.NDArray[np.floating]) -> Scores:
    """Scores <u, v> of rows [n, d] and [m, d]."""
    left, right = user_rows.astype(np.float32), np.ascontiguousarray(item_rows.T, dtype=np.float32)
    return lambda users: np.asarray(left[users] @ right)


def item_scores(values: npt.NDArray[np.floating]) -> Scores:
    """The same score [m] for everyone, such as popularity."""
    row = values.astype(np.float32)
    return lambda users: np.tile(row, (len(users), 1))


def _hits(scores: Float32Array, history: Ratings, targets: Ratings, most: int) -> npt.NDArray[np.bool_]:
    """Whether the item at each of the first ``most`` places is a target, bool [b, most]."""
    return np.isin(_ranked(scores, history, targets, most), _keys(targets))


def _ranked(scores: Float32Array, history: Ratings, targets: Ratings, most: int) -> Int64Array:
    """The first ``most`` items of each user outside of its history, as (user, item) keys [b, most]."""
    scores = np.array(scores, dtype=np.float32)
    # Places that only history is left for hold no hit, since history and targets are disjoint.
    scores[history.users(), history.items] = -np.inf
    return first_places(scores, most) + np.arange(len(scores))[:, None] * np.int64(targets.n_items)


def _keys(ratings: Ratings) -> Int64Array:
    return np.asarray(ratings.users() * np.int64(ratings.n_items) + ratings.items)


def first_places(scores: Float32Array, most: int) -> Int64Array:
    """Items [b, most] of the ``most`` <= n highest of scores [b, n], best first; equal scores by item number."""
    rows, width = scores.shape
    whole = width // _GROUP
    bound = np.full(rows, -np.inf, dtype=scores.dtype)
    if whole > most:
        # At least ``most`` scores reach the ``most``-th largest of the groups' maxima, and few do.
        largest = scores[:, : whole * _GROUP].reshape(rows, _GROUP, whole).max(axis=1)
        bound = np.partition(largest, whole - most, axis=1)[:, whole - most]
    row, item = np.divmod(np.flatnonzero(scores >= bound[:, None]), width)
    order = np.lexsort((item, -scores[row, item], row))
    starts = np.searchsorted(row, np.arange(rows))
    return np.asarray(item[order[starts[:, None] + np.arange(most)]])
