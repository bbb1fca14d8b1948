"""How the services open their databases: files of SQLite, or one PostgreSQL that may hold them all."""
