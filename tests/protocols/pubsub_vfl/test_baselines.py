import numpy as np

from fedactors.protocols.pubsub_vfl.baselines import PairedActiveWorker, PairedPassiveWorker
from fedactors.protocols.pubsub_vfl.messages import EpochLoss
from tests.protocols.pubsub_vfl.runs import simulate


def test_a_gradient_that_the_next_epoch_overtakes_meets_its_own_embedding(monkeypatch):
    """A batch has the same number in each epoch; of messages on their way at once the smaller may arrive first."""
    applied = []

    async def overtaken(self, mine, ask, steps):
        asked = [(epoch, (await ask([None], (epoch, 0)))[0]) for epoch in (1, 2)]
        for epoch, embedding in asked:
            positions = self.rows.batches(epoch)[0]
            values = await self._values(embedding, len(positions), "passive")
            found = await self._gradients(positions, [values])
            await ask(await self._pack(found.embeddings, epoch, (0, 1), positions), (epoch, -1))
        return EpochLoss(0.0, 1)

    backward = PairedPassiveWorker._backward

    async def watched(self, gradient):
        _, _, positions = self._publications[self._key(gradient.epoch, (0, 1))]
        applied.append((positions, self.rows.batches(gradient.epoch)[0]))
        return await backward(self, gradient)

    monkeypatch.setattr(PairedActiveWorker, "_train_window", overtaken)
    monkeypatch.setattr(PairedPassiveWorker, "_backward", watched)
    simulate(algorithm="avfl", num_epochs=2, epochs_per_round=2)
    assert len(applied) == 2
    for positions, of_its_epoch in applied:
        np.testing.assert_array_equal(positions, of_its_epoch)
