"""The contrast of two colours, for tests of pages and pictures."""

from __future__ import annotations


def contrast(first: str, other: str) -> float:
    """Contrast of two colours "#rrggbb" from 1 to 21, as the Web Content Accessibility Guidelines 2.1 define it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
