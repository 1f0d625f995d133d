# %% [markdown]
# # Your own data, from DataFrames
#
# A bank and a shop know the same customers by an id. Each has a `DataFrame`; the bank knows who defaulted.

# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
people = np.arange(600)
orders, income = rng.poisson(12, 600), rng.normal(3000, 800, 600)
risk = orders - income / 100 + rng.normal(0, 4, 600)
bank = pd.DataFrame({"customer": people, "income": income.round(), "defaulted": np.where(risk > -18, "yes", "no")})
shop = pd.DataFrame({"customer": people, "orders": orders, "country": rng.choice(["DE", "FR", "NA"], 600)})
shop = shop.sample(frac=0.95, random_state=0)  # some never bought anything, and the order is another one
bank.head(3)

# %% [markdown]
# Ids are matched by private set intersection: neither learns whom the other has besides. Texts become categories,
# numbers are standardised, and missing values are filled, each at its own party.

# %%
import fedactors

columns = {"shop": {"categorical": ["country"]}}
rules = {"id": "customer", "label": ("bank", "defaulted"), "parties": columns}
data = fedactors.vertical({"bank": bank, "shop": shop}, positive="yes", **rules)
run = fedactors.simulate("pubsub-vfl", data, num_epochs=10)
run

# %% [markdown]
# New customers, of whom nobody knows yet whether they default. The predictions stay with the bank:

# %%
new_bank = pd.DataFrame({"customer": [1, 2, 3], "income": [1500.0, 3000.0, 6000.0]})
new_shop = pd.DataFrame({"customer": [3, 2, 1], "orders": [5, 12, 30], "country": ["DE", "FR", "NA"]})
new = fedactors.vertical({"bank": new_bank, "shop": new_shop}, **rules)
predictions = run.predict(new, to="predictions.parquet")
pd.read_parquet("predictions.parquet").round(2)

# %% [markdown]
# The same columns at several places, with other people at each, are horizontal data. Here they are the bank's branches:

# %%
halves = {"north": bank[:300], "south": bank[300:]}
clients = {name: part.drop(columns="customer") for name, part in halves.items()}
both = fedactors.horizontal(clients, label="defaulted", test=bank[::10].drop(columns="customer"))
fedactors.simulate("horizontal", both, num_rounds=5, learning_rate=0.1)
