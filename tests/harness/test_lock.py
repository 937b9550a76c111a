"""One sweep per device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddbench.harness.lock import DeviceBusy, device_lock


def test_a_taken_device_names_its_holder(tmp_path: Path) -> None:
    with device_lock("cpu", "sweep 'first'", tmp_path):
        holder = rf"'cpu' is in use by process {os.getpid()} \(sweep 'first'"
        with pytest.raises(DeviceBusy, match=holder) as caught, device_lock("cpu", "sweep 'second'", tmp_path):
            pass
        assert caught.value.exit_code == 4
        with device_lock("cuda", "another device", tmp_path):
            pass
    with device_lock("cpu", "sweep 'second'", tmp_path):
        pass


def test_a_lock_survives_a_damaged_note(tmp_path: Path) -> None:
    with device_lock("cpu", "first", tmp_path):
        (tmp_path / "ddbench-cpu.holder").write_text("{", encoding="utf-8")
        with pytest.raises(DeviceBusy, match="another ddbench process"), device_lock("cpu", "second", tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DeviceBusy, match="lock file cannot be opened"), device_lock("cpu", "x", tmp_path / "file"):
        pass
