"""Trained parts on new rows: a file for each way in which rows lie at the parties, and the way from a run to it.

vertical.py     columns at each party      secure.py   the same, summed under masks
joined.py       rows of a query            horizontal.py   rows at each party
launch.py       from a finished run and new data to predictions
"""
