"""The runtime of organisations that share no cluster: a process at each, TLS between them, a gate at both ends."""
