"""The loss through a frozen head, against torch's own cross-entropy, whatever the chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ddbench.train.head_loss import head_loss


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_value_and_gradient_are_those_of_the_plain_loss(chunk: int):
    generator = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(7, 5, generator=generator), torch.randn(11, 5, generator=generator)
    wanted, weights = torch.randint(11, (7,), generator=generator), torch.rand(7, generator=generator)
    weights[3] = 0.0
    ours, plain = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss = head_loss(ours, head, wanted, weights, chunk)
    expected = (F.cross_entropy(plain @ head.T, wanted, reduction="none") * weights).sum()
    (loss * 0.5).backward()
    (expected * 0.5).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, plain.grad)
    assert ours.grad is not None
    assert bool((ours.grad[3] == 0).all())


def test_a_head_that_is_trained_is_refused():
    head = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(AssertionError, match="frozen"):
        head_loss(torch.ones(1, 2), head, torch.tensor([0]), torch.ones(1))


def test_in_bf16_the_loss_is_that_of_the_rounded_logits_and_the_gradient_close():
    """As on a GPU under autocast: products in bf16, probabilities in fp32."""
    generator = torch.Generator().manual_seed(1)
    hidden, head = (torch.randn(n, 16, generator=generator).to(torch.bfloat16) for n in (6, 40))
    wanted, weights = torch.randint(40, (6,), generator=generator), torch.rand(6, generator=generator)
    ours, plain = hidden.clone().requires_grad_(), hidden.float().requires_grad_()
    loss = head_loss(ours, head, wanted, weights, 4)
    loss.backward()
    rounded = (hidden @ head.T).float()
    torch.testing.assert_close(loss, (F.cross_entropy(rounded, wanted, reduction="none") * weights).sum())
    (F.cross_entropy(plain @ head.float().T, wanted, reduction="none") * weights).sum().backward()
    assert ours.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(ours.grad.float(), plain.grad, rtol=0.05, atol=0.05)
