"""Named data sets: what there is, where its files lie, and loading them."""
