"""The command line: one module per group of commands; every heavy import happens inside a command."""
