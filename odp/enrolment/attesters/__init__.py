"""Attesters: how a device shows that it is one, and how an issuer of tokens checks that."""
