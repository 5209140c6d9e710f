#!/usr/bin/env bash
# The experiments on a GPU in steps, for clusters that lend a machine in short slots.
#
#     bench/gpu/slot.sh STEP [STEP ...]
#     bench/gpu/slot.sh --list        the steps in their order, with their limits, as JSON lines
#
# Each step has a limit of its own, leaves what it has measured in $OUT as it goes, and can be run
# again: cells that are measured are not measured twice. They are looked for in $OUT, $STATE and
# $BEFORE. The steps need no network and no git.
#
#   OUT             the folder of results (bench/results/gpu): <machine>/suite.json, probe.json,
#                   update.json, seeds.json, trials.json, and a log for each step; at most eight files
#   BEFORE          a folder of the same form with results of earlier slots (bench/results/gpu)
#   STATE           what steps leave for later ones on this machine (/tmp/gmi-slot-<uid>)
#   GMI_DRL_COMMIT  the commit that is measured, where git does not say it: in a copy of the tree
#   PACK            where a pack is unpacked (/tmp/gmi-drl-pack); its env.sh is read if it is there
#   PARTS           the folder with the parts of a pack (.pack)
#   ENV_ID, ADAPTER what is simulated (Ant-v5, warp)
#   REDUCTION       of gradients, where auto does not work: mpr goes through the host
#   RETRY=1         runs cells again that failed
#   SLOT_DRY=1      rehearses on CPU cores (BallBalance-v0, torch, where nothing else is named)
#   SLOT_LIMIT_S    a lower limit for every step
#   PYTHON          python3
#
# Exit code: 0; 1 if a cell, check or test failed; 2 if a package is missing or $OUT cannot be
# written; 3 if other parts of the pack are missing; 4 without a GPU; 124 or 137 if a step came
# to its limit. After 0, 1, 124 and 137 the next step is run; the code is the first that was not 0.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$(realpath -m "${OUT:-$ROOT/bench/results/gpu}")
BEFORE=$(realpath -m "${BEFORE:-$ROOT/bench/results/gpu}")
STATE=$(realpath -m "${STATE:-/tmp/gmi-slot-$(id -u)}")
PACK=$(realpath -m "${PACK:-/tmp/gmi-drl-pack}")
PARTS=$(realpath -m "${PARTS:-$ROOT/.pack}")
export OUT BEFORE STATE PACK PARTS
PYTHON=${PYTHON:-python3}
LOGS=2  # at most, beside five files of results and earlier.log

# Two parts of a pack and the steps from facts to reduction fit into half an hour.
steps() {
    cat <<'END'
unpack 60 one part of the pack
facts 400 the driver, packages and MPS, the assumptions that only hardware settles, and GPU tests
first 180 whether the prebuilt kernels are taken; captured and eager; direct, mps and green
headline 570 training, k GMIs against one captured process at 4,096 and 16,384 environments
serving 270 serving, k GMIs against one captured process at 4,096 environments
reduction 150 reduction of gradients among GMIs
seeds 240 launches of SAC that share the GPU, k against one
trials 240 a search whose trials share the GPU, k at a time against one
num_env 240 throughput and memory against num_env
update 180 one PPO update, eager and captured, in fp32 and tf32
rest 570 everything else of the suite
END
}

limit_of() {
    local step limit
    while read -r step limit _; do
        if [ "$step" = "$1" ]; then
            echo $((limit < ${SLOT_LIMIT_S:-9999} ? limit : SLOT_LIMIT_S))
        fi
    done < <(steps)
}

list() {
    local step about
    while read -r step _ about; do
        echo "{\"step\": \"$step\", \"limit_s\": $(limit_of "$step"), \"about\": \"$about\"}"
    done < <(steps)
}

fail() {
    echo "slot.sh: $2" >&2
    exit "$1"
}

# ---- what a step does; LIMIT_S is its limit, and bash counts its SECONDS

left_s() {  # the seconds that are left when so many are kept for what comes after
    local seconds=$((LIMIT_S - SECONDS - $1))
    echo $((seconds > 5 ? seconds : 5))
}

minutes_left() {  # the same in minutes
    local seconds
    seconds=$(left_s "$1")
    printf '%d.%02d' $((seconds / 60)) $((seconds % 60 * 100 / 60))
}

