"""Reports of Nsight Compute -> hardware counters of every profiled kernel, each kernel with its stage."""

from ddbench.analysis.ncu.counters import COUNTERS, Counter

__all__ = ["COUNTERS", "Counter"]
