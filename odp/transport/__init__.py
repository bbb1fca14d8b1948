"""What every program shares to run as a process: its state folder, logs, TLS, channels, service scaffolding, database."""