suite() {  # the last cell and the report take 35 s at most; all rows are in suite.json
    "$PYTHON" bench/gpu/suite/suite.py "${SUBJECT[@]}" --results "$OUT" --kept "$STATE/kept" \
        --given "$STATE/results" "$BEFORE" --no-pictures \
        --minutes "$(minutes_left 35)" \
        ${REDUCTION:+--reduction "$REDUCTION"} ${RETRY:+--retry} "$@" >/dev/null
}

step_unpack() {
    "$PYTHON" scripts/gpu-pack unpack "$PARTS/part-$1" --to "$PACK"
}

step_facts() {
    local rc=0
    "$PYTHON" -V
    timeout 20 nvidia-smi || echo "nvidia-smi does not answer"
    for program in nvidia-cuda-mps-control nvidia-cuda-mps-server; do
        command -v "$program" || echo "$program: neither on PATH nor in /usr/local/nvidia/bin"
    done
    df -h /dev/shm /tmp "$OUT"
    timeout 20 "$PYTHON" -c 'import importlib.metadata as m
print(*sorted({f"{d.name}=={d.version}" for d in m.distributions()}))'
    "$PYTHON" bench/gpu/probe/probe.py --results "$OUT" --minutes "$(minutes_left 130)" || rc=$?
    # A library's new warning is no failure here. Pytest's exit codes from 2 on say other things than
    # those of a step, which end the command.
    timeout --kill-after=10 "$(left_s 15)" "$PYTHON" -m pytest -m gpu -p no:cacheprovider \
        --timeout=60 -o filterwarnings=default tests/roles/test_graphs.py \
        tests/roles/test_collector.py tests/roles/test_update_on_device.py \
        tests/comm/test_gpu_buckets.py || rc=$((rc > 0 ? rc : 1))
    return "$rc"
}

step_first() {
    if [ "$ADAPTER" = warp ]; then
        timeout 60 "$PYTHON" bench/gpu/pack/kernel_cache.py --env "$ENV_ID" --device "$DEVICE" ||
            echo "kernel_cache.py did not end well; the suite compiles what is missing"
    fi
    suite --only training --ladder "${LADDER[0]}" --gmis "${GMIS[0]}" \
        --backends "${BACKENDS[@]}" --repeats 1
}

step_headline() {
    suite --only training --ladder "${LADDER[@]}" --gmis "${GMIS[@]}" \
        --backends "${SHARES[@]}" --repeats 2
}

step_serving() {
    suite --only serving --ladder "${LADDER[0]}" --gmis "${GMIS[@]}" \
        --backends "${SHARES[@]}" --repeats 2
}

step_reduction() {
    suite --only reduction --gmis "${GMIS[@]}" --backends "${BACKENDS[@]}" --repeats 1
}

step_seeds() {
    "$PYTHON" bench/gpu/seeds.py ${SLOT_DRY:+--dry --counts 1 2 --seconds 4} --results "$OUT"
}

step_trials() {
    "$PYTHON" bench/gpu/trials.py ${SLOT_DRY:+--dry --counts 1 2 --trials 2 --steps 1500} \
        --results "$OUT"
}

step_num_env() {
    suite --only num_env --gmis "${GMIS[0]}" --one-network --repeats 1
}

step_update() {
    "$PYTHON" bench/gpu/update.py ${SLOT_DRY:+--dry} --results "$OUT" \
        --ways eager captured --precisions fp32 tf32
}

step_rest() {
    suite
}

# ---- what surrounds a step

prepare() {  # once for all steps, after the pack was unpacked
    [ -z "${prepared:-}" ] || return 0
    prepared=1
    if [ -d "$PACK/parts" ]; then  # some parts of a pack, not all
        "$PYTHON" scripts/gpu-pack check --to "$PACK" || exit $?
    fi
    if [ -f "$PACK/env.sh" ]; then
        # shellcheck source=/dev/null
        . "$PACK/env.sh"
    fi
    export PYTHONPATH="$ROOT/src${PYTHONPATH:+:$PYTHONPATH}"
    unset PYTHONDONTWRITEBYTECODE  # else each cell compiles the pack's modules again, in seconds
    export PATH="$PATH:/usr/local/nvidia/bin"  # where some images have MPS's programs
    timeout 120 "$PYTHON" bench/gpu/preflight.py "${SUBJECT[@]}" || exit $?
    if [ -z "${GMI_DRL_COMMIT:-}" ] && ! git rev-parse HEAD >/dev/null 2>&1; then
        echo "slot.sh: the results will not say of which commit they are. Set GMI_DRL_COMMIT." >&2
    fi
}

