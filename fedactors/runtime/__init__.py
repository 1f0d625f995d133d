"""What an await means, on a virtual clock or on Ray, and the one path of a call; stands on `runs`."""
