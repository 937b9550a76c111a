"""What README.md and reports/README.md quote of committed runs is what their rows say."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

quoted = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("quoted.py"))))
README, INDEX, assert_reads, index_row = quoted.README, quoted.INDEX, quoted.assert_reads, quoted.index_row
digits, listed, span, times = quoted.digits, quoted.listed, quoted.span, quoted.times
metric, over, rounds, said, stage_us = quoted.metric, quoted.over, quoted.rounds, quoted.said, quoted.stage_us

NUMBER = r"(-?[\d.]+)"
SPAN = rf"\[{NUMBER}, {NUMBER}\]"
SPEEDUP = rf"{NUMBER}x {SPAN}"
BEST = rf"Best vs ar at concurrency \d+: {NUMBER}x\*\* .*?: {SPAN}"
BUDGET = (
    rf"At concurrency (\d+) the fastest of 7 node budgets is (\d+), {SPEEDUP} over the chain.*?"
    r"; ([\d, and]+) cannot be told from it; from (\d+) on it is slower"
)
TREE_OVER_CHAIN = rf"the tree of 32 nodes is {SPEEDUP} over the chain"
UNUSED = rf"leaves {NUMBER} % with the chain and {NUMBER} % at 32 nodes unused"
K26 = "ddtree draft=oracle"
RUNS = {quoted.name_of(path.parent) for path in quoted.REPORTS.glob("*/manifest.json")}
OLDER = {"k26-captures", "k26-rank", "k26-rank-c16", "k26-verify"}  # of another code
K26_RUNS = ("k26-rank", "k26-rank-c16")  # concurrency 1 and 4, and 16

DEFAULT = {
    "usual: one graph, tree on the device, fused materialize": "ddtree",
    "`executor=eager` (all rounds: none is launched ahead)": "ddtree executor=eager",
    "`executor=stage_graphs`": "ddtree executor=stage_graphs",
    "`tree_build=heap`": "ddtree tree_build=heap",
    "`materialize=sequential`": "ddtree materialize=sequential",
    "`attention=dense_mask`": "ddtree attention=dense_mask",
    "`chain`": "chain",
    "`prompt_lookup`": "prompt_lookup",
    "`ar`": "ar",
}
CONCURRENCIES = (1, 4, 16)
SETS = ("humaneval", "gsm8k-100", "mt-bench")
ALSO_USUAL = {
    "materialize": "ddtree materialize=fused",
    "executor": "ddtree executor=round_graph tree_build=device",
}
ACCEPTED = {"prompt_lookup": "`prompt_lookup`", "chain": "`chain`"} | {
    f"ddtree {nodes}": f"`ddtree`, {nodes} nodes" for nodes in (8, 16, 32, 64, 128, 256)
}


def us(run: str, label: str, last: str = ", ") -> str:
    """Steady rounds at concurrency 1, 4 and 16, in whole microseconds."""
    return digits((1000 * value for value in rounds(run, label)), last=last)


def ms(run: str, label: str, concurrency: int = 1, places: int = 1) -> str:
    return f"{metric(run, label, concurrency).value:.{places}f} ms"


def gains(run: str, variant: str) -> list[tuple[str, ...]]:
    """Per concurrency: a variant's speedup with its interval, and what it takes off a round, in us and in percent."""
    return said(run, rf"{SPEEDUP} \({variant} at concurrency \d+: ([\d ]+) us or {NUMBER} % {SPAN} off a round\)")


def accepted(setting: str, where: str, name: str = "tau") -> float:
    path = quoted.folder_of("smollm2-evaluation") / "evaluation.json"
    found = json.loads(path.read_text(encoding="utf-8"))["settings"][setting][where][name]
    return found + 1e-6  # kept to four decimals: one that ends in 5 is rounded up


def budget(nodes: int) -> str:
    return f"ddtree node_budget={nodes}"


# nano-k2.


def test_steady_rounds_of_default_are_its_rows() -> None:
    cells = {name: us("default", label).replace(", ", " | ") for name, label in DEFAULT.items()}
    assert_reads(README, *(f"| {name} | {cell} |" for name, cell in cells.items()))
    assert_reads(index_row("default"), f"rounds of {us('default', 'ddtree')} us at concurrency 1, 4, 16")


@pytest.mark.parametrize("run", ALSO_USUAL)
def test_other_runs_of_the_usual_engine_stand_beside_default(run: str) -> None:
    rounds_of_it = us(run, ALSO_USUAL[run], " and ")
    assert_reads(README, f"at {rounds_of_it} us ([{run}](reports/2026-11-{run}-h200/report/report.md))")


