"""The developer's server: untrusted. Devices check in here; it publishes models, orders rounds and applies releases."""
