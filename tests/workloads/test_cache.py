"""A set is read whole or not at all, and written in one step."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddbench.errors import SchemaError, UserError
from ddbench.workloads.cache import Cache, cache_folder, parse_items
from ddbench.workloads.sets import PromptSet

EMPTY = hashlib.sha256(b"").hexdigest()


def test_what_is_not_there_names_the_command_that_brings_it(tiny: Any) -> None:
    cache = Cache(cache_folder())
    assert cache.state(tiny.prompt_set) == "not fetched"
    with pytest.raises(UserError, match="prompt set 'tiny' is not fetched yet: ddbench workloads fetch tiny"):
        cache.read(tiny.prompt_set)


def test_what_was_written_is_read(fetched: PromptSet) -> None:
    cache = Cache(cache_folder())
    assert cache.state(fetched) == "installed"
    items = cache.read(fetched)
    assert len(items) == 12
    assert items[3].turns == ("one two 3 three", "again 3")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_seen_and_asks_for_another_fetch(fetched: PromptSet, data: st.DataObject) -> None:
    cache = Cache(cache_folder())
    place = cache.place(fetched)
    whole = place.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    place.write_bytes(data.draw(st.sampled_from([flipped, whole[:at], whole + whole[: at + 1]])))
    try:
        assert cache.state(fetched) == "damaged"
        with pytest.raises(UserError, match="is damaged: ddbench workloads fetch tiny") as caught:
            cache.read(fetched)
    finally:
        place.write_bytes(whole)
    assert str(cache.folder) not in str(caught.value), "the message goes into run folders"


def test_a_write_that_fails_leaves_nothing(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, before = Cache(cache_folder()), []

    def full(source: Path, target: Path) -> None:
        before.extend(path.name for path in cache.folder.iterdir())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write(dataclasses.replace(tiny.prompt_set, digest=EMPTY), b"")
    assert len(before) == 1, "it was written beside its place"
    assert before[0].startswith(".partial-")
    assert list(cache.folder.iterdir()) == []


def test_sets_of_two_digests_lie_beside_each_other(fetched: PromptSet) -> None:
    """Another version that converts differently does not find, nor overwrite, this one's."""
    cache = Cache(cache_folder())
    other = dataclasses.replace(fetched, digest=EMPTY)
    assert cache.state(other) == "not fetched"
    cache.write(other, b"")
    assert cache.state(fetched) == cache.state(other) == "installed"


def test_a_line_that_is_no_item_is_named(fetched: PromptSet) -> None:
    with pytest.raises(SchemaError, match="prompt set 'x': turns: expected at least one"):
        parse_items(b'{"id": "a", "category": "b", "turns": []}\n', "x")