def test_speedups_of_default_are_those_of_its_report() -> None:
    best = [times(*found) for found in said("default", BEST)]
    graphs = [found[0] for found in gains("default", "round_graph")]
    device = [f"{float(found[0]):.2f}x" for found in gains("default", "device")]
    assert_reads(
        index_row("default"),
        f"graphs {listed(f'{float(value):.0f}x' for value in graphs)} over eager",
        f"a device tree {listed(device)} over the heap",
        f"the best arm over `ar` {listed(best)} |",
    )
    assert_reads(README, f"Per token a graph is {digits(graphs, last=' and ')} times as fast as `eager`.")
    assert_reads(README, f"the best arm's speedup is {listed(best, last=' and ')} (")


def test_prefill_op_by_op_lengthens_tokens_by_what_its_rows_say() -> None:
    longer = [
        metric("default", "ddtree prefill=eager", c, "tpot_ms").value / metric("default", "ddtree", c, "tpot_ms").value
        for c in CONCURRENCIES
    ]
    assert_reads(README, f"makes requests wait: {digits(longer, 2, ' and ')} times the time per token.")


def test_an_eager_launch_takes_an_eager_round_over_its_launches() -> None:
    eager = metric("captures", "ddtree executor=eager", 1).value
    captured = quoted.rows("captures", "captured-stages")
    launches = captured[captured.label == "ddtree executor=eager c=1"].launch_calls.sum()
    torch = digits(sorted({round(value) for value in quoted.ceiling_us("captures", "launch")}), last=" to ")
    each = f"{1000 * eager / launches:.0f} us a launch"
    round_of_it = f"an eager round of {launches:.0f} launches takes {eager:.1f} ms"
    assert_reads(README, f"{round_of_it}, {each}, where torch's own launch takes {torch} us.")
    assert_reads(index_row("default"), f"({each} in `captures`, where torch's own takes {torch}:")


def test_savings_of_materialize_are_differences_of_its_steady_rounds() -> None:
    layers = rounds("materialize", "ddtree materialize=sequential")

    def saved(path: str) -> str:
        others = rounds("materialize", f"ddtree materialize={path}")
        return digits(1000 * (long - short) for long, short in zip(layers, others, strict=True))

    left = us("materialize", "ddtree materialize=fused")
    assert_reads(
        index_row("materialize"),
        f"fused saves {saved('fused')} us of a tree's steady round against layer by layer at concurrency 1, 4, 16 "
        f"({left} us left)",
        f"one GEMM without fusion saves {saved('batched')} us |",
    )


def test_rounds_of_executor_are_its_rows() -> None:
    eager = digits(rounds("executor", "ddtree executor=eager tree_build=device"))
    assert_reads(
        index_row("executor"),
        f"rounds of {us('executor', 'ddtree executor=round_graph tree_build=device')} us in one graph at concurrency "
        f"1, 4, 16, {us('executor', 'ddtree executor=stage_graphs tree_build=device')} us with a graph per stage, "
        f"{eager} ms op by op; the heap makes them {us('executor', 'ddtree tree_build=heap executor=round_graph')} us "
        f"in graphs around its step on the host, "
        f"{us('executor', 'ddtree tree_build=heap executor=stage_graphs')} us with a graph per stage |",
    )


def test_a_captured_round_is_busy_as_its_rows_say() -> None:
    tree, eager = "ddtree c=1", "ddtree executor=eager c=1"
    kernels = quoted.rows("captures", "captured-stages").groupby("label").kernels.sum()
    passes = quoted.rows("captures", "captured-passes")
    nsys = passes[passes.tool == "nsys"].set_index("label")
    idle = quoted.rows("captures", "captured-idle").set_index(["label", "what"])
    ((by_launch, by_capture),) = said("captures", rf"^\| ddtree c=1 \| nsys \| {NUMBER} [\d ]+ ops \| {NUMBER} ")
    by_launch, by_capture = f"{float(by_launch):.1f} %", f"{float(by_capture):.1f} %"
    assert_reads(
        index_row("captures"),
        f"all device time has a stage ({by_capture} by capture, {by_launch} by launch); "
        f"{kernels[tree]:.0f} kernels keep the device busy for "
        f"{idle.ns_per_round[tree, 'busy'] / 1000:.0f} us, where the same rounds clean take "
        f"{nsys.clean_ns[tree] / 1000:.0f} us (captured {nsys.round_ns[tree] / 1000:.0f} us); "
        f"the same kernels eager take {nsys.clean_ns[eager] / 1e6:.1f} ms |",
    )
    assert_reads(
        README,
        f"the device idles for {idle.ns_per_round[tree, 'between nodes of a replay'] / 1000:.0f} us of a [captured]",
        f"{by_capture} of device time by the range of its capture, {by_launch} by launch",
        f"the same kernels eager keep the device idle for {100 * (1 - idle.share[eager, 'busy']):.1f} % of a round.",
    )


