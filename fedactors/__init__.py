"""fedactors: a Ray actor framework for federated learning across organisations.

Importing this package loads neither torch nor ray; import the rooms you need, for example
``from fedactors.actor import Actor`` or ``from fedactors.scenario import main``.
"""

from fedactors.exported import load_part as load_part

__version__ = "0.1.0"
