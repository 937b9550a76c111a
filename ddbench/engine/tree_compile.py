"""[part] Draft tree -> the target's inputs: token ids, positions, and which new token may see which.

Letters: B batch rows, N tree node slots, the root included.
"""

from __future__ import annotations

from ddbench.engine.batch import Batch
from ddbench.engine.types import CaseFacts, DraftTree, Part, Setting
from ddbench.models.inputs import VerifyInputs


class CausalCompiler(Part):
    """Chains only: plain causal order, no mask; accepted rows already stand where they must, so commit moves none."""

    moves_rows = False

    @staticmethod
    def supports(facts: CaseFacts) -> str | None:
        if facts.spec.tree_build != "chain":
            return f"tree_compile 'causal' serves chains only, not tree_build '{facts.spec.tree_build}'"
        return None

    def __init__(self, setting: Setting) -> None:
        self._compile = setting.kernels.tree_compile_chain

    def __call__(self, tree: DraftTree, batch: Batch) -> VerifyInputs:
        input_ids, positions = self._compile(
            tree.tokens, tree.parents, tree.depths, tree.num_nodes, batch.anchors, batch.lengths
        )
        return VerifyInputs(
            input_ids=input_ids,
            positions=positions,
            lengths=batch.lengths,
            visible=None,
            context_bound=batch.context_bound,
        )


class AncestorsCompiler(Part):
    """Any tree: positions by depth, nodes see their ancestors; accepted rows lie scattered and commit moves them."""

    moves_rows = True

    def __init__(self, setting: Setting) -> None:
        self._horizon = setting.facts.block_size - 1
        self._kernels = setting.kernels
        self._wants_bits = setting.facts.spec.attention == "tree_triton"

    def __call__(self, tree: DraftTree, batch: Batch) -> VerifyInputs:
        compile_ = self._kernels.tree_compile_bits if self._wants_bits else self._kernels.tree_compile
        input_ids, positions, mask = compile_(
            tree.tokens, tree.parents, tree.depths, tree.num_nodes, batch.anchors, batch.lengths, self._horizon
        )
        return VerifyInputs(
            input_ids=input_ids,
            positions=positions,
            lengths=batch.lengths,
            visible=None if self._wants_bits else mask,
            packed=mask if self._wants_bits else None,
            context_bound=batch.context_bound,
        )


TREE_COMPILERS = {
    "causal": CausalCompiler,
    "ancestors": AncestorsCompiler,
}
