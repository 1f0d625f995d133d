"""What a run leaves behind: its folder, metrics, events, checkpoints, and the pages and tables made from them."""
