"""Data of parties, from files and named data sets to aligned rows; stands on `learning` and `secure_aggregation`."""
