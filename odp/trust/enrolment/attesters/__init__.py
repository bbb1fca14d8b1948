"""Attesters: how a device proves that it is genuine, and how an issuer of tokens checks that."""
