"""The most frequent words of many devices, out of an open domain."""
