"""What must be brought into one order before a run, by actors of the parties: tables of a query, nodes of a graph.

owners.py   the tables' owners and the keyed hashes of their join keys
rows.py     a query's joined rows for protocols of vertical data
nodes.py    the nodes of a graph whose features, edges and labels lie in tables
"""
