"""Rating and image data sets: loaders for their published forms, a generator, and a checked download."""

from odp.datasets.catalogue import catalogue_keys, numbered_by
from odp.datasets.drifting import Week, drifting_ratings
from odp.datasets.fetch import DATASETS, DatasetSource, fetch
from odp.datasets.item_features import auto_features, has_item_features, item_features, text_columns
from odp.datasets.item_texts import ItemTexts
from odp.datasets.mnist import Images, load_mnist
from odp.datasets.monthly import Month, monthly_ratings
from odp.datasets.rating_model import RatingModel, synthetic_ratings
from odp.datasets.ratings import Ratings, Split, merge
from odp.datasets.registry import load, load_split
from odp.datasets.splitting import permutation_split, random_split, time_split
from odp.datasets.synthetic import synthetic_movielens

__all__ = [
    "DATASETS",
    "DatasetSource",
    "Images",
    "ItemTexts",
    "Month",
    "RatingModel",
    "Ratings",
    "Split",
    "Week",
    "auto_features",
    "catalogue_keys",
    "drifting_ratings",
    "fetch",
    "has_item_features",
    "item_features",
    "load",
    "load_mnist",
    "load_split",
    "merge",
    "monthly_ratings",
    "numbered_by",
    "permutation_split",
    "random_split",
    "synthetic_movielens",
    "synthetic_ratings",
    "text_columns",
    "time_split",
]
