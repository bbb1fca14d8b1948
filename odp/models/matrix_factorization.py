"""Matrix factorization with biases: the shape of the model, not its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, cast

import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.models.item_features import ItemFeatures, grouped_item_features, item_features_sha256
from odp.models.warm_start import WarmStart, checked_keys
from odp.protocol.catalogues.catalogue import Catalogue

if TYPE_CHECKING:
    from odp.models.item_features import Float32Array
    from odp.v1 import common_pb2


@_validate.strict_keywords
@dataclass(frozen=True)
class MatrixFactorization:
    """Rating of item j by user i = centre + bias of i + bias of j + <row of i, row of j>.

    User biases and rows are local parameters: each device solves for its own, and they never leave it.

    Attributes:
      items: number of items; ids are 0 .. items - 1.
      rank: width of the rows, up to 64; 0 is a model of biases only. The first two columns and one per public feature
        can do without a factor round.
      item_features: public features of the items [items, p], such as genre flags, or several such matrices by name, as
        of ``odp.datasets.auto_features``; p up to 1024 in all; None for none. They stay with the server, which
        estimates from them what noise hides, and from the releases how much each named group tells. Kept as a float32
        copy.
      start: items of an earlier model, which become a further group of ``item_features``; needs ``item_keys`` or
        ``catalogue``. The model keeps the columns alone.
      item_keys: keys of the items for the start, distinct, in the order of the items' numbers.
      catalogue: the version of the population's catalogue that these items are of; devices then know items by their
        keys. None: by their numbers.
      features_sha256: hash of that matrix, for equality and for the task definition; empty without features.

    Raises:
      ConfigurationError: a number is out of range, or the features do not fit the items or are not finite; the
        catalogue has another number of items, or its version was withdrawn.
    """

    items: int
    rank: int = 0
    item_features: npt.ArrayLike | Mapping[str, npt.ArrayLike] | ItemFeatures | None = field(
        default=None, repr=False, compare=False
    )
    start: InitVar[WarmStart | None] = None
    item_keys: InitVar[Sequence[str] | None] = None
    catalogue: Catalogue | None = field(default=None, repr=False)
    features_sha256: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self, start: WarmStart | None, item_keys: Sequence[str] | None) -> None:
        """Checks the ranges."""
        _validate.integer(items=self.items, low=1, high=2**31 - 1)
        _validate.integer(rank=self.rank, low=0, high=64)
        if self.catalogue is not None:
            self._check_catalogue(self.catalogue)
            if item_keys is not None:
                raise ConfigurationError("Expected item_keys or catalogue, not both: the catalogue has the keys")
            item_keys = None if start is None else self.catalogue.keys
        if start is not None and not isinstance(start, WarmStart):
            raise ConfigurationError(
                f"Expected start to be an odp.items.WarmStart (got {type(start).__name__}): "
                "odp.items.WarmStart.load reads a file"
            )
        if (start is None) != (item_keys is None):
            raise ConfigurationError("Expected start and item_keys together: keys say which items are the start's")
        if self.item_features is None and start is None:
            return
        features = None if self.item_features is None else grouped_item_features(self.items, self.item_features)
        if start is not None and item_keys is not None:
            item_keys = checked_keys(item_keys, name="item_keys")
            if len(item_keys) != self.items:
                raise ConfigurationError(f"Expected item_keys for {self.items} items (got {len(item_keys)})")
            matrix = start.columns(item_keys, None if features is None else features.matrix)
            before = () if features is None else features.groups
            new = ("start", matrix.shape[1] - sum(width for _, width in before))
            features = ItemFeatures(matrix, (*before, new) if new[1] else before)
        if features is not None:
            # One group is a matrix, as it was before there were several.
            object.__setattr__(self, "item_features", features if len(features.groups) > 1 else features.matrix)
            object.__setattr__(self, "features_sha256", item_features_sha256(features.matrix))

    @property
    def grouped_features(self) -> ItemFeatures | None:
        """``item_features`` as checked, with their groups, or None."""
        if self.item_features is None:
            return None
        if isinstance(self.item_features, ItemFeatures):
            return self.item_features
        matrix = cast("Float32Array", self.item_features)
        return ItemFeatures(matrix, (("features", matrix.shape[1]),))

    def _check_catalogue(self, catalogue: Catalogue) -> None:
        if not isinstance(catalogue, Catalogue):
            raise ConfigurationError(
                f"Expected catalogue to be an odp.items.Catalogue, got a {type(catalogue).__name__}"
            )
        catalogue.require_items(self.items)

    @property
    def features(self) -> Float32Array | None:
        """The matrix of all groups: read-only float32 [items, p], or None."""
        return None if self.grouped_features is None else self.grouped_features.matrix

    @property
    def public_matrix(self) -> Float32Array | None:
        """``features``, which the definition names by their hash."""
        return self.features

    def write(self, definition: common_pb2.TaskDefinition) -> None:
        """Writes itself into a definition."""
        definition.model.CopyFrom(self.to_proto())

    def to_proto(self) -> common_pb2.MatrixFactorizationModel:
        """The message of a task definition."""
        from odp.v1 import common_pb2

        widths = None if self.grouped_features is None else self.grouped_features.widths
        return common_pb2.MatrixFactorizationModel(
            items=self.items,
            rank=self.rank,
            item_features_sha256=self.features_sha256,
            item_features_width=0 if self.features is None else self.features.shape[1],
            catalogue=None if self.catalogue is None else self.catalogue.to_proto(),
            item_feature_groups=() if widths is None or len(widths) == 1 else widths,
        )