def test_materialize_launches_so_many_kernels() -> None:
    captured = quoted.rows("captures", "captured-stages").set_index(["label", "stage"]).kernels
    layers, fused = captured["ddtree materialize=sequential c=1", "materialize"], captured["ddtree c=1", "materialize"]
    assert_reads(README, f"layer by layer: {layers} kernels for {fused} |")


def test_what_the_heap_adds_is_a_difference_of_steady_rounds() -> None:
    def added(heap: list[float], usual: list[float]) -> list[float]:
        return [1000 * (long - short) for long, short in zip(heap, usual, strict=True)]

    in_graphs = "ddtree tree_build=heap executor=round_graph"
    default = added(rounds("default", "ddtree tree_build=heap"), rounds("default", "ddtree"))
    executor = added(rounds("executor", in_graphs), rounds("executor", ALSO_USUAL["executor"]))
    (captured,), (captured_heap,) = (rounds("captures", one, [1]) for one in ("ddtree", "ddtree tree_build=heap"))
    shares = [sorted(round(each / 45) for each in pair) for pair in zip(default, executor, strict=True)]
    eager = (("default", "ddtree executor=eager"), ("executor", "ddtree executor=eager tree_build=device"))
    at_one = [rounds(run, label, [1])[0] for run, label in (*eager, ("captures", "ddtree executor=eager"))]
    assert_reads(
        INDEX,
        f"a tree built on the host adds {digits(default, last=' and ')} us to steady rounds of "
        f"{us('default', 'ddtree', ' and ')} us in `default`, {digits(executor, last=' and ')} us in `executor`, and "
        f"{1000 * (captured_heap - captured):.0f} us to one of {1000 * captured:.0f} us in `captures`",
        f"of a round of 4.5 ms these are {listed((digits(pair, last=' to ') for pair in shares), ' and ')} % |",
        f"steady rounds with the heap take {us('default', 'ddtree tree_build=heap', ' and ')} us in `default`, "
        f"{us('executor', in_graphs, ' and ')} us in `executor` (concurrency 1, 4, 16) and "
        f"{1000 * captured_heap:.0f} us in `captures` (concurrency 1); "
        f"eager rounds at concurrency 1 take {digits(at_one, 1, ' and ')} ms",
    )


# SmolLM2-135M.


def test_best_budgets_of_smollm2_are_those_of_its_report() -> None:
    best, found = said("smollm2-budget", BEST), said("smollm2-budget", BUDGET)
    table = []
    for over_ar, (concurrency, nodes, *over_chain, others, slower) in zip(best, found, strict=True):
        not_told = others.replace(" and ", ", ")
        cells = (concurrency, nodes, times(*over_ar), times(*over_chain), not_told, slower)
        table.append(f"| {' | '.join(cells)} |")
    assert_reads(README, *table)
    nodes = listed(row[1] for row in found)
    ar = listed(f"{float(row[0]):.2f}x" for row in best)
    chain = listed(times(*row[2:5]) for row in found)
    widest = listed(over("smollm2-budget", budget(512), c).split(" [")[0] for c in CONCURRENCIES)
    assert_reads(
        index_row("smollm2-budget"),
        f"{nodes} nodes at concurrency 1, 4, 16; {ar} `ar`; {chain} the chain; 512 nodes {widest} the chain |",
    )


def test_the_best_budget_at_concurrency_1_is_quoted_alike_elsewhere() -> None:
    _, nodes, *over_chain, others, slower = said("smollm2-budget", BUDGET)[0]
    chain, ar = times(*over_chain), times(*said("smollm2-budget", BEST)[0])
    assert_reads(INDEX, f"{nodes} nodes, {chain}; {others} are not told from it, {slower} are slower |")
    assert_reads(
        README,
        f"| SmolLM2-135M on HumanEval, `ddtree`, {nodes} nodes | {ms('smollm2-budget', budget(int(nodes)), 1, 2)} |",
        f"| {ar.replace(' ', ' `ar` ', 1)}, {chain.replace(' ', ' the chain ', 1)} per token |",
    )


