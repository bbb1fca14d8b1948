"""This machine: files, walls, and what is installed."""
