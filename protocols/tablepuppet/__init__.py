"""TablePuppet: federated learning over joins and unions of tables in different organisations' databases.

Paper: Xu, Xie, Guo, Alonso, Li, Li, Wang, Wu, Zhang, "TablePuppet: A Generic Framework for Relational
Federated Learning". The training set is a union of conjunctive queries; nobody ever builds its rows.

Cast: one Server (LoJ operator) joins hashed keys into the table mapping p_i(j); one LoU operator for each
vertical table, in the server or inside the organisation; one Client for each horizontal partition, which reads
its own database and keeps its rows and its model part theta_i.

    database -> Client --hashed keys, once--> Server: table mapping p_i(j), duplicate counts G_i
                Client --predictions h_i----> LoU (gather) --> LoJ (gather, sum over tables by p_i)
                                                               | compute: dl/dh (SGD) or z, lambda (ADMM)
                Client <--Y_i, G_i on n_i rows-- LoU (scatter) <-- LoJ (scatter: segment sums over G_i(j))
                Client <--> LoU: partial gradients (SGD) or theta, w, u (consensus ADMM), only with partitions
"""
