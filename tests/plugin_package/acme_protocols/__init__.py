"""Protocols that come in a package of their own, to show that nothing in fedactors has to know them."""
