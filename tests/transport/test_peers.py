"""The address that limits count for a caller."""

from __future__ import annotations

import pytest

from odp.transport.fairness import address_of, peer_name


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50051", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:50051", "2001:db8::/64"),
        ("ipv6:[2001:db8:0:0:ffff::7]:50051", "2001:db8::/64"),
        ("ipv6:%5Bfe80::7%25eth0%5D:50051", "fe80::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:50051", "192.0.2.7"),
        ("ipv6:%5B::1%5D:50051", "::1"),
        ("unix:", "unix:"),
        ("ipv6:nonsense", "ipv6:nonsense"),
    ],
)
def test_r390_limits_count_an_ipv6_network_as_one_address(peer: str, address: str) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_a_peer_is_named_as_grpc_names_it(address: str) -> None:
    assert address in peer_name(address, 50051)
