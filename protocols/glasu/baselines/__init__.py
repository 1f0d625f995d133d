"""The paper's baselines that need another composition than a server and its clients."""
