"""The operator's token: what a caller shows to submit and watch tasks."""

from __future__ import annotations

import hmac

import grpc

from odp.transport.service import Unauthenticated

_BEARER = "Bearer "


class OperatorToken:
    """A server's token; ``name`` is the file of its state folder that holds it."""

    def __init__(self, token: str, name: str) -> None:
        self._expected, self._name = token.encode(), name

    def require(self, context: grpc.ServicerContext) -> None:
        """Raises Unauthenticated where the caller did not show the token (``authorization: Bearer TOKEN``)."""
        if not hmac.compare_digest(_bearer(context), self._expected):
            raise Unauthenticated(
                f"this call needs the operator's token; it is in the file {self._name} of the server's state folder"
            )


def _bearer(context: grpc.ServicerContext) -> bytes:
    for name, value in context.invocation_metadata():
        if name == "authorization" and isinstance(value, str) and value.startswith(_BEARER):
            return value.removeprefix(_BEARER).encode()
    return b""
