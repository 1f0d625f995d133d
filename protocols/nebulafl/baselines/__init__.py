"""What NebulaFL is measured against: methods as states with one interface, their coordinator, and their actors."""
