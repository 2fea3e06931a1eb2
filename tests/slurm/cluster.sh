#!/bin/bash
# A Slurm cluster of four nodes on one machine, for slurm/four_nodes.py: the first process of namespaces of its own.
# Processes, ports, host names and /run are private to it, so that all of it is gone when this process is.
set -euo pipefail
nodes=(n1 n2 n3 n4)

mount -t tmpfs slurm /run
mkdir -m 755 /run/munge /run/slurm
hostname controller
{ echo 127.0.0.1 localhost; printf '192.0.2.%d %s\n' 9 controller 1 n1 2 n2 3 n3 4 n4; } > /run/hosts
mount --bind /run/hosts /etc/hosts

# Slurm resolves no name where loopback is the only network.
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
for host in 1 2 3 4 9; do ip address add "192.0.2.$host/24" dev eth0; done

head -c 128 /dev/urandom > /run/munge/munge.key
chmod 600 /run/munge/munge.key
chown -R munge:munge /run/munge
as_munge=(setpriv --reuid munge --regid munge --clear-groups)
"${as_munge[@]}" munged --foreground --key-file /run/munge/munge.key --log-file /run/munge/log --pid-file /run/munge/pid \
    --seed-file /run/munge/seed --socket /run/munge/munge.socket.2 &

cat > /run/slurm.conf <<'CONF'
ClusterName=four
SlurmctldHost=controller
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2
StateSaveLocation=/run/slurm/ctld
SlurmdSpoolDir=/run/slurm/%n
SlurmctldPidFile=/run/slurm/ctld.pid
SlurmdPidFile=/run/slurm/%n.pid
SlurmctldLogFile=/run/slurm/ctld.log
SlurmdLogFile=/run/slurm/%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Without it a node with more processors than the machine has is no valid node.
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
CompleteWait=0
KillWait=5
GresTypes=gpu
CONF
# Two GPUs a node, as far as Slurm can tell: it counts device files, and names them in CUDA_VISIBLE_DEVICES.
for gpu in 0 1; do mknod "/run/gpu$gpu" c 1 3; done
for i in 1 2 3 4; do
    echo "NodeName=n$i NodeHostname=controller NodeAddr=n$i Port=$((17000 + i)) CPUs=8 Gres=gpu:2" >> /run/slurm.conf
    echo "NodeName=n$i Name=gpu File=/run/gpu[0-1]" >> /run/gres.conf
done
echo 'PartitionName=all Nodes=n[1-4] Default=YES MaxTime=1:00:00 State=UP' >> /run/slurm.conf

until [ -S /run/munge/munge.socket.2 ]; do sleep 0.05; done
export SLURM_CONF=/run/slurm.conf
mkdir /run/slurm/ctld "${nodes[@]/#//run/slurm/}"
slurmctld -D &
for node in "${nodes[@]}"; do slurmd -D -N "$node" & done
wait
