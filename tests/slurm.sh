#!/usr/bin/env bash
# Launch_Runs.py --slurm on a real SLURM of one node, installed from Debian's packages and started here; for `make
# test-slurm`, as root on a machine that may be changed. Jobs are run as an array, one of them is interrupted as by a
# pre-emption, and all must end in finished runs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
[ "$(id -u)" = 0 ] || { echo 'make test-slurm: it installs and starts services, and must be root'; exit 2; }

if ! command -v slurmctld > /dev/null || ! command -v munged > /dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge
fi

work=$(mktemp -d)
host=$(hostname -s)
mkdir -p /etc/slurm /run/munge /var/log/munge "$work/state" "$work/spool"
[ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none; }
chown -R munge:munge /etc/munge /run/munge /var/log/munge /var/lib/munge
chmod 400 /etc/munge/munge.key
chmod 755 /run/munge
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
NodeName=$host CPUs=$(nproc) State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF

stop() {
    scancel --user=root > /dev/null 2>&1 || true
    for file in "$work/slurmctld.pid" "$work/slurmd.pid" "$work/munged.pid"; do
        [ -s "$file" ] && kill "$(cat "$file")" 2> /dev/null || true
    done
}
trap stop EXIT
if ! munge -n > /dev/null 2>&1; then
    runuser -u munge -- munged --force
    cp /run/munge/munged.pid "$work/munged.pid" 2> /dev/null || true
fi
slurmctld
slurmd
for _ in $(seq 60); do
    sinfo -h -o %T 2> /dev/null | grep -q idle && break
    sleep 1
done
sinfo

cat > "$work/runs.sh" <<'RUNS'
#!/usr/bin/env bash
# Launch_Runs.py executes this script with --list
for seed in 0 1 2; do
    echo python main.py --dataset glyphs --arch conv4_normalize --not_pretrained --bs 32 --samples_per_class 4 --lr 0.001 \
        --n_epochs 3 --iterations_per_epoch 5 --no_train_metrics --embed_dim 32 --kernels 0 --device cpu --group slurm \
        --save_path "$SAVE" --seed $seed
done
RUNS
export SAVE="$work/runs"
echo "+ Launch_Runs.py --slurm"
(cd "$work" && "$python" "$OLDPWD/Launch_Runs.py" runs.sh --slurm --partition test --time 01:00:00 --cpus 1 \
    --gpus_per_job 0 --at_once 1)
job=$(squeue -h -o %A | sort -n | head -1)
squeue

echo '+ waiting until a run has trained an epoch, to interrupt its job as a pre-emption does'
log=$SAVE/glyphs/slurm_s0/log.csv
for _ in $(seq 600); do
    [ -f "$log" ] && [ "$(wc -l < "$log")" -ge 3 ] && break
    sleep 0.5
done
scancel --signal=USR2 "${job}_0" || true          # it also says so when the job is already being requeued
for _ in $(seq 900); do
    [ -z "$(squeue -h)" ] && break
    sleep 1
done
"$python" Launch_Runs.py "$work/runs.sh" --status | tee "$work/status.txt"
grep -q '3 runs: 3 finished' "$work/status.txt"
grep -q 'at_epoch' "$SAVE/glyphs/slurm_s0/config.yaml"
grep -h 'Requeued job\|timed out' "$work"/slurm_logs/*_log.* | head -3
echo "+ submitting again: there is nothing to do"
(cd "$work" && "$python" "$OLDPWD/Launch_Runs.py" runs.sh --slurm --partition test --cpus 1 --gpus_per_job 0) |
    grep '3 of 3 runs had been finished before'
[ -z "$(squeue -h)" ]
ls "$SAVE/glyphs"
[ "$(ls -d "$SAVE"/glyphs/*/ | wc -l)" = 3 ]
echo 'SLURM: 3 jobs of an array, one of them interrupted, requeued and resumed: all finished.'
