#!/usr/bin/env bash
# A Slurm of two nodes on this machine, in a new folder: prints the folder when they are idle. Use it with
# SLURM_CONF=FOLDER/slurm.conf; `stop.sh FOLDER` ends it and removes the folder. Needs root, slurm-wlm and munge.
# Jobs of the partition `spare` give way to those of `main`.
set -euo pipefail
for program in munged slurmctld slurmd sinfo; do
    command -v "$program" >/dev/null || { echo "there is no $program: apt-get install slurm-wlm munge" >&2; exit 3; }
done
[ "$(id -u)" = 0 ] || { echo "starting slurmd needs root" >&2; exit 3; }

folder=$(mktemp -d /tmp/slurm-XXXXXX)
host=$(hostname -s)
getent hosts "$host" >/dev/null || echo "127.0.0.1 $host" >>/etc/hosts
give_up() {
    cat "$folder"/log/* >&2 || true # one that never started has none
    bash "$(dirname "$0")/stop.sh" "$folder"
    exit 1
}
trap give_up ERR
mkdir -p "$folder"/{spool,state,log,munge}
chmod 755 "$folder"

# a munge of our own: nothing of the machine's is touched
(umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
chown -R munge: "$folder/munge"
chmod 711 "$folder/munge"
runuser -u munge -- munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"

read -r controller first second < <(python3 - <<'PORTS'
import socket

held = [socket.socket() for _ in range(3)]
for one in held:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in held))
PORTS
)
# cred_expire and sched_interval: a requeued job starts again in seconds, not minutes; no accounting, on purpose
cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=$controller
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/controller.pid
SlurmdPidFile=$folder/node-%n.pid
SlurmctldLogFile=$folder/log/controller
SlurmdLogFile=$folder/log/node-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmctldTimeout=300
SlurmdTimeout=300
SlurmdParameters=config_overrides
MinJobAge=86400
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=${SLURM_TEST_CPUS:-4} RealMemory=4000 State=UNKNOWN
NodeName=$host NodeAddr=127.0.0.1 Port=$first
NodeName=$host-2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP DefMemPerCPU=100
PartitionName=main Default=YES PriorityTier=2 PreemptMode=OFF
PartitionName=spare PriorityTier=1 GraceTime=60
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld
for node in "$host" "$host-2"; do
    slurmd -N "$node"
done
for _ in $(seq 120); do
    if [ "$(sinfo --noheader --Node --partition=main --format=%T 2>/dev/null | sort | uniq -c | xargs)" = "2 idle" ]; then
        echo "$folder"
        exit 0
    fi
    sleep 0.25
done
echo "the nodes did not become idle; what the daemons said:" >&2
give_up
