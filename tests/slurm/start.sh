#!/usr/bin/env bash
# A Slurm of one node in a new folder: prints the folder when the node is idle. Use it with SLURM_CONF=FOLDER/slurm.conf;
# `stop.sh FOLDER` ends it and removes the folder. Needs root, slurm-wlm and munge.
set -euo pipefail
for program in munged slurmctld slurmd sinfo; do
    command -v "$program" >/dev/null || { echo "there is no $program: apt-get install slurm-wlm munge" >&2; exit 3; }
done
[ "$(id -u)" = 0 ] || { echo "starting slurmd needs root" >&2; exit 3; }

folder=$(mktemp -d /tmp/slurm-XXXXXX)
host=$(hostname -s)
getent hosts "$host" >/dev/null || echo "127.0.0.1 $host" >>/etc/hosts
give_up() {
    cat "$folder"/log/* >&2
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

read -r controller daemon < <(python3 - <<'PORTS'
import socket

held = [socket.socket() for _ in range(2)]
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
SlurmdPort=$daemon
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/controller.pid
SlurmdPidFile=$folder/node.pid
SlurmctldLogFile=$folder/log/controller
SlurmdLogFile=$folder/log/node
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
NodeName=$host NodeAddr=127.0.0.1 CPUs=${SLURM_TEST_CPUS:-4} RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=100
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld
slurmd
for _ in $(seq 120); do
    if [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; then
        echo "$folder"
        exit 0
    fi
    sleep 0.25
done
echo "the node did not become idle; what the daemons said:" >&2
give_up
