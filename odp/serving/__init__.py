"""Top items of a large catalogue on a device: rows of int8 in a file, an exact scan, updates by difference."""

from odp.serving.difference import apply, difference, update_file
from odp.serving.index_file import open_index, save_index
from odp.serving.item_index import ItemIndex
from odp.serving.ranking import IndexedModel

__all__ = ["IndexedModel", "ItemIndex", "apply", "difference", "open_index", "save_index", "update_file"]
