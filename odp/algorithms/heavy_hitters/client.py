"""One device's word, and its cell in a round. Imports numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odp.algorithms.dense.grid import Entries, encode, quantise
from odp.algorithms.heavy_hitters.terms import PREFIXES, ROWS, TEXT, Terms, chosen
from odp.algorithms.seam import Client, LocalData
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float32Array
from odp.protocol.wire.model import Slices


class WordsClient(Client):
    """``odp.algorithms.seam.Client`` of one task; it keeps no local parameters."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def check_model(self, dense: Mapping[str, Float32Array]) -> None:
        """Raises ConfigurationError where the table of prefixes is missing or of another shape."""
        table, shape = dense.get(PREFIXES), (self._terms.prefixes, self._terms.words.length)
        if table is None or table.shape != shape:
            raise ConfigurationError(f"Expected a table {PREFIXES!r} of {list(shape)}")

    def empty(self, round: int) -> bytes:
        """Zeros."""
        self._terms.check_round(round)
        return bytes(self._terms.grid.payload_bytes)

    def contribute(self, slices: Slices, data: LocalData, *, round: int, seed: int) -> tuple[bytes, bytes]:
        """(payload, nothing). A device whose word has no cell in this round contributes zeros.

        Raises:
          ConfigurationError: as ``check_model``.
        """
        terms = self._terms
        terms.check_round(round)
        self.check_model(slices.dense)
        texts = data[ROWS].features.get(TEXT, np.zeros(0, dtype=np.str_))
        numbers, usable = terms.words.numbers(texts)
        seeds = np.array([seed], dtype=np.uint64)
        chosen_rows = chosen(np.zeros(len(texts), dtype=np.int64), usable, seeds)
        cells = terms.cells(numbers[chosen_rows[chosen_rows >= 0]], slices.dense[PREFIXES], round=round)
        cells = cells[cells >= 0]
        entries = Entries(np.zeros(len(cells), dtype=np.int64), cells, np.full(len(cells), terms.grid.clip))
        return encode(terms.grid, quantise(terms.grid, entries, round=round, seeds=seeds)), b""
