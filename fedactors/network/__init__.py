"""Links between hosts and what they cost, and graphs of who is linked with whom; stands on `messages`."""
