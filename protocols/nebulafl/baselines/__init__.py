"""What NebulaFL is measured against: methods, the servers that follow them, and their actors."""
