"""Catalogues of items, and trained items and classes for other programs."""

from __future__ import annotations

from odp.algorithms.dpam.side_prior import side_prior
from odp.algorithms.dpam.warm_start import warm_start
from odp.models.item_files import ItemTable, load_items
from odp.models.side_prior import SidePrior
from odp.models.warm_start import WarmStart
from odp.protocol.catalogues.catalogue import Catalogue
from odp.serving.classifier import Classifier, export_classifier
from odp.serving.export import export_items
from odp.serving.index_file import open_index
from odp.serving.item_index import ItemIndex

__all__ = [
    "Catalogue",
    "Classifier",
    "ItemIndex",
    "ItemTable",
    "SidePrior",
    "WarmStart",
    "export_classifier",
    "export_items",
    "load_items",
    "open_index",
    "side_prior",
    "warm_start",
]