def test_wider_trees_of_smollm2_cost_and_bring_what_their_rows_say() -> None:
    def more(name: str) -> str:
        least, *others = (metric("smollm2-budget", budget(nodes), 1, name).value for nodes in (8, 16, 32, 64))
        return digits((100 * (value / least - 1) for value in others), last=" and ")

    def wide(nodes: int) -> str:
        return listed(over("smollm2-budget", budget(nodes), c) for c in CONCURRENCIES)

    distance = said("smollm2-budget", rf"^\| ddtree node_budget=256 [^|]*\| verify \| {NUMBER}x")[0][0]
    assert_reads(
        INDEX,
        f"17, 33 and 65 tokens are {more('round_ms')} % longer than those of 9, "
        f"and tau grows by {more('acceptance_length')} % |",
        f"256 nodes: {wide(256)} of the chain at concurrency 1, 4, 16; 512 nodes: {wide(512)} |",
        f"verify of 257 tokens takes {float(distance):.0f} times its floor at concurrency 1 |",
    )


def test_the_turn_of_the_tree_is_where_its_rows_say() -> None:
    def shown(concurrency: int, nodes: int) -> str:
        found = over("smollm2-budget", budget(nodes), concurrency)
        return f"({nodes} nodes, {found})"

    assert_reads(
        INDEX,
        f"it stops beating its chain between 65 tokens {shown(1, 64)} and 129 {shown(1, 128)} at concurrency 1, "
        f"68 {shown(4, 16)} and 132 {shown(4, 32)} at 4, 144 {shown(16, 8)} and 272 {shown(16, 16)} at 16; "
        f"beyond doubt it loses from 257 tokens on {shown(1, 256)} at 1, 260 {shown(4, 64)} at 4, 528 {shown(16, 32)} "
        "at 16 |",
    )


def test_the_tree_turns_at_the_budgets_that_are_named() -> None:
    table = quoted.rows("smollm2-budget", "metrics")
    trees = table[(table.metric == "speedup_vs_chain") & (table.arm == "ddtree")].sort_values("node_budget")
    for concurrency, last, first, lost in ((1, 64, 128, 256), (4, 16, 32, 64), (16, 8, 16, 32)):
        of_it = trees[trees.concurrency == concurrency]
        assert of_it[of_it.value < 1].node_budget.min() == first
        assert of_it[of_it.node_budget < first].node_budget.max() == last
        assert of_it[of_it.high < 1].node_budget.min() == lost


def test_acceptance_of_smollm2_is_that_of_its_evaluation() -> None:
    table = []
    for setting, name in ACCEPTED.items():
        greedy = [accepted(f"{setting} T=0", where) for where in (*SETS, "all")]
        others = (accepted(f"{setting} T=0", "all", "tau_novel"), accepted(f"{setting} T=1", "all"))
        table.append(f"| {name} | {digits((*greedy, *others), 2).replace(', ', ' | ')} |")
    assert_reads(README, *table)
    chain = accepted("chain T=0", "humaneval")
    wider = [accepted(f"ddtree {nodes} T=0", "humaneval") / chain for nodes in (16, 32, 64, 128, 256)]
    assert_reads(README, f"more: {digits(wider, 2)} times on HumanEval")
    sets = {setting: " / ".join(f"{accepted(f'{setting} T=0', where):.2f}" for where in SETS) for setting in ACCEPTED}
    told = ("chain", "ddtree 64", "ddtree 256", "prompt_lookup")
    sampled, greedy = ([f"{accepted(f'{setting} T={heat}', 'all'):.2f}" for setting in told] for heat in (1, 0))
    assert_reads(
        index_row("smollm2-evaluation"),
        f"chain {sets['chain']} on HumanEval / GSM8K / MT-Bench, 64 nodes {sets['ddtree 64']}, "
        f"256 nodes {sets['ddtree 256']}; prompt lookup {sets['prompt_lookup']}; sampled at T=1, over all sets, "
        f"{listed(sampled, ' and ')} for {listed(greedy, ' and ')} |",
    )


# Kimi-K2.6 and Qwen3-8B: shapes.


