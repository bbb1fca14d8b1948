"""The control room: a web page on which a developer watches tasks, budgets and the log of one server."""