check_room() {
    if ! { mkdir -p "$OUT" && head -c 1048576 /dev/zero >"$OUT/room"; } 2>/dev/null; then
        rm -f "$OUT/room"
        fail 2 "$OUT cannot be written, or has no room for 1 MiB. Make room, or name another OUT."
    fi
    rm "$OUT/room"
}

join_logs() {  # the oldest, so that there is room for one more
    local log
    while [ "$(find "$OUT" -maxdepth 1 -name '*.log' ! -name earlier.log | wc -l)" -ge "$LOGS" ]; do
        log=$(find "$OUT" -maxdepth 1 -name '*.log' ! -name earlier.log -printf '%T@ %p\n' |
            sort -n | head -n 1 | cut -d ' ' -f 2-)
        cat "$log" >>"$OUT/earlier.log" && rm "$log" || return
    done
}

keep() {  # for the next command on this machine, whose OUT may be empty
    local file folder
    for file in "$OUT"/*/suite.json; do
        folder=$STATE/results/$(basename "$(dirname "$file")")
        if [ -f "$file" ]; then
            mkdir -p "$folder" && cp "$file" "$folder/new" && mv "$folder/new" "$folder/suite.json"
        fi
    done
}

run() {  # a step within its limit; what it says goes to its log and to standard output
    local limit log pid follower rc
    limit=$(limit_of "$1")
    log=$OUT/$1.log
    check_room
    join_logs
    : >"$log"
    timeout --kill-after=20 "$limit" "$BASH" "$ROOT/bench/gpu/slot.sh" --inside "$limit" "$@" \
        >>"$log" 2>&1 &
    pid=$!
    trap 'kill -TERM "$pid"; wait "$pid"; keep; exit 143' INT TERM
    tail -n +1 -f --pid="$pid" "$log" &
    follower=$!
    wait "$pid"
    rc=$?
    trap - INT TERM
    wait "$follower"
    keep
    if [ "$rc" -ne 0 ]; then
        check_room
    fi
    echo "slot.sh: step $1 ended with $rc after ${SECONDS} s; its limit is $limit s"
    return "$rc"
}

cd "$ROOT" || exit 2
if [ -n "${SLOT_DRY:-}" ]; then
    ENV_ID=${ENV_ID:-BallBalance-v0} ADAPTER=${ADAPTER:-torch} DEVICE=cpu
    LADDER=(64 256) GMIS=(2) BACKENDS=(cpu) SHARES=(cpu)
else
    ENV_ID=${ENV_ID:-Ant-v5} ADAPTER=${ADAPTER:-warp} DEVICE=cuda
    LADDER=(4096 16384) GMIS=(4 8) BACKENDS=(direct mps green)
    SHARES=(direct mps mps-x2 mps-uncapped green)
fi
[[ ${SLOT_LIMIT_S:-1} =~ ^[1-9][0-9]*$ ]] ||
    fail 2 "SLOT_LIMIT_S=$SLOT_LIMIT_S; must be a whole number of seconds, 1 or more."
SUBJECT=(${SLOT_DRY:+--dry} --env "$ENV_ID" --adapter "$ADAPTER")

case ${1:-} in
--list)
    list
    exit
    ;;
--inside)
    LIMIT_S=$2
    "step_$3" "${@:4}"
    exit
    ;;
"" | -h | --help)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac

words=("$@")
for ((i = 0; i < ${#words[@]}; i++)); do
    [ -n "$(limit_of "${words[i]}")" ] ||
        fail 2 "no step ${words[i]}. Steps: unpack N,$(steps | while read -r step _; do
            [ "$step" = unpack ] || printf ' %s' "$step"; done)."
    if [ "${words[i]}" = unpack ]; then
        i=$((i + 1))
        [[ ${words[i]:-} =~ ^[0-9]+$ ]] || fail 2 "unpack ${words[i]:-}: which part? Write unpack 1."
    fi
done

code=0
while [ $# -gt 0 ]; do
    SECONDS=0
    if [ "$1" = unpack ]; then
        run unpack "$2"
        rc=$?
        shift
    else
        prepare
        SECONDS=0
        run "$1"
        rc=$?
    fi
    shift
    if [ "$rc" -eq 3 ] && [ "${1:-}" = unpack ]; then  # another part comes
        continue
    fi
    [ "$code" -ne 0 ] || code=$rc
    case $rc in
    0 | 1 | 124 | 137) ;;
    *) exit "$rc" ;;
    esac
done
exit "$code"
