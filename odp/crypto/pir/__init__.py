"""Private information retrieval: rows of a public table by private numbers, from servers that do not learn them."""

from odp.crypto.pir.records import WrongRowsError
from odp.crypto.pir.shape import Shape
from odp.crypto.pir.two_server import (
    Database,
    RequestError,
    Secret,
    answer,
    answer_many,
    combine,
    query,
    recover,
    reply_bytes,
    request_bytes,
)

__all__ = [
    "Database",
    "RequestError",
    "Secret",
    "Shape",
    "WrongRowsError",
    "answer",
    "answer_many",
    "combine",
    "query",
    "recover",
    "reply_bytes",
    "request_bytes",
]
