"""Drafts copied from the text in one launch against their specification."""

from __future__ import annotations

import pytest
import torch

from ddbench.reference import prompt_lookup as reference
from ddbench.testing import copied

kernels = pytest.importorskip("ddbench.kernels.prompt_lookup_triton", reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_same(inputs, **given):
    """As the reference has it, wherever it is written: not a logit is left as it was."""
    expected = reference.prompt_lookup(**inputs)
    out = torch.full_like(expected, torch.nan).to(DEVICE)
    logits = kernels.prompt_lookup_triton(**copied(inputs, DEVICE) | given, out=out)
    assert logits is out
    assert torch.equal(out.cpu(), expected)


def long_texts(seed, lengths, horizon, vocab, alphabet, room=0):
    """Random texts of a few different ids of the vocabulary, the first and the last among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.linspace(0, vocab - 1, alphabet).long()
    bound = max(lengths)
    shape = (len(lengths), bound + horizon + 1 + room)
    tokens = ids[torch.randint(alphabet, shape, generator=generator)]
    sizes = {"horizon": horizon, "vocab": vocab, "context_bound": bound}
    return {"tokens": tokens, "lengths": torch.tensor(lengths), **sizes}


def check_everything_equals_the_reference():
    for size in reference.SIZES:
        for seed in range(4):
            inputs = reference.make_inputs(seed, size)
            assert_same(inputs)
            logits = kernels.prompt_lookup_triton(**copied(inputs, DEVICE))
            assert torch.equal(logits.cpu(), reference.prompt_lookup(**inputs))


def check_contexts_around_the_blocks_of_the_search():
    block = kernels.BLOCK_S
    for alphabet in (3, 40, 600):
        inputs = long_texts(alphabet, [block - 1, block, block + 1, 3 * block + 5, 1, 0, 17], 5, 700, alphabet)
        assert_same(inputs)


def check_a_match_over_the_border_of_two_blocks():
    """Its last token is the first of a block, or the second; and one before it is shorter."""
    block = kernels.BLOCK_S
    for end in (block - 1, block, block + 1, block + 2, 2 * block):
        tokens = torch.arange(2 * block + 40)[None] % 6000
        length = 2 * block + 30
        tokens[0, end - 2 : end + 1] = torch.tensor([6001, 6002, 6003])
        tokens[0, 5:7] = torch.tensor([6002, 6003])
        tokens[0, length - 2 : length + 1] = torch.tensor([6001, 6002, 6003])
        sizes = {"horizon": 3, "vocab": 6004, "context_bound": length}
        inputs = {"tokens": tokens, "lengths": torch.tensor([length]), **sizes}
        assert_same(inputs)
        proposed = (kernels.prompt_lookup_triton(**copied(inputs, DEVICE)) == 0).nonzero()[:, 2].tolist()
        assert proposed == tokens[0, end + 1 : end + 4].tolist()


def check_vocabularies_around_the_programs_parts():
    """Proposals fall into every part of the logits, the first and the last of each among them."""
    block = kernels.BLOCK_V
    for vocab in (1, 2, block // 2, block - 1, block, block + 1, 3 * block + 7):
        for horizon in (1, 3):
            inputs = long_texts(vocab, [60, 41], horizon, vocab, 5)
            assert_same(inputs)


def check_programs_that_take_several_steps():
    """As when many requests share the programs of one wave; whatever their number, every logit is one program's."""
    with pytest.MonkeyPatch.context() as patch:
        for programs in (1, 4, 7, 10):
            patch.setattr(kernels, "PROGRAMS", programs)
            assert_same(long_texts(programs, [30, 50], 3, 2 * kernels.BLOCK_V + 16, 4))


def check_the_programs_cover_the_logits_and_are_no_more_than_a_wave():
    for size in (1, 4096, 4097, 28672, 344064, 1146880, 15 * 163840):
        for batch in (1, 2, 16, 64, 600):
            programs, steps = kernels._split(size, batch)
            assert programs * steps * kernels.BLOCK_V >= size > (programs - 1) * steps * kernels.BLOCK_V
            assert programs * batch <= max(kernels.PROGRAMS, batch)


def check_nothing_beyond_the_anchor_is_read():
    """What stands there is no id, and at the anchor's n-gram again; behind the last row of all nothing stands."""
    for seed in range(4):
        inputs = reference.make_inputs(seed, "adversarial")
        beyond = torch.arange(inputs["tokens"].shape[1]) > inputs["lengths"][:, None]
        anchors = inputs["tokens"].gather(1, inputs["lengths"][:, None])
        for garbage in (torch.tensor(-(2**63)), torch.tensor(2**63 - 1), anchors):
            assert_same(inputs | {"tokens": inputs["tokens"].where(~beyond, garbage)})
    ends = inputs["tokens"][:, : int(inputs["lengths"][-1]) + 1]
    assert_same({**inputs, "tokens": ends[-1:], "lengths": inputs["lengths"][-1:]})


def check_nothing_before_the_text_is_read():
    """There stands what would make its first tokens the longest match; it is another request's."""
    for before, text, proposed in ((6, [5, 1, 5, 6, 5], [6, 5]), (3, [6, 5, 1, 6, 5, 2, 3, 6, 5], [2, 3, 6])):
        length = len(text) - 1
        sizes = {"horizon": 3, "vocab": 7, "context_bound": length}
        inputs = {"tokens": torch.tensor([text]), "lengths": torch.tensor([length]), **sizes}
        store = torch.tensor([[before, *text]]).to(DEVICE)
        assert_same(inputs, tokens=store[:, 1:])
        logits = kernels.prompt_lookup_triton(**copied(inputs, DEVICE) | {"tokens": store[:, 1:]})
        assert (logits == 0).nonzero()[:, 2].tolist() == proposed


def check_a_proposal_ends_with_the_text_and_the_horizon():
    inputs = long_texts(3, [9, 30, 4], 8, 12, 2)
    for horizon in (1, 2, 5, 8):
        assert_same(inputs | {"horizon": horizon})


def check_rows_of_a_larger_store_are_taken_as_they_lie():
    inputs = long_texts(5, [20, 33], 4, 50, 4, room=30)
    store = torch.full((4, 90), 2**40).to(DEVICE)
    width = inputs["tokens"].shape[1]
    store[1:3, 7 : 7 + width] = inputs["tokens"].to(DEVICE)
    assert_same(inputs, tokens=store[1:3, 7 : 7 + width])


def check_no_requests_and_no_horizon_take_no_launch():
    inputs = copied(reference.make_inputs(0, "small"), DEVICE)
    assert kernels.prompt_lookup_triton(**inputs | {"horizon": 0}).shape == (3, 0, 11)
    none = inputs | {"tokens": inputs["tokens"][:0], "lengths": inputs["lengths"][:0]}
    assert kernels.prompt_lookup_triton(**none).shape == (0, 4, 11)


def check_inputs_stay_as_they_were():
    inputs = copied(reference.make_inputs(0, "odd"), DEVICE)
    before = copied(inputs, DEVICE)
    kernels.prompt_lookup_triton(**inputs)
    assert all(torch.equal(inputs[name], before[name]) for name in ("tokens", "lengths"))


def check_what_cannot_be_addressed_is_refused():
    inputs = copied(reference.make_inputs(0, "small"), DEVICE)
    for out in (torch.empty(3, 4, 12), torch.empty(3, 4, 11).bfloat16(), torch.empty(3, 11, 4).transpose(1, 2)):
        with pytest.raises(ValueError, match="out must be contiguous fp32 of shape"):
            kernels.prompt_lookup_triton(**inputs, out=out.to(DEVICE))
    with pytest.raises(ValueError, match="a text must lie together"):
        kernels.prompt_lookup_triton(**inputs | {"tokens": inputs["tokens"].t().contiguous().t()})


CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name, checked):
    assert checked[name] == ""


@pytest.mark.parametrize("name", [entry["name"] for entry in kernels.AOT])
def test_compiles_for_hopper_without_spills(name, compiled):
    assert compiled[name]["STACK"] == 0
    assert compiled[name]["LOCAL"] == 0


def test_logits_are_stored_in_words_of_16_bytes(compiled):
    """Where rows of the vocabulary are multiples of them; the proposals alone are single ones."""
    for name in ("h7", "h7 rows of 16 tokens"):
        stores = [access for access in compiled[name]["accesses"] if access.startswith("st.global")]
        assert sum("v4.b32" in store for store in stores) >= 4, stores
        assert sum("v4.b32" not in store for store in stores) <= 1, stores


@pytest.mark.skipif(DEVICE == "cuda", reason="a CUDA device is there")
def test_tensors_of_a_cpu_are_refused():
    with pytest.raises(ValueError, match="tokens are on cpu, need a CUDA device"):
        kernels.prompt_lookup_triton(**reference.make_inputs(0, "small"))
