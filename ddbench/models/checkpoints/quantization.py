"""`quantization_config` of a published target: routed experts in INT4 as compressed-tensors packs them, or nothing.

What is packed and what is not shows in the tensors, each of which is accounted for; the list of ignored modules is not
needed for it.
"""

from __future__ import annotations

from ddbench.errors import shown
from ddbench.models.checkpoints.fields import Fields

METHOD, FORMAT = "compressed-tensors", "pack-quantized"


def read_group_size(fields: Fields) -> int | None:
    """Input columns per scale of the routed experts; None where they are floats."""
    table = fields.table("quantization_config")
    if table is None:
        return None
    method = table.text("quant_method")
    if method != METHOD:
        table.fault("quant_method", f"{shown(method)} cannot be served; known: {METHOD} with format {FORMAT}")
    table.must_be("format", FORMAT)
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        value = table.raw(name)
        if value:
            table.fault(name, f"is {shown(value)}, only null can be served")
    table.changes_nothing(("ignore", "quantization_status", "global_compression_ratio", "version"))
    groups = table.table("config_groups")
    names = () if groups is None else groups.names
    if groups is None or len(names) != 1:
        table.fault("config_groups", f"expected one group, got {shown(sorted(names))}")
    group = groups.table(names[0])
    if group is None:
        groups.fault(names[0], "is not set; expected a table")
    size = _weights(group)
    for one in (group, groups, table):
        one.close()
    return size


def _weights(group: Fields) -> int:
    for name in ("input_activations", "output_activations"):
        if group.raw(name) is not None:
            group.fault(name, "is set, only weights can be quantised here")
    group.must_be("format", FORMAT)
    group.changes_nothing(("targets",))
    weights = group.table("weights")
    if weights is None:
        group.fault("weights", "is not set; expected a table")
    weights.must_be("num_bits", 4)
    weights.must_be("type", "int")
    weights.must_be("symmetric", True)
    weights.must_be("strategy", "group")
    weights.must_be("dynamic", False)
    weights.must_be("actorder", False)
    weights.must_be("block_structure")
    weights.changes_nothing(("observer", "observer_kwargs", "scale_dtype", "zp_dtype"))
    size = weights.whole("group_size")
    weights.close()
    return size
