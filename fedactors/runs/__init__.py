"""What a run leaves: its folder, metrics, ledger, timeline and tables; stands on `actors` and `messages`."""
