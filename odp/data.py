"""Data sets, as simulations and tables of users have them."""

from __future__ import annotations

from odp.datasets import Ratings, random_split, synthetic_movielens
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.datasets.texts import UsersTexts, synthetic_words
from odp.models.example_columns import ExampleColumns
from odp.models.example_tables import load_examples
from odp.signed.tables.table import Table

__all__ = [
    "ExampleColumns",
    "ExamplesSplit",
    "Ratings",
    "Table",
    "UsersExamples",
    "UsersTexts",
    "load_examples",
    "random_split",
    "synthetic_movielens",
    "synthetic_words",
]
