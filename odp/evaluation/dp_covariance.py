"""DP item covariance: the private recommender of McSherry and Mironov (2009), at the level of users.

Three releases, once each: how many of a user's ratings every item has and the sums of these ratings (item means), then
the items' covariance. For the covariance a user sends the outer product of its own vector of length 1: its residuals
around the noisy item means and its own mean, on the items of largest noisy count. The server keeps the eigenvectors of
the noisy sum that stand out of the noise; scaled, they are item rows, and a device solves its own row for them.

It was chosen because it is the best-known private recommender, because its privacy is that of three sums, hence exact
to reproduce, and because it learns from second moments in one shot, where DP-SGD and DPAM take steps: with many users
per item it is hard to beat, with few it falls back to item means.

What differs from the paper: it protects one rating, and scales a user's outer product by the number of its ratings; for
the protection of a whole user the vector has length 1. Its cleaning of the covariance by singular values
is kept. Its second matrix, the noisy counts of pairs, is left out: its noise would be as large again, and the number of
raters of both items is guessed from their noisy counts. Of its two predictors, the one by singular vectors is built.

Guarantee: user level (``zero_out_user``). Counts and sums: ``item_mean_events``. The vector is truncated toward zero
onto a grid, at most 1 long, so its outer product has Frobenius norm at most 1. The triangle is released with noise of
standard deviation s on the diagonal and s / sqrt(2) off it: independent noise s on all entries, symmetrised.

Source: McSherry, Mironov 2009 (Differentially private recommender systems, KDD); Dwork, Talwar, Thakurta, Zhang 2014
(Analyze Gauss) for the Gaussian covariance and its eigenvectors.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from odp import _validate
from odp.datasets.ratings import Ratings, Split
from odp.evaluation.als import products, residuals, solve
from odp.evaluation.baselines import item_means, means_events
from odp.evaluation.noise import RoundedNormals
from odp.evaluation.trials import Outcome, Predictor, Settings, tuned_rmse
from odp.numerics.arrays import Float64Array, Int64Array
from odp.privacy.accounting import mu_for
from odp.privacy.events import GaussianRelease
from odp.privacy.mechanisms.rounded_gaussian import IntegerNoise

_UNITS = 2**12  # grid steps per unit of a vector; sums of products stay below 2^53 for 2^29 users
_USER_BIAS_RIDGE = 5.0
_MOST_RANK = 16
_BLOCK = 4096

#: Settings that are tried: items in the covariance, and the means' part of mu^2.
GRID: tuple[Settings, ...] = tuple(
    {"head": head, "mean_share": share} for head, share in itertools.product((500, 100), (0.2, 0.6, 0.9))
)


@dataclass(frozen=True)
class DpCovariance:
    """Settings.

    Attributes:
      head: items of largest noisy count whose covariance is released; at most all items count.
      mean_share: part of mu^2 for counts and sums; the covariance gets the rest.
      row_ridge: on a user's row, in units of the variance of a rating; 1 by Bayes.
      items_per_user: that count in the item means.
    """

    head: int = 500
    mean_share: float = 0.3
    row_ridge: float = 1.0
    items_per_user: int = 100

    def __post_init__(self) -> None:
        """Raises ConfigurationError for a number out of range."""
        _validate.integer(head=self.head, low=1, high=12_000)
        _validate.integer(items_per_user=self.items_per_user, low=1, high=100_000)
        _validate.within(mean_share=self.mean_share, low=1e-3, high=1.0 - 1e-3)
        _validate.positive(row_ridge=self.row_ridge)


@dataclass(frozen=True)
class DpCovarianceModel:
    """What the releases give.

    Attributes:
      means: of the items, float64 [items].
      rows: of the items, float64 [items, rank]; 0 outside the head. The rank is 0 where noise drowns everything.
      predict: users are solved on their history.
      charges: empty where epsilon is infinite.
    """

    means: Float64Array
    rows: Float64Array
    predict: Predictor
    charges: tuple[GaussianRelease, ...]


def tuned_dp_covariance(split: Split, *, epsilon: float, delta: float, seed: int) -> Outcome:
    """Test RMSE of the best of six settings, each of which spends the whole budget."""

    def made(head: float, mean_share: float) -> Predictor:
        settings = DpCovariance(head=int(head), mean_share=mean_share)
        return dp_covariance(split.train, epsilon=epsilon, delta=delta, seed=seed, settings=settings).predict

    return tuned_rmse(split, GRID, made)


def dp_covariance(
    train: Ratings, *, epsilon: float, delta: float, seed: int, settings: DpCovariance
) -> DpCovarianceModel:
    """Item means and rows from ``train``.

    Raises:
      ConfigurationError: the budget is out of range.
      PrivacyError: too many numbers get noise: the sampler alone uses up delta.
    """
    unit = (train.high - train.low) / 4.5  # public guess of a residual's standard deviation
    head = min(settings.head, train.n_items)
    bound = min(settings.items_per_user, train.n_items)
    events, noise_std = None, 0.0
    charges: tuple[GaussianRelease, ...] = ()
    if epsilon != math.inf:
        mu = mu_for(epsilon=epsilon, delta=delta, coordinates=2 * train.n_items + head * (head + 1) // 2)
        events = means_events(
            mu * math.sqrt(settings.mean_share),
            low=train.low,
            high=train.high,
            n_items=train.n_items,
            max_items_per_user=bound,
        )
        noise_std = 1.0 / (mu * math.sqrt(1.0 - settings.mean_share))
        covariance = GaussianRelease(
            "covariance", sensitivity=1.0, noise_std=noise_std, coordinates=head * (head + 1) // 2
        )
        charges = (*events, covariance)
    noise = RoundedNormals(seed, 0)
    means, counts = item_means(train, events, bound=bound, seed=seed, spread=0.125, noise=noise)
    head_items = np.sort(np.argsort(-counts, kind="stable")[:head])
    released = _noised(_outer_products(_vectors(train, means)[:, head_items]), noise_std, noise)
    head_rows = unit * _rows(released, counts[head_items], train.n_users, noise_std=noise_std)
    rows = np.zeros((train.n_items, head_rows.shape[1]))
    rows[head_items] = head_rows
    features = np.column_stack((means, np.ones(train.n_items), rows))
    strength = np.array([_USER_BIAS_RIDGE, *[settings.row_ridge * unit**2] * rows.shape[1]])

    def predict(history: Ratings, targets: Ratings) -> Float64Array:
        users = solve(residuals(history, 0.0), features, fixed=0, strength=strength)
        return products(users, features, targets)

    return DpCovarianceModel(means, rows, predict, charges)


def _vectors(train: Ratings, means: Float64Array) -> scipy.sparse.csr_matrix:
    """Every user's residuals around item means and its own mean, [users, items]; any length."""
    left = train.values - means[train.items]
    counts = train.counts()
    offsets = np.bincount(train.users(), weights=left, minlength=train.n_users) / np.maximum(counts, 1)
    left = left - np.repeat(offsets, counts)
    return scipy.sparse.csr_matrix((left, train.items, train.offsets), shape=(train.n_users, train.n_items))


