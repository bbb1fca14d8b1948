"""Shared parts of every program: state folder, logs, TLS, channels, service scaffolding, database."""
