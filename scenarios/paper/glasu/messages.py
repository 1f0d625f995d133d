"""How many tensors sixteen local updates cost, against simulated-centralised training.

python scenarios/paper/glasu/messages.py --data cora
"""

from _study import glasu, measure, study_of

UPDATES = 16
SHORT = {"patience": None, "evaluate_every": UPDATES}
ROWS = {"simulated-centralised": {"special_case": "simulated-centralised", "num_rounds": UPDATES, **SHORT}}
ROWS |= {
    f"GLASU-K={k}-Q={q:02d}": glasu(q, aggregation_layers=layers, num_rounds=UPDATES // q, **SHORT)
    for k, layers in ((2, "1,3"), (1, "3"))
    for q in (1, 4, 16)
}

if __name__ == "__main__":
    measure(study_of(__doc__), "messages", ROWS)
