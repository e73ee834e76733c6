"""Drawing is reproducible and has the right distribution."""

import torch

from reference.sampling import draw, greedy, gumbel_noise


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    """The same row gives the same token in any batch; another seed or position gives other noise."""
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    temperatures, seeds = torch.ones(3, dtype=torch.float64), torch.tensor([7, -(2**63), 2**63 - 1])
    tokens, logprobs = draw(logits, temperatures, seeds, 5)
    for row in range(3):
        one, logprob = draw(logits[row : row + 1], temperatures[:1], seeds[row : row + 1], 5)
        assert (one[0], logprob[0]) == (tokens[row], logprobs[row])
    noise = gumbel_noise(seeds, 5, 20)
    assert not torch.equal(noise, gumbel_noise(seeds, 6, 20))
    assert not torch.equal(noise[0], noise[1])
    assert torch.isfinite(noise).all()


def test_draws_follow_the_softmax() -> None:
    """Over 20000 seeds each token comes as often as its probability at that temperature says."""
    logits, count = torch.tensor([[0.0, 1.0, 2.0, -1.0]]), 20000
    tokens, logprobs = draw(
        logits.expand(count, 4), torch.full((count,), 0.7, dtype=torch.float64), torch.arange(count), 3
    )
    expected = (logits[0].double() / 0.7).softmax(0)
    found = torch.bincount(tokens, minlength=4) / count
    assert torch.allclose(found.double(), expected, atol=0.015)
    assert torch.allclose(logprobs.exp(), expected[tokens])


def test_greedy_takes_the_largest() -> None:
    """With its log probability at temperature 1."""
    token, logprob = greedy(torch.tensor([0.0, 3.0, 1.0]))
    assert token == 1
    assert abs(logprob - float(torch.tensor([0.0, 3.0, 1.0]).log_softmax(0)[1])) < 1e-6
