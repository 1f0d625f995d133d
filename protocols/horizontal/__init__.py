"""Plain horizontal methods: clients hold different rows of the same columns, a server keeps one model.

    FedAvg    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017
    FedProx   Li et al., "Federated Optimization in Heterogeneous Networks", 2020
    SCAFFOLD  Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020
    FedAvgM   Hsu et al., "Measuring the Effects of Non-Identical Data Distribution ...", 2019
    FedAdagrad, FedAdam, FedYogi      Reddi et al., "Adaptive Federated Optimization", 2021

            TrainOrder: model (SCAFFOLD: and c)
    server ------------------------------------> site: its chosen clients train on their own rows
      ^  <-------------------------------------- Change: mean change of their models (and of their c_i)
      `- next model = rule(model, mean change)

Who waits for whom: the server for the answers of all sites that it asked, each for at most `client_timeout`.
A site is one organisation, one process; it holds one client, or many small ones that train in one batched call.

From `fedactors run horizontal` to a step: run.run -> actors.HorizontalServer -> actors.ClientProcess ->
algorithm.train -> fedactors.learning.many_clients.train_clients.
"""