def test_rounds_of_kimi_k26_are_its_rows() -> None:
    arms = ("ar", "chain draft=oracle", K26)
    ar, chain, tree = (ms("k26-rank", label) for label in arms)
    four = digits((metric("k26-rank", label, 4).value for label in arms), 1, " and ")
    (floors,) = said("k26-rank", rf"^\| {K26} \| whole round \| {NUMBER}x")[0]
    sum_of_floors = f"{floors} times the sum of the stages' floors at concurrency 1"
    over_chain = [times(*found) for found in said("k26-rank", TREE_OVER_CHAIN)]
    graphs, device = (
        listed((times(*found[:3]) for found in gains("k26-rank", variant)), " and ")
        for variant in ("round_graph", "device")
    )
    assert_reads(
        index_row("k26-rank"),
        f"`ar` {ar}, chain {chain}, 32 nodes {tree} ({four} ms at concurrency 4); "
        f"32 nodes {listed(over_chain, ' and ')} the chain; one graph {graphs} over eager, a device tree {device} over "
        f"the heap; {sum_of_floors}",
    )
    one, more = (times(*found[:3]) for found in gains("k26-rank", "round_graph"))
    eager = f"{metric('k26-rank', f'{K26} executor=eager', 1).value:.0f} ms"
    assert_reads(
        README,
        f"| Kimi-K2.6, one rank of eight, `ddtree`, 32 nodes | {tree} |",
        f"| `ar` {ar}, chain {chain}; {floors} times the sum of its stages' floors",
        f"| the same, `eager` | {eager} | the same | {one} per token by one graph, and {more} at concurrency 4",
    )


