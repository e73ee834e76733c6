"""Batches, and that a step moves the policy towards what was rewarded."""

import torch

from rl.learner import Learner, Sample, make_batch
from rl.policy import CONFIG, first_state, trainable


def test_advantages_are_over_the_group_at_each_place() -> None:
    """A token that did better than its group at that place has a positive advantage; equal ones have none."""
    batch = make_batch(
        [
            Sample(7, [1], [2, 3], [1.0, 0.0]),
            Sample(7, [1], [5, 3], [0.0, 0.0]),
            Sample(9, [2], [3, 4], [1.0, 1.0]),
            Sample(9, [2], [3, 4], [1.0, 1.0]),
        ]
    )
    assert batch.advantages[0, 0] > 0 > batch.advantages[1, 0]
    assert torch.equal(batch.advantages[2:], torch.zeros(2, 2))
    assert torch.equal(batch.advantages[:2, 1], torch.zeros(2))
    assert batch.reward == 5 / 8
    assert batch.tokens.tolist() == [[1, 2, 3], [1, 5, 3], [2, 3, 4], [2, 3, 4]]


def test_a_step_makes_the_rewarded_token_likelier() -> None:
    """After one step its probability is higher, the other one's lower."""
    model = trainable(first_state())
    learner = Learner(model, 1e-3)
    batch = make_batch([Sample(0, [4, 8], [9], [1.0]), Sample(0, [4, 8], [17], [0.0])])

    def probabilities() -> list[float]:
        with torch.no_grad():
            return model(torch.tensor([[4, 8]]))[0, -1].softmax(dim=0)[[9, 17]].tolist()  # type: ignore[no-any-return]

    before = probabilities()
    learner.gradients(batch)
    learner.step()
    after = probabilities()
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_the_policy_has_many_buckets() -> None:
    """Some megabytes in float32: at 64 KiB a bucket, each stage has more than 16 of them."""
    nbytes = sum(4 * tensor.numel() for tensor in first_state().values())
    assert nbytes / 2 > 16 * 64 * 1024
    assert list(first_state()) == [name for name, _ in trainable(first_state()).named_parameters()]
    assert CONFIG.layers % 2 == 0
