#!/bin/bash
# The checks of jztree that need a node with several GPUs. They take some minutes; run them once on a new cluster.
#
#   sbatch checks/slurm/several_gpus.sh          from the source folder, with jztree and the group `test` installed
#
# Set the number of GPUs of your nodes in two lines, add --partition and --account as your site requires, and load
# modules or activate an environment below. docs/gpu.md describes each step and its expected output.
#SBATCH --job-name=jztree-gpus
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out

set -eo pipefail

# module load ...
# source .../bin/activate

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export PYTHONUNBUFFERED=1
# Load all GPU code at the start: CUDA otherwise loads code when it is first used and then waits for the GPU, which can
# hang if a collective runs there.
export CUDA_MODULE_LOADING=EAGER
results=${RESULTS:-gpus-$SLURM_JOB_ID}
mkdir -p "$results"

echo "1. Collectives, one process per GPU: 'All results are right.', lax.ragged_all_to_all among them"
srun --kill-on-bad-exit=1 python -m jztree_utils.check_cluster

echo "2. The tests over devices, on four GPUs of one process: no test fails"
srun --ntasks=1 --gpus-per-task=4 env XLA_PYTHON_CLIENT_PREALLOCATE=false \
    python -m pytest -q -p no:cacheprovider -m "slow or not slow" tests/comm/test_comm.py tests/transform/test_mapping.py \
    tests/tree/test_zorder.py tests/knn/test_distr_knn.py tests/fof/test_distr_fof.py tests/fof/test_grouping.py tests/arguments/test_snapshots.py

echo "3. The same catalogue from four processes and from one: 'identical'"
srun --kill-on-bad-exit=1 jztree fof sample --output "$results/four.hdf5"
srun --ntasks=1 --gpus-per-task=1 jztree fof sample --output "$results/one.hdf5"
python - "$results/four.hdf5" "$results/one.hdf5" <<'PYTHON'
import sys

import h5py
import numpy as np


def datasets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


four, one = map(datasets, sys.argv[1:])
assert four.keys() == one.keys(), "the files hold different datasets"
for name in one:
    whole = np.issubdtype(one[name].dtype, np.integer)
    same = np.array_equal if whole else lambda a, b: np.allclose(a, b, rtol=1e-6, equal_nan=True)
    assert same(four[name], one[name]), f"{name} differs"
print("identical")
PYTHON

echo "4. Scaling: the time of a stage stays with the particles of a device (weak) and falls with devices (strong)"
srun --kill-on-bad-exit=1 python checks/profiling/multi_device.py --weak 10000000 --strong 40000000 \
    --output "$results/profile.json" --plot "$results/profile.png"
