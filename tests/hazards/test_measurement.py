"""Hazards of what is reported about a run: alarms, keys and labels that decide what may be compared."""

from __future__ import annotations

import pytest
import torch

from ddbench.harness import measure
from ddbench.harness.measure import measure_case
from ddbench.harness.run import Job
from ddbench.harness.sweep import case_ids
from ddbench.records import OkResult
from ddbench.spec import ARMS, CaptureSpec, Case, EngineSpec, WorkloadSpec

torch.set_num_threads(1)
