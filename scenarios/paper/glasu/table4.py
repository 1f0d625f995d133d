"""Table 4: time and bytes to a test accuracy with Q = 1, 2, 4, 8 and 16 local updates, over the US-UK link.

python scenarios/paper/glasu/table4.py --data cora [--seeds 0,1,2,3,4] [--full]
"""

from _study import asked, glasu, measure

FAST = {1: 0.02, 2: 0.008, 4: 0.004, 8: 0.002, 16: 0.001}
"""Larger steps than those that are best in the end: what counts here is how soon the target is reached."""
ROWS = {f"Q={q:02d}": glasu(q) for q in (1, 2, 4, 8, 16)}
ROWS |= {f"Q={q:02d}-rate={rate}": glasu(q, learning_rate=rate) for q, rate in FAST.items()}

if __name__ == "__main__":
    measure(asked(__doc__), "table4", ROWS, target={"cora": 0.80, "pubmed": 0.82}, evaluate_every=2, patience=20)
