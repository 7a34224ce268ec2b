#!/bin/bash
# One node, one task per GPU: checks how JAX runs there, then runs your script with its arguments.
#
#   sbatch checks/slurm/one_node.sh my_script.py [argument ...]
#
# The script calls jztree.launch.initialize() before anything else. Set the number of GPUs of your nodes in two lines,
# add --partition and --account as your site requires, and load modules or activate an environment below.
#SBATCH --job-name=jztree
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out

set -eo pipefail

# module load ...
# source .../bin/activate

# Without this every task gets one CPU: srun does not take --cpus-per-task from the lines above (Slurm 22.05 and later).
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Keep the output printed before a crash.
export PYTHONUNBUFFERED=1
# Load all GPU code at the start: CUDA otherwise loads code when it is first used and then waits for the GPU, which can
# hang if a collective runs there.
export CUDA_MODULE_LOADING=EAGER

# If a task fails, end the others at once.
start="srun --kill-on-bad-exit=1"

$start python -m jztree_utils.check_cluster
if [ $# -gt 0 ]; then
    $start python "$@"
fi
