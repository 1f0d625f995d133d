"""The methods beside MTCD: one token without a server (STCD), client-server (SVFL), dual consensus (DCPA)."""
