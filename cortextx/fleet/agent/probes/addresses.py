"""Addresses that a probe never connects to (PURE, S3)."""

from __future__ import annotations

import ipaddress

_METADATA = {
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192",
                 "fd20:ce::254", "fd00:ec2::23",
                 "168.63.129.16")
}  # fmt: skip
"""Where clouds tell a machine its secrets."""
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""Networks whose addresses end in an IPv4 address that is meant (NAT64)."""


def refusal(text: str) -> str | None:
    """Why an address, as getaddrinfo gives it, is not connected to, or None."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "not an IP address"
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _TRANSLATED):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and 0xFFFF < int(address) <= 0xFFFFFFFF:
            inner = ipaddress.IPv4Address(int(address))  # the old form ::192.0.2.1
        if inner is not None:
            return refusal(str(inner))
    if address in _METADATA:
        return "a cloud's metadata address"
    if address.is_link_local:
        return "a link-local address"
    if (
        address.is_multicast
        or address.is_unspecified
        or address == ipaddress.ip_address("255.255.255.255")
    ):
        return "an address that no single host has"
    return None
