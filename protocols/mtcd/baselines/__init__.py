"""Baselines of the paper: DCPA (Condat-Vu form) and client-server vertical learning."""
