"""NebulaFL: asynchronous federated learning over several data centers that rotate their models.

Paper: Gao et al., "NebulaFL: Effective Asynchronous Federated Learning for JointCloud Computing", 2024.

Cast. A DataCenter keeps planet models (trained now), one stellar model (knowledge from elsewhere), its
containers (the data owners) and its hardware. A Container trains a planet on its own data, on hardware rented
for that run. A routing network joins the centers.

    container --- local SGD ---> planet            for each planet, no planet waits for another:
        ^                          |                 choose an idle container   (scheduler)
        | rented unit              | PlanetUpdate    choose a hardware unit     (scheduler)
    catalogue <--- rent            v                 train                      (training)
                               planet <- stellar     blend, version += 1        (staleness)

    center 1 -- master, mean version --> center 2    every rotation_interval seconds (staleness);
        ^                                   |        the master received is the new stellar model;
        |                                   v        the partner changes each round; no center waits
    center 4 <----------------------- center 3

    who waits          for what
    planet             an idle container, then a free unit of hardware
    container          nothing: it is called
    center             nothing: masters are sent by timer and taken as they come

From `fedactors run nebulafl` to a step of SGD: run.run -> actors.NebulaCenter -> training.Trainings (who, where:
scheduler.Scheduler) -> training.train -> fedactors.learning.local_training.train_locally. Equations: `algorithm`.

There is no trusted execution environment here: the container is the trust boundary.
"""
