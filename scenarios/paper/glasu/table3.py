"""Table 3: accuracy and runtime over the US-UK link with K = 1, 2 and 4 aggregation layers of L = 4.

python -m scenarios.paper.glasu.table3 --data cora [--seeds 0,1,2,3,4] [--full]
"""

from scenarios.paper.glasu.measure import Row, glasu, measure

LAYERS = {4: "0,1,2,3", 2: "1,3", 1: "3"}
ROWS = [Row(f"K={k}", glasu(1, aggregation_layers=layers)) for k, layers in LAYERS.items()]
SAMPLED = {"batch_size": 64, "num_neighbours": 3, "num_rounds": 200, "patience": 200, "evaluate_every": 50}
ROWS += [Row(f"K={k}-sampled", glasu(4, aggregation_layers=layers, **SAMPLED)) for k, layers in LAYERS.items()]

if __name__ == "__main__":
    measure("table3", ROWS)
