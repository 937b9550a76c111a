#!/usr/bin/env bash
# Measures the evidence of this folder anew, one job after the other on one GPU, each ready to be committed under OUT.
#
#     PYTHON=.venv/bin/python bash reports/measure.sh OUT JOB...
#     CUDA_VISIBLE_DEVICES=1 bash reports/measure.sh OUT JOB...    # on another GPU, while the first has its own jobs
#
# OUT/.JOB.done says that a job is finished; said again, it is not measured again. A job that fails is named at the end and
# does not stop the others. Then: OUT/JOB takes the place of reports/<year-month>-JOB-<device>, and `ddbench report` makes
# its report. What smollm2-evaluation holds is no time and comes from `ddbench train evaluate-sets`.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$root/reports/measure.sh"
    echo "jobs: default materialize executor captures smollm2-budget qwen3-8b k26-rank k26-rank-c16 k26-verify"
    echo "      k26-captures bench-ops ops-gate"
    exit 2
}

python=${PYTHON:-python3}
[[ $python == */* ]] && python=$(realpath -s "$python")
ddbench() { "$python" -m ddbench "$@"; }
planted() { "$python" tests/gpu/planted.py "$@"; }

# What follows `ddbench sweep`; smollm2-budget needs `models fetch smollm2-135m` and `workloads fetch humaneval` first.
words() {
    case $1 in
        captures | materialize) echo "$1" ;;
        default | executor) echo "$1 --set num_requests=32" ;; # two for every one that runs at a time
        smollm2-budget)
            echo "tree_budget --target smollm2-135m --workload humaneval --concurrency 1,4,16 --set num_requests=32" \
                "--set max_new_tokens=96 --set node_budget=8,16,32,64,128,256,512" ;;
        qwen3-8b) echo qwen3_8b ;;
        k26-rank) echo k26_rank ;;
        k26-rank-c16) echo "k26_rank --concurrency 16 --set num_requests=16" ;;
        k26-verify) echo k26_verify ;;
        k26-captures) echo k26_captures ;;
    esac
}

sweep() {
    local runs code=0
    runs=$(mktemp -d "$out/.$1.XXXX") || return
    # shellcheck disable=SC2046 # words are words
    ddbench sweep $(words "$1") --device cuda --out "$runs" || code=$?
    [ $code = 0 ] && ddbench scrub "$runs"/* --out "$out/$1" --drop-traces
}

# Eight repeats make the baseline; the same code once more must pass, and 5 % more in one kernel must fail.
ops_gate() {
    local to=$out/ops-gate baseline=$out/ops-gate/ops-h200.json
    ddbench qualify --ops --blocks 8 --runs "$to/repeats" --out "$baseline" || return
    ddbench bench-ops --ours --format json --out "$to/second" || return
    planted moe_experts_int4 --how wait -- --ours --op moe_experts_int4 --format json --out "$to/planted-wait" || return
    planted tree_attention --how longer -- --ours --op tree_attention --format json --out "$to/planted-longer" || return
    held second 0 &&
        held planted-wait 1 --only timings --op moe_experts_int4 &&
        held planted-longer 1 --op tree_attention
}

held() { # RUN EXIT-CODE [words of the gate]
    local run=$out/ops-gate/$1 expected=$2 code=0
    shift 2
    ddbench gate "$run" --baseline "$out/ops-gate/ops-h200.json" --no-annotations --out "$run" "$@" || code=$?
    [ "$code" = "$expected" ] || { echo "gate of $run: exit code $code, expected $expected" >&2; return 1; }
}

measure() {
    case $1 in
        bench-ops) ddbench bench-ops --out "$out/bench-ops" ;;
        ops-gate) ops_gate ;;
        *) sweep "$1" ;;
    esac
}

[ $# -ge 2 ] || usage
out=$1
shift
for job in "$@"; do
    [ -n "$(words "$job")" ] || [[ $job == bench-ops || $job == ops-gate ]] || usage
done
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$root" || exit
failed=()
for job in "$@"; do
    [ -e "$out/.$job.done" ] && { echo "== $job: finished before"; continue; }
    echo "== $job, $(date -u +%H:%M:%S)"
    rm -rf "${out:?}/$job" # of a try that failed
    { measure "$job" && touch "$out/.$job.done"; } || failed+=("$job")
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
