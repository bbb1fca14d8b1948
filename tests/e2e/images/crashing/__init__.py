"""Enclaves that end themselves at one exact step: images of their own, measured as such, for tests alone."""
