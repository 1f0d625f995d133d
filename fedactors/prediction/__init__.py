"""Trained parts on new rows: what all ways to predict have in common, and a file for each way in which rows lie.

engine.py       what all have in common      vertical.py   columns at each party
launch.py       from a run to predictions    secure.py     the same, summed under masks
horizontal.py   rows at each party
"""
