"""What NebulaFL is measured against: decision rules and aggregation arithmetic, one method a file."""
