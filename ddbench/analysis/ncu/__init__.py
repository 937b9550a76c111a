"""Reports of Nsight Compute -> hardware counters of every profiled kernel, each kernel with its stage."""
