"""How messages become bytes, what their fields may hold, and the ledger of traffic; stands on `privacy`."""
