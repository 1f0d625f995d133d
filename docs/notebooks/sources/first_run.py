# %% [markdown]
# # Your first run
#
# Two organisations hold different features of the same people; one of them has the labels. Together they train a
# classifier without showing each other their rows. This notebook simulates both in one process.

# %%
import fedactors

run = fedactors.simulate("pubsub-vfl", num_epochs=5)
run

# %% [markdown]
# The metrics of every epoch, as a table:

# %%
run.rounds.to_pandas()[["round", "training/loss", "validation/auc"]].round(3)

# %% [markdown]
# What the parties sent, by type of message:

# %%
ledger = run.ledger.to_pandas()
ledger.groupby(["sender", "type"])["bytes"].agg(["count", "sum"])

# %% [markdown]
# What leaves a party is known before anything runs:

# %%
fedactors.inspect("pubsub-vfl")

# %% [markdown]
# To run on Ray, with a process for each actor, write `fedactors.run("pubsub-vfl")`; everything else stays as it is.
