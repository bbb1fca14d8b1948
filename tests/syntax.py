"""Walks over the syntax of the product, for tests that look at all of its modules."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator

#: Where a node has further statements.
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement of a module, wherever it stands, and none of the expressions: a tenth of ``ast.walk``."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BODIES:
            inside = getattr(node, name, None)
            if isinstance(inside, list):  # a lambda has an expression there
                waiting.extend(inside)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Looks for no garbage meanwhile: trees of all modules are a million objects, and none of them is garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
