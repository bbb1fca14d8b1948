"""What a distributor can serve: how large a model, a request for rows of it and the reply may be.

A task beyond these sizes could never run. It is refused when it is made, by the tables that its algorithm declares, and
wherever it is opened; a distributor checks the manifest of each published model by the same function.

=========  =============================  =======================================================================
method     a request                      a reply
=========  =============================  =======================================================================
enclave    4 MiB: 4 bytes for each row    15 MiB: its rows and the dense tables, in one message
all        none                           in pieces; the enclave of the distributor answers for every model that
                                          it holds, so its 15 MiB hold here, too
pir        512 rows (``terms``)           15 MiB as above; then the answer of the two parties is below 32 MiB
=========  =============================  =======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from odp.algorithms.registry import algorithm_for
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import row_bytes
from odp.signed.broadcast.terms import ENCLAVE, method_of
from odp.v1 import common_pb2

#: Largest model, all tables together.
MAX_MODEL_BYTES = 2**30
#: Longest reply to a Select: it travels as one message, whose limit is 16 MiB with room for its framing.
MAX_SELECTED_BYTES = 15 * 2**20
#: Longest list of keys in a request.
MAX_KEYS_BYTES = 4 * 2**20
KEY_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ServedSizes:
    """The sizes of a model's tables.

    Attributes:
      rows, row_bytes: of the keyed table; 0 without one.
      keys: rows that a device asks for; 0 without a keyed table.
      dense_bytes: of all other tables, which every device gets whole.
    """

    rows: int
    row_bytes: int
    keys: int
    dense_bytes: int

    @classmethod
    def of(cls, definition: common_pb2.TaskDefinition) -> ServedSizes:
        """Of the tables that the task's algorithm declares. Raises ConfigurationError as ``algorithm_for``."""
        algorithm = algorithm_for(definition)
        keyed = next((table for table in algorithm.tables if table.keyed), None)
        return cls(
            rows=0 if keyed is None else keyed.rows,
            row_bytes=0 if keyed is None else row_bytes(keyed.width, algorithm.encoding),
            keys=0 if keyed is None else algorithm.rows_per_request or 0,
            dense_bytes=sum(
                table.rows * row_bytes(table.width, "float32") for table in algorithm.tables if not table.keyed
            ),
        )

    def check(self) -> None:
        """Raises ConfigurationError where no distributor takes such a model."""
        model = self.rows * self.row_bytes + self.dense_bytes
        if model > MAX_MODEL_BYTES:
            raise ConfigurationError(
                f"Expected model_bytes={model} to be at most {MAX_MODEL_BYTES} (1 GiB); lower the items or the rank"
            )
        reply = self.keys * self.row_bytes + self.dense_bytes
        if self.rows and reply > MAX_SELECTED_BYTES:
            raise ConfigurationError(
                f"Expected reply_bytes={reply} ({self.keys} rows of {self.row_bytes} bytes, and {self.dense_bytes} of "
                f"dense tables) to be at most {MAX_SELECTED_BYTES} (15 MiB); lower slices_per_device or the rank"
            )


def check_sizes(definition: common_pb2.TaskDefinition) -> None:
    """Returns if devices can get the model of a task, whose other fields were checked.

    Raises:
      ConfigurationError: the model, or a device's request or reply, is beyond what a distributor serves.
    """
    sizes = ServedSizes.of(definition)
    sizes.check()
    request = sizes.keys * KEY_BYTES
    if method_of(definition) == ENCLAVE and request > MAX_KEYS_BYTES:
        raise ConfigurationError(
            f"Expected request_bytes={request} ({sizes.keys} keys of {KEY_BYTES} bytes) to be at most {MAX_KEYS_BYTES} "
            "(4 MiB); lower slices_per_device, or take broadcast.method='all'"
        )
