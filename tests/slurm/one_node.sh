#!/usr/bin/env bash
# A Slurm of one node on 127.0.0.1 for tests: no systemd, nothing under /etc, every file in DIR.
#
#   tests/slurm/one_node.sh start DIR    then: export SLURM_CONF=DIR/slurm.conf
#   tests/slurm/one_node.sh stop DIR
#
# Debian: apt-get install -y --no-install-recommends slurm-wlm munge. Run as root.
set -euo pipefail
action=${1:?start or stop} dir=$(realpath -m "${2:?a folder}")
node=$(hostname -s)
auth="$dir/run/munge.sock"

configure() { # configure CONTROLLER_PORT: slurm.conf and the folders it names
    mkdir -p "$dir"/{run,log,state,spool}
    chmod 755 "$dir" "$dir"/*
    cat > "$dir/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$1
SlurmdPort=$(($1 + 1))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$auth
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
KillWait=20
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=1000 State=UNKNOWN
PartitionName=tests Nodes=$node Default=YES MaxTime=60 State=UP
CONF
}

free_port() { # two free neighbours
    python3 - <<'PY'
import socket
for port in range(16817, 18000, 2):
    try:
        for one in (port, port + 1):
            with socket.socket() as s:
                s.bind(("127.0.0.1", one))
        print(port)
        break
    except OSError:
        continue
PY
}

start() {
    configure "$(free_port)"
    head -c 1024 /dev/urandom > "$dir/munge.key"
    chmod 400 "$dir/munge.key"
    munged --force --key-file="$dir/munge.key" --socket="$auth" --pid-file="$dir/run/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/run/munge.seed"
    slurmctld -c -f "$dir/slurm.conf"
    slurmd -f "$dir/slurm.conf"
    for _ in $(seq 60); do
        if [ "$(SLURM_CONF=$dir/slurm.conf sinfo -h -o %T 2> /dev/null)" = idle ]; then return; fi
        sleep 0.5
    done
    echo "the node did not become idle: see $dir/log" >&2
    stop
    exit 1
}

stop() { # ends the daemons that `start` started, by their ids
    for name in slurmd slurmctld munged; do
        if [ -f "$dir/run/$name.pid" ]; then kill "$(cat "$dir/run/$name.pid")" 2> /dev/null || true; fi
    done
}

export PATH="$PATH:/usr/sbin:/usr/local/sbin"
"$action"
