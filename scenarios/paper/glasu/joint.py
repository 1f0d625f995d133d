"""Mode joint beside Table 2's mode paper: GLASU-1 and GLASU-4 with gradients sent back.

python scenarios/paper/glasu/joint.py --data cora [--seeds 0,1,2,3,4] [--full]
"""

from _study import asked, glasu, measure

ROWS = {f"GLASU-{q}-joint": glasu(q, mode="joint") for q in (1, 4)}

if __name__ == "__main__":
    measure(asked(__doc__), "joint", ROWS)
