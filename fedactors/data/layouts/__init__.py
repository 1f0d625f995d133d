"""Who holds what: vertical, horizontal, graph and relational data, described without their rows."""
