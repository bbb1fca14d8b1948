"""The revisions of the server's schema, run by Alembic where a store is older than the program."""
