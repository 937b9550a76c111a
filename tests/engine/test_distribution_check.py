"""Sampled output follows the target's distribution, and the experiment can tell when it does not."""

from __future__ import annotations

import pytest

from ddbench.engine.distribution_check import MinRatioSampler, check_distribution


@pytest.mark.parametrize("arm", ["ar", "chain", "ddtree"])
def test_the_joint_of_three_sampled_tokens_is_the_targets(arm):
    """H70."""
    result = check_distribution(arm)
    assert result.is_consistent, result
    assert result.num_draws >= 6000
    assert result.num_cells > 100
    if arm != "ar":
        assert result.acceptance_length > 1.15  # drafted tokens were put to the test


def test_the_joint_at_another_temperature_is_the_targets():
    """H70."""
    result = check_distribution("ddtree", temperature=0.7, num_draws=4000)
    assert result.is_consistent, result


@pytest.mark.parametrize("arm", ["chain", "ddtree"])
def test_the_min_ratio_rule_fails_the_same_test(arm):
    """H71: the positive control."""
    result = check_distribution(arm, sampler=MinRatioSampler, num_draws=2000)
    assert not result.is_consistent
    assert result.z > 50
