"""Table I on larger images: Fashion-MNIST with the CNN (two label distributions), CIFAR-10 with ResNet-18 (one cell).

python -m scenarios.paper.nebulafl.images --rows fashion-mnist-0.1 [--workers 2] [--full]

Sized down: one local epoch instead of five and three virtual minutes; the paper's size is left to ``--full``. All
rows but the last need the data sets' files.
"""

from scenarios.paper.nebulafl.measure import Row, measure

METHODS = {"nebulafl": {}, "nebulafl-fastest": {"resource_policy": "fastest"}} | {
    name: {"algorithm": name, "resource_policy": "fastest"}
    for name in ("fedavg", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedbuff")
}
ROWS = [
    Row(f"fashion-mnist-{alpha:g}/{name}", {"dirichlet": alpha, **settings}, "fashion-mnist")
    for alpha in (0.1, 1.0)
    for name, settings in METHODS.items()
]
ROWS += [
    Row(f"cifar10-0.5/{name}", {"dirichlet": 0.5, **METHODS[name]}, "cifar10-subset")
    for name in ("nebulafl", "fedavg", "fedbuff")
]
ROWS.append(Row("digits/nebulafl", {}))

if __name__ == "__main__":
    measure("images", ROWS, seeds="0,1", num_epochs=1, rotation_interval=60.0, duration=180.0, evaluation_interval=60.0)
