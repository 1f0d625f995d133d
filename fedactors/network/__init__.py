"""What crosses a party's boundary: codec, links, traffic ledger, message transforms, topologies."""