def _outer_products(vectors: scipy.sparse.csr_matrix) -> Int64Array:
    """Sum of the outer products of the users' vectors of length 1, in squared grid steps: int64 [head, head]."""
    norms = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())
    scaled = scipy.sparse.diags_array(_UNITS / np.maximum(norms, 1e-300)) @ vectors
    scaled = scaled.tocsr()
    scaled.data = np.trunc(scaled.data)  # can only shorten a vector
    total = np.zeros((scaled.shape[1], scaled.shape[1]))
    for begin in range(0, scaled.shape[0], _BLOCK):
        block = scaled[begin : begin + _BLOCK].toarray()
        total += block.T @ block  # whole numbers below 2^53: exact in any order
    return total.astype(np.int64)


def _noised(exact: Int64Array, noise_std: float, noise: IntegerNoise) -> Float64Array:
    """The released covariance, symmetric."""
    released = exact.astype(np.float64)
    if noise_std:
        size, ratio = len(exact), noise_std * _UNITS**2
        first, second = np.triu_indices(size, 1)
        off_diagonal = noise.sample(ratio / math.sqrt(2.0), len(first)).astype(np.float64)
        released[first, second] += off_diagonal
        released[second, first] += off_diagonal
        released[range(size), range(size)] += noise.sample(ratio, size)
    return released / _UNITS**2


def _rows(released: Float64Array, counts: Float64Array, n_users: int, *, noise_std: float) -> Float64Array:
    """Item rows [head, rank] whose products are the correlation of users' residuals: eigenvectors above the noise.

    The correlation of a pair is its sum over how much its raters' vectors weigh: the raters of both items, guessed as
    if items were chosen independently, over the squared length of a vector.
    """
    users = max(n_users, 1)
    chance = np.minimum(np.maximum(counts, 1.0) / users, 1.0)
    # A vector has as many entries as a user has items of the head, each of about one variance.
    size = max(float(chance.sum()), 1.0)
    scale = np.sqrt(chance * users / size)
    whitened = released / np.outer(scale, scale)
    values, vectors = np.linalg.eigh(whitened)
    # The noise of an entry is divided by the scales, and the largest eigenvalue of a symmetric matrix of such entries
    # is about 2 sqrt(sum of their variances in a row) (Wigner's semicircle, rows of unequal variance).
    inverse = 1.0 / scale**2
    edge = math.sqrt(2.0) * noise_std * math.sqrt(float(inverse.max() * inverse.mean()) * len(counts))
    strongest = np.argsort(-values)[:_MOST_RANK]
    strongest = strongest[values[strongest] > max(edge, 1e-9)]
    # What the noise adds to an eigenvalue that stands out: value + (edge / 2)^2 / value.
    clean = 0.5 * (values[strongest] + np.sqrt(values[strongest] ** 2 - edge**2))
    return vectors[:, strongest] * np.sqrt(clean)
