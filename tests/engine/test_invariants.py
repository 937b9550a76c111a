"""Debug mode notices broken parts: a check that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddbench.engine.engine import Engine
from ddbench.engine.parts import build_parts
from ddbench.engine.types import CommittedRows

QUALITY = (0.9,) * 4


@pytest.fixture
def run_with(gqa_models, make_engine, make_requests, greedy):
    """Run two requests with some parts replaced, in debug mode."""

    def run(arm="ddtree", **replacements):
        requests = make_requests(2, new=12)
        truth = {r.request_id: greedy(gqa_models, r) for r in requests}
        base = make_engine(gqa_models, arm, draft="oracle", continuations=truth, quality=QUALITY)
        parts = build_parts(base.setting)
        built = {name: make(type(getattr(parts, name)))(base.setting) for name, make in replacements.items()}
        engine = Engine(base.spec, gqa_models, continuations=truth, parts=replace(parts, **built), debug=True)
        return [result.tokens for result in engine.run(requests, 2)], list(truth.values())

    return run


def test_sound_parts_pass(run_with):
    got, expected = run_with()
    assert got == expected


def test_a_draft_cache_row_that_was_never_written_is_noticed(run_with):
    """I1."""

    def forgets_a_row(kind):
        class Forgets(kind):
            def __call__(self, rows, caches):
                super().__call__(replace(rows, num_rows=(rows.num_rows - 1).clamp(min=1)), caches)

        return Forgets

    with pytest.raises(AssertionError, match="I1 draft cache"):
        run_with(materialize=forgets_a_row)


def test_rows_materialized_elsewhere_are_noticed(run_with):
    """I1, I2: features of kept rows belong at their positions."""

    def shifts(kind):
        class Shifts(kind):
            def __call__(self, rows: CommittedRows, caches):
                super().__call__(replace(rows, positions=rows.positions + 1), caches)

        return Shifts

    with pytest.raises(AssertionError, match="I1 draft cache"):
        run_with(materialize=shifts)


def test_a_path_longer_than_the_block_is_noticed(run_with):
    """I4."""

    def overstates(kind):
        class Overstates(kind):
            def __call__(self, tree, logits, batch):
                accepted = super().__call__(tree, logits, batch)
                return replace(accepted, num_accepted=accepted.num_accepted + 9)

        return Overstates

    with pytest.raises(AssertionError, match="accepted"):
        run_with(sampling=overstates)


def test_a_target_cache_that_was_never_written_is_noticed(run_with):
    """I3: rows kept beyond those that the target wrote."""

    def emits_too_much(kind):
        class Emits(kind):
            def __call__(self, tree, logits, batch):
                accepted = super().__call__(tree, logits, batch)
                return replace(accepted, num_emitted=accepted.num_emitted * 0 + 5, num_accepted=accepted.num_accepted)

        return Emits

    with pytest.raises(AssertionError):
        run_with(sampling=emits_too_much)


def test_attention_that_reads_rows_it_must_not_see_changes_the_output(run_with):
    """Marked rows stand in for whatever a former request left in the cache."""

    def sees_too_far(kind):
        class Sees(kind):
            def prepare(self, inputs, dtype):
                mask = super().prepare(inputs, dtype).clone()
                if inputs.visible is not None:
                    mask |= True
                return mask

        return Sees

    got, expected = run_with(attention=sees_too_far)
    assert got != expected
