# What the job scripts beside it share: each sources it in the job.
#
# Site options come before the script, such as an account (-A), a partition (-p)
# or a limit (--time). Without --ntasks-per-node there is a rank for each GPU of
# a node, or two on a node without GPUs. Variables:
#
#   SETUP  a file that is sourced first: modules, conda, NCCL's variables
#   VENV   the virtual environment (default .venv in the folder where sbatch was
#          called), which all nodes have to see
#
# srun hands the environment on to every node.
# shellcheck shell=bash
if [ -n "${SETUP:-}" ]; then
    set +u # files of a site rarely bear it
    # shellcheck disable=SC1090
    source "$SETUP"
    set -u
fi
export PATH="${VENV:-$SLURM_SUBMIT_DIR/.venv}/bin:$PATH"
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}

# A job with --exclusive has all GPUs of its nodes, but srun hands them to ranks
# only where it is told how many.
gpus=${SLURM_GPUS_ON_NODE:-0}
if ((gpus > 0)) && [ -z "${SLURM_GPUS_PER_TASK:-}" ]; then
    export SLURM_GPUS_PER_NODE=${SLURM_GPUS_PER_NODE:-$gpus}
fi
ranks_per_node=$((gpus > 0 ? gpus : 2))
if [ -z "${SLURM_NTASKS:-}" ]; then
    export SLURM_NTASKS=$((SLURM_NNODES * ranks_per_node))
    export SLURM_TASKS_PER_NODE="$ranks_per_node(x$SLURM_NNODES)"
fi