def test_the_table_of_kimi_k26_is_what_its_reports_say() -> None:
    def row(name: str, cells: list[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    def off(variant: str) -> list[str]:
        found = [gain for run in K26_RUNS for gain in gains(run, variant)]
        return [
            f"{int(less.replace(' ', '')):,} us, {float(share):.1f} % {span(low, high, 1)}"
            for *_, less, share, low, high in found
        ]

    verify = [found[0] for run in K26_RUNS for found in said(run, rf"^\| {K26} \| verify \| {NUMBER}x")]
    unused = [f"{chain} and {tree} %" for run in K26_RUNS for chain, tree in said(run, UNUSED)]
    over_chain = [times(*found) for run in K26_RUNS for found in said(run, TREE_OVER_CHAIN)]
    graph = off("round_graph")
    graph[1] += ", one of four eager passes not yet warm"
    assert_reads(
        INDEX,
        row("Q1: time over the fewest bytes, verify", verify),
        row("Q2: matmul rate that verify leaves unused, chain and tree", unused),
        row("Q2: tree over the chain", over_chain),
        row("Q3: one graph takes off an eager round", graph),
        row("Q3: a device tree takes off a round with the heap", off("device")),
    )


def test_waiting_for_prefills_takes_what_the_reports_say() -> None:
    def waiting(run: str, concurrency: int) -> str:
        pattern = rf"^\| chain draft=oracle \| {concurrency} \|[^|]*\| no waiting [^|]*\|[^|]*\|[^|]*\| {NUMBER} "
        return f"{float(said(run, pattern)[0][0]):.0f} %"

    four, sixteen = waiting("k26-rank", 4), waiting("k26-rank-c16", 16)
    assert_reads(INDEX, f"({four} of the chain's at concurrency 4, {sixteen} at 16)")


def test_rounds_of_kimi_k26_with_16_requests_are_its_rows() -> None:
    ar, chain, tree = (ms("k26-rank-c16", label, 16) for label in ("ar", "chain draft=oracle", K26))
    over_chain, graph = said("k26-rank-c16", TREE_OVER_CHAIN)[0], gains("k26-rank-c16", "round_graph")[0]
    assert_reads(
        index_row("k26-rank-c16"),
        f"`ar` {ar}, chain {chain}, 32 nodes {tree}; 32 nodes {times(*over_chain)} the chain, "
        f"which is {over('k26-rank-c16', 'chain draft=oracle', 16, 'ar')} `ar`",
        f"one graph {times(*graph[:3])} over eager;",
    )


def test_verify_of_kimi_k26_takes_what_its_rows_say() -> None:
    def verify(arm: str) -> str:
        found = [stage_us("k26-verify", "verify", [f"{arm} prompt_tokens={x}"], 1).item() for x in (2048, 6144)]
        return digits((value / 1000 for value in found), 1, " and ")

    narrow, wide = "ddtree draft=oracle node_budget=16", "ddtree draft=oracle node_budget=64"
    sixteen = [times(*found) for found in said("k26-verify", rf"node budgets is 16, {SPEEDUP} over the chain")]
    unused = [float(found[0]) for found in said("k26-verify", rf"and {NUMBER} % at 64 nodes unused")]
    widest = [over("k26-verify", f"{wide} prompt_tokens={x}", 1) for x in (2048, 6144)]
    assert_reads(
        index_row("k26-verify"),
        f"verify {verify('ar')} ms for 1 token, {verify('chain draft=oracle')} for 8, "
        f"{verify(narrow)} for 17, {verify(wide)} for 65; 16 nodes {sixteen[0]} and {sixteen[1]}, "
        f"64 nodes {widest[0].split()[0]} and {widest[1].split()[0]} the chain; "
        f"four requests: 16 nodes {sixteen[2]} and {sixteen[3]}; compute does not run out: 64 nodes leave "
        f"{unused[0]:.0f} and {unused[1]:.0f} % of the matmul rate unused, "
        f"with four requests {unused[2]:.0f} and {unused[3]:.0f} %;",
    )
    narrow, wide = f"{narrow} prompt_tokens=2048", f"{wide} prompt_tokens=2048"
    costs = [
        metric("k26-verify", x, 1, "round_cost_ms").value
        for x in ("chain draft=oracle prompt_tokens=2048", narrow, wide)
    ]
    assert_reads(
        README,
        f"| the same, 16 and 64 nodes | {ms('k26-verify', narrow)[:-3]}, {ms('k26-verify', wide)} |",
        f"| {sixteen[0]} and {widest[0]} the chain per token: rounds cost {costs[1] / costs[0]:.2f} and "
        f"{costs[2] / costs[0]:.2f} times the chain's",
    )
    assert_reads(INDEX, f"chain: 16 nodes {sixteen[0]}, 64 are slower beyond doubt")


def test_bytes_of_kimi_k26_are_those_that_were_captured() -> None:
    table = quoted.rows("k26-captures", "captured-stages")
    verify = table[(table.label == f"{K26} c=1") & (table.stage == "verify")].iloc[0]
    moved, fewest = f"{verify.sampled_bytes / 1e9:.1f}", f"{verify.fewest_bytes / 1e9:.1f} GB"
    touched, held, uniform = said("k26-captures", rf"^\| {K26} c=1 \| {NUMBER} \| {NUMBER} \| {NUMBER} \|")[0]
    (context,) = said("k26-captures", rf"the attention kernels of verify read {NUMBER} times the context")[0]
    sampled = rf"^\| {K26} c=1 \| (draft|verify|materialize) \| \S+ .B sampled \|.*\| {NUMBER} \| as it ran"
    share = {stage: f"{float(percent):.0f} %" for stage, percent in said("k26-captures", sampled)}
    of_experts = f"{touched} of {float(held):.0f} experts a layer"
    assert_reads(
        index_row("k26-captures"),
        f"read the context {context} times; verify moved {moved} GB (sampled) where {fewest} are the fewest, with "
        f"{of_experts} as counted (a uniform router: {uniform},",
        f"in verify ({share['verify']} of the read rate), little in draft ({share['draft']}) and materialize "
        f"({share['materialize']})",
    )
    assert_reads(INDEX, f"verify {moved} over {fewest} (sampled), its attention reads the context {context} times")
    assert_reads(
        README,
        f"| 32 nodes, captured | {ms('k26-captures', K26)} |",
        f"read the context {context} times; verify moves {moved} GB (sampled) where {fewest} are the fewest, as they "
        f"touch {of_experts} and not the {uniform} of a uniform router",
    )


def test_eager_passes_of_kimi_k26_vary_as_their_rounds_say() -> None:
    one, four = (quoted.passes_ms("k26-rank", f"{K26} executor=eager", concurrency) for concurrency in (1, 4))
    medians = [digits(found.groupby(level=0).median(), last=" and ") for found in (one, four)]
    attributed = quoted.rows("k26-rank", "stages").groupby(["label", "concurrency"]).round_ms.first()
    saved = (100 * (1 - attributed[K26, c] / attributed[f"{K26} executor=eager", c]) for c in (1, 4))
    assert_reads(
        INDEX,
        f"medians of {medians[0]} ms at concurrency 1, with rounds from {one.min():.0f} to {one.max():.0f} ms",
        f"At concurrency 4 they are {medians[1]} ms",
        f"With stage timers graphs take off as much, {digits(saved, last=' and ')} %.",
    )


def test_rounds_of_qwen3_8b_are_its_rows() -> None:
    tree = "ddtree draft=oracle node_budget=64"
    wide, chain, ar = (ms("qwen3-8b", label) for label in (tree, "chain draft=oracle", "ar"))
    over_chain = f"{metric('qwen3-8b', tree, 1, 'speedup_vs_chain').value:.2f}x"
    assert_reads(
        index_row("qwen3-8b"), f"| {wide} with 64 nodes, chain {chain}, `ar` {ar}; {over_chain} the chain, of two"
    )
    assert_reads(README, f"| Qwen3-8B shapes, `ddtree`, 64 nodes | {wide} |", f"| `ar` {ar}, chain {chain}; acceptance")


# Single ops.


def test_targets_of_single_ops_are_met_and_missed_as_their_table_says() -> None:
    met, asked = said("bench-ops", r"Targets met: (\d+) of (\d+)", "ops.md")[0]
    missed = said("bench-ops", rf"^\| (\S+) \| (\S+) \| triton \| missed: {NUMBER}( %)?", "ops.md")

    def of(op: str, is_share: bool, last: str) -> str:
        values = [float(value) for name, _, value, share in missed if name == op and bool(share) == is_share]
        return digits((value / 100 for value in values), 2, last) if is_share else digits(values, 1, last)

    shares = sorted(of("tree_attention", True, ", ").split(", "))
    assert_reads(
        index_row("bench-ops"),
        f"{met} of {asked} targets met, cold: missed are GQA attention",
        f"at a context of 8k ({shares[0]} to {shares[-1]} of the floor)",
        f"at batch 16 ({of('tree_attention', False, ' and ')}), MLA with 8 nodes at 8k "
        f"({of('mla_tree_attention', True, ' and ')}), INT4 experts below 8 tokens "
        f"({of('moe_experts_int4', True, ' and ')} of the read rate) |",
    )


def test_the_gate_of_single_ops_passed_and_failed_as_its_reports_say() -> None:
    def failed(planted: str) -> str:
        verdicts = said("ops-gate", r"^\|[^|]*\| time_us \|.* % \| (same|regression) \|", f"{planted}/gate.md")
        return f"{verdicts.count(('regression',))} of {len(verdicts)}"

    rows = said("ops-gate", r"or better; (\d+) same", "second/comment.md")[0][0]
    hidden, of_times = said("ops-gate", r"would not show in (\d+) of (\d+) times", "second/comment.md")[0]
    wait, longer = failed("planted-wait"), failed("planted-longer")
    assert_reads(
        index_row("ops-gate"),
        f"passed, {rows} of {rows}, though 5 % would not show in {hidden} of its {of_times} times;",
        f"behind the INT4 experts: {wait} times fail;",
        f"in tree attention: {longer} times fail |",
    )
    assert_reads(README, f"fail, by {wait} and {longer} of their times.")


# Limits.


def test_older_runs_are_told_from_those_of_one_code() -> None:
    digests = {run: said(run, r"^\| Code digest \| (\w+) \|")[0] for run in RUNS}
    of_one = [{run for run in RUNS if digests[run] == digests[name]} for name in ("default", "k26-verify", "k26-rank")]
    assert of_one[1:] == [{"k26-verify", "k26-rank-c16"}, {"k26-rank", "k26-captures"}]
    assert of_one[0] == RUNS - OLDER
    began = {run: quoted.began(run)[11:16] for run in OLDER}
    assert_reads(
        INDEX,
        f"`k26-verify` and `k26-rank-c16` began at {began['k26-verify']} and {began['k26-rank-c16']}, "
        f"`k26-captures` and `k26-rank` at {began['k26-captures']} and {began['k26-rank']};",
    )
    assert {quoted.began(run)[:13] for run in of_one[0]} == {"2026-11-30T19", "2026-11-30T20"}


def test_older_runs_build_a_chain_and_commit_as_their_rows_say() -> None:
    chain, tree = (stage_us("k26-rank", "tree_build", [label], 1).item() for label in ("chain draft=oracle", K26))
    accept, now = (stage_us(run, "accept", ["ar"], 1).item() for run in ("k26-rank", "default"))
    commits = []
    for run in OLDER:
        cases, stages = quoted.rows(run, "cases"), quoted.rows(run, "stages")
        replayed = set(cases[cases.executor == "round_graph"].label)
        of_stage = stages[stages.stage == "commit"]
        is_replayed = (of_stage.label + " c=" + of_stage.concurrency.astype(str)).isin(replayed)
        commits += list(1000 * of_stage[is_replayed].stage_ms)
    assert_reads(
        INDEX,
        f"In `k26-rank` their chain's tree takes {chain:.0f} us to build, where one of 32 nodes takes {tree:.0f}",
        f"`ar` takes {accept:.0f} us to accept, {now:.0f} since",
        f"`commit` shows {min(commits):.0f} to {max(commits):.0f} us",
    )


def test_a_busy_host_is_told_of_every_run() -> None:
    kept = r"other processes kept (\d+)% of the CPUs busy around the clean pass"
    warnings = [text for run in RUNS for text in quoted.rows(run, "cases").warnings.dropna()]
    shares = [int(share) for text in warnings for share in re.findall(kept, text)]
    assert len(shares) == 4
    assert_reads(INDEX, f"Others kept {min(shares)} to {max(shares)} % of the CPUs busy around four clean passes")


def test_two_runs_of_one_code_differ_by_more_than_their_intervals_but_not_in_steady_rounds() -> None:
    default, materialize = (said(run, TREE_OVER_CHAIN)[-1] for run in ("default", "materialize"))
    assert float(materialize[2]) < float(default[1])
    alike = []
    for arm in ("ddtree", "chain"):
        both = [*rounds("default", arm, [16]), *rounds("materialize", f"{arm} materialize=fused", [16])]
        assert both == pytest.approx(both[::-1], rel=0.02)
        alike.append(digits((1000 * value for value in both), last=" and ") + " us")
    steps = [metric("default", "ar", 16, "steady_round_ms"), metric("materialize", "ar", 16, "steady_round_ms")]
    assert steps[1].high < steps[0].low
    (third,) = rounds("executor", "ar executor=round_graph", [16])
    counts = [
        f"{metric('default', arm, 16, 'steady_round_ms').n:.0f} of {metric('default', arm, 16).n:.0f} with the {name}"
        for arm, name in (("ddtree", "tree"), ("chain", "chain"))
    ]
    assert_reads(
        INDEX,
        f"{times(*default)} the chain in `default` and {times(*materialize)} in `materialize`;",
        f"in `default` the chain through the tree machinery, the same work, is {over('default', 'chain_via_tree', 16)} "
        "the chain.",
        f"{listed(counts, ' and ')} are steady there.",
        f"Steady rounds of the tree and of the chain agree, {listed(alike)};",
        f"do not: {digits(1000 * one.value for one in steps)} and, in `executor`, {1000 * third:.0f} us.",
    )


def test_rounds_that_are_not_launched_ahead_are_longer() -> None:
    steady, usual = rounds("default", "chain"), [metric("default", "chain", c).value for c in CONCURRENCIES]
    assert all(short < long for short, long in zip(steady, usual, strict=True))
    counts = [int(metric("default", arm, 16, "steady_round_ms").n) for arm in ("ddtree", "chain", "ar")]
    assert_reads(
        README,
        f"over all rounds the chain's medians are {digits((1000 * value for value in usual), last=' and ')} us",
        f"at concurrency 16 these are {counts[0]} rounds of a tree, {counts[1]} of the chain, {counts[2]} of `ar`",
    )


def test_nano_k2_is_not_separated_from_prompt_lookup() -> None:
    one, four, sixteen = said("default", rf"separated in speed at .*? {NUMBER}x\), .*? {NUMBER}x\) .*? {NUMBER}x\)")[0]
    assert_reads(README, f"not separated from `prompt_lookup` at any concurrency ({one}x, {four}x and {sixteen}x)")


def test_commit_is_longer_than_its_kernels_as_its_rows_say() -> None:
    shown = [stage_us("captures", "commit", [label]).item() for label in ("ar", "ddtree")]
    captured = quoted.rows("captures", "captured-stages").set_index(["label", "stage"]).busy_ns / 1000
    busy = [captured[label, "commit"] for label in ("ar c=1", "ddtree c=1")]
    assert_reads(
        INDEX,
        f"In `captures` it takes {shown[0]:.0f} us for `ar` and {shown[1]:.0f} us for the tree, where its kernels and "
        f"the copy are busy for {busy[0]:.0f} and {busy[1]:.0f} us",
    )


def test_verify_of_many_tokens_is_quoted_as_its_rows_say() -> None:
    now = [stage_us("smollm2-budget", "verify", [budget(n)], c).item() for n, c in ((256, 1), (128, 4))]
    assert_reads(INDEX, f"this one takes {now[0]:,.0f} and {now[1]:,.0f}")


def test_trees_with_a_warning_are_told() -> None:
    cases = quoted.rows("smollm2-budget", "cases").dropna(subset="warnings")
    in_torch = cases[cases.warnings.str.contains("draft_topk ran in plain torch")].label
    assert set(in_torch) == {f"{budget(512)} c={c}" for c in CONCURRENCIES}
    differing = cases[cases.warnings.str.contains("emitted different tokens")]
    assert len(differing) == 6
    assert set(differing.concurrency) == {4, 16}
    assert {differing.node_budget.min(), differing.node_budget.max()} == {64, 512}
    assert_reads(INDEX, "of six wide trees at concurrency 4 and 16 (64 to 512 nodes) the two passes emitted different")
