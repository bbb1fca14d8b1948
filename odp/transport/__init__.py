"""What every program shares to run as a process: state folder, logs, TLS, channels, service scaffolding, database."""
