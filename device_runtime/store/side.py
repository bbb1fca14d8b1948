"""What a person says of themselves, such as an age group: kept in the device's store, and never sent.

It is local data of a service of its own, which no task can ask for: a task reads ratings, events and examples. The
person sees it in the store's export, and ``odp device erase`` deletes it with everything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from device_runtime.store.store import Store
from odp import _validate
from odp.errors import DataError
from odp.models.side_prior import MOST_ATTRIBUTES, check_said

#: The service whose local data these are.
SERVICE = "odp.about"


def said_of(store: Store) -> dict[str, str]:
    """Categories by attribute, as the person last said them.

    Raises:
      StateError: the store cannot be read.
    """
    data = store.data(SERVICE)
    return {key: (data.get(key) or b"").decode("utf-8", "replace") for key in data.local_keys()}


def say(store: Store, said: Mapping[str, str | None], *, time: float) -> None:
    """Sets categories by attribute, or forgets those that are None: all of them, or none.

    Args:
      store: of the device.
      said: such as ``{"age_group": "25-34"}``.
      time: seconds since the epoch.

    Raises:
      ConfigurationError: an attribute is no name, or a category no text of 1 to 120 printable characters.
      DataError: there would be more than 32 attributes.
    """
    check_said({name: value for name, value in said.items() if value is not None})
    for name in said:
        _validate.identifier(attribute=name)
    with store.transaction():
        after = {**dict.fromkeys(said_of(store), ""), **said}
        if sum(value is not None for value in after.values()) > MOST_ATTRIBUTES:
            raise DataError(f"Expected at most {MOST_ATTRIBUTES} attributes of a person: forget some first")
        store.data(SERVICE).change(
            {name: None if value is None else value.encode() for name, value in said.items()}, time=time
        )
