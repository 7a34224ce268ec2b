"""Invalid calls of the command line, and the messages that name the fault and its remedy."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

# All calls run in a folder with these files. The values of the tables are parts of the messages.
FILES = ["folder", "snap_007.hdf5", "snap_008.hdf5"]
MISSING = "The file snop_007.hdf5 does not exist; check the path; snap_007.hdf5 has a similar name."
WITHOUT_JAX = {
    "fof": "No snapshot was given",
    "fof snop_007.hdf5": MISSING,
    "fof sample snop_007.hdf5": MISSING,
    "fof sample --rlink -1": "--rlink is -1; it must be finite",
    "fof sample --scan-b 0.1": "--scan-b is 0.1; it must be",
    "fof sample --b 20": "--b is 20",
    "fof sample --overdensity x": "--overdensity is x",
    "fof sample --unit-mass x": "--unit-mass is x",
    "fof sample -o {x}.hdf5": "The output {x}.hdf5 has the unknown placeholder {x}",
    "fof sample -o none/x.hdf5 --snapshot-output x.hdf5": "The folder of the output none/x.hdf5 is missing",
    "fof sample --plot none/x.png": "The folder of the output none/x.png is missing",
    "fof sample -o .": "The output . exists and is not a regular file",
    "fof sample --omega0 nan": "--omega0 is nan; it must be a number from 0 to 1e+06",
    "fof sample --redshift -3": "--redshift is -3; it must be",
    "fof sample --memory 1MB": "--memory is 1 MB, but Python and the compiled searches alone need 524 MB",
    "fof sample --plot halos.docx": "The picture halos.docx does not have the suffix of a known format",
    "fof sample -o x.hdf5 --snapshot-output ./x.hdf5": "Two outputs have the same name, x.hdf5",
    "fof sample --colour -k 3": "jztree fof has no option --colour -k 3; see jztree fof --help.",
    "fof sample --b wide": "--b",
    "fof sample --b 0.2 --rlink 1": "Both --b and --rlink were given",
    "fof sample --b -0.2": "--b is -0.2",
    "fof sample --b nan": "--b is nan",
    "fof sample --rlink nan": "--rlink is nan",
    "fof sample --rlink inf": "--rlink is inf",
    "fof sample --npart-min 0": "--npart-min is 0",
    "fof sample --npart-min 2.5": "--npart-min",
    "fof sample --type -1": "--type is -1",
    "fof sample --scan-b -0.1:0.2": "--scan-b is -0.1:0.2; it must be",
    "fof sample --boxsize -50,50,50": "--boxsize is -50,50,50; it must be",
    "fof sample --plot halos": "does not have the suffix of a known format",
    "fof sample --plot missing/halos.png": "create the folder",
    "fof sample --plot a.eps -o ./a.eps": "different names",
    "fof snap_007.hdf5 snap_008.hdf5 -o s_{n}.hdf5 --plot s_{n}.hdf5": "does not have the suffix of a known format",
    "fof snap_007.hdf5 snap_008.hdf5 -o c_{foo}.hdf5": "has the unknown placeholder {foo}; use {n} for the number",
    "fof snap_007.hdf5 snap_008.hdf5 -o c_{n}_{}.hdf5": "has the unknown placeholder {};",
    "fof snap_007.hdf5 snap_008.hdf5 -o c_{n}.hdf5 --plot c_{m}.png": "has the unknown placeholder {m};",
    "fof sample --attach 0,,4": "--attach is 0,,4; it must be particle types",
    "fof sample --boxsize 1_0": "--boxsize is 1_0; it must be a length",
    "fof snap_007.hdf5 snap_008.hdf5 -o {n}.png": "--plot and jztree plot draw pictures",
    "fof sample --attach 0,1": "--attach has type 1, which is already the grouped type (--type); leave it out.",
    "fof sample --attach gas": "--attach is gas; it must be particle types",
    "fof sample --boxsize wide": "--boxsize is wide; it must be a length",
    "fof sample --boxsize 1e-400": "--boxsize is 1e-400; it must be a length",
    "fof sample --config none.toml": "The configuration file none.toml does not exist",
    "fof sample --scan-b 0.3:0.1": "--scan-b is 0.3:0.1; it must be the first and the last linking length",
    "fof sample --scan-b 0.1:x": "--scan-b is 0.1:x; it must be",
    "fof sample --scan-b 0.1:0.3:1": "--scan-b is 0.1:0.3:1; it must be",
    "fof sample --scan-b 0.1:0.3 --b 0.2": "--b has no effect with --scan-b",
    "fof sample --scan-b 0.1:0.3 -o halos.hdf5": "--output has no effect with --scan-b",
    "fof sample --scan-b 0.1:0.3 --properties": "--properties has no effect with --scan-b",
    "fof sample --scan-b 0.1:0.3 --npart-min 0": "--npart-min is 0; it must be at least 1",
    "fof sample --scan-b 0.1:0.3 --plot numbers.xyz": "does not have the suffix of a known format",
    "fof sample --softening 0.1": "--softening has no effect without --subhaloes",
    "fof sample --min-bound 5": "--min-bound has no effect without --subhaloes",
    "fof sample --candidates phase-space": "--candidates has no effect without --subhaloes",
    "fof sample --subhaloes --softening -1": "--softening is -1",
    "fof sample --subhaloes --min-bound 0": "--min-bound is 0",
    "knn sample -k 0": "-k is 0; it must be at least 1",
    "knn sample --unit-length 1e99": "--unit-length is 1e+99; it must be a number from 1e-60 to 1e+60, in cm",
    "knn sample -k -3": "-k is -3",
    "knn sample -k eight": "Argument -k: 'eight'",
    "knn sample -k 2 --density": "at least 3",
    "knn none.hdf5": "The file none.hdf5 does not exist; check the path.",
    "hdbscan sample --min-samples 0": "--min-samples is 0; it must be at least 1",
    "hdbscan sample --min-cluster-size 1": "--min-cluster-size is 1; it must be at least 2",
    "hdbscan sample --epsilon -1": "--epsilon is -1",
    "hdbscan sample --method oem": "--method",
    "hdbscan sample --plot clusters.xyz": "clusters.xyz",
    "xi sample --bins 3": "--bins is 3; it must be",
    "xi sample --projected -1": "--projected is -1",
    "xi sample --bins -1,20,5": "--bins is -1,20,5; it must be",
    "xi sample --bins -.1,20,5": "--bins is -.1,20,5; it must be",
    "xi sample --bins 1,2": "--bins is 1,2; it must be the start (above 0), the end and the number",
    "xi sample --bins 0,2,4": "the start (above 0)",
    "xi sample --bins 2,1,4": "--bins is 2,1,4",
    "xi sample --bins nan,1,4": "--bins is nan,1,4",
    "xi sample --bins 0.1,inf,4": "--bins is 0.1,inf,4",
    "xi sample --bins 0.1,1,0": "--bins is 0.1,1,0",
    "xi sample --bins 0.1,1,99999999": "the number (from 1 to 10000) of the bins, such as",
    "xi sample --bins 0.1,1,4 --los x": "--los x has no effect without --projected;",
    "xi sample --bins 0.1,1,4 --projected -1": "--projected is -1; it must be a positive length",
    "xi sample --plot xi.hdf5": "The picture xi.hdf5 does not have the suffix",
    "xi sample -o xi.png": "would be an HDF5 file",
    "convert": "convert needs an input file",
    "convert snop_007.hdf5 -o x.npz": MISSING,
    "convert snap_007.hdf5 -o x_{n}.hdf5": "has the unknown placeholder {n}; leave it out.",
    "plot density snap_007.hdf5 -o x_{n}.png": "has the unknown placeholder {n}; leave it out.",
    "convert sample -o x.hdf5 --layout numpy": "The output x.hdf5 would be a NumPy file of several arrays",
    "convert sample -o x.npz --layout gadget4": "The output x.npz would be an HDF5 file",
    "convert sample -o x.hdf5 --layout parquet": "The output x.hdf5 would be a Parquet file",
    "plot": "plot needs a kind (halos, ",
    "plot density snop_007.hdf5": MISSING,
    "plot halos sample": "plot halos needs the groups",
    "plot density sample --slab 3": "--slab is 3",
    "plot density sample -o x": "The picture x does not have the suffix of a known format",
    "plot density sample --smooth 1": "--smooth is 1; give 0, or at least 2 neighbours",
    "plot density sample --slab 5,5": "--slab is 5,5; it must be two different finite numbers",
    "plot mass-function sample --sigma8 nan": "--sigma8 is nan; it must be a positive number",
    "plot halo sample": "plot halo needs the groups of the snapshot; give their catalogue",
    "plot halo sample --smooth 8 --catalogue sample": "plot halo does not have --slab and --smooth",
    "plot density sample --slab 10": "--slab is 10; it must be two numbers, such as 10,15.",
    "plot density sample --slab a,b": "--slab is a,b; it must be two numbers",
    "plot density sample --slab -5,-5": "--slab is -5,-5; it must be two different finite numbers",
    "plot sizes sample sample": "draws one file, but 2 were given; give one.",
    "plot heat a": "invalid choice: 'heat'",
    "view sample --catalogue snop_007.hdf5": MISSING,
    "view sample": "view needs the name",
    "view sample -o none/x.html": "The folder of the output none/x.html is missing",
    "view sample -o x.png": "The view x.png would be an HTML file",
    "tree": "tree needs snapshots or catalogues",
    "tree sample sample -o trees.hdf5": "The file sample does not exist",
    "tree . . -o trees.txt": "The output trees.txt would be an HDF5 file",
    "dance": "invalid choice",
    "verify sample": "verify needs a result and its snapshot, but 1 files were given",
    "verify sample sample --samples 0": "--samples is 0; it must be at least 1",
}
# The particles cause these faults.
WITH_JAX = {
    "fof sample --type 4": "no particles of type 4",
    "fof snap_007.hdf5 snap_008.hdf5 -o same.hdf5": "is a single name for 2 snapshots; add {n}",
    "fof snap_007.hdf5 snap_008.hdf5 -o c_{n}.hdf5/": "is not a file name; give one.",
    "fof snap_007.hdf5 --boxsize 1e300": "--b times the mean separation is inf",
    "fof snap_007.hdf5 snap_008.hdf5 --rlink 1e39 --boxsize 0": "store the positions as float64.",
    "fof snap_007.hdf5 --subhaloes --unit-length Mpc/h": "--subhaloes needs the units of the snapshot",
    "knn sample -k 110593": "only 110592 particles",
    "hdbscan snap_007.hdf5 --min-samples 351": "is 351, but the number of particles of type 1 is 350",
    "xi sample --boxsize 4,6,8 --bins 1,1.0000000000000002,3": "3 bins are too narrow for distinct edges",
    "xi sample --boxsize 4,6,8 --bins 0.1,2.5,4": "--bins ends at 2.5, but it must end at half the box, 2, or before",
    "xi sample --boxsize 4,6,8 --bins 0.1,1,4 --projected 5": "--projected ends at 5, but it must end at half",
    "xi sample --boxsize 4,6,8 --bins 0.1,2.5,4 --projected 1 --los y": "--bins ends at 2.5",
    "xi sample --boxsize 0": "The box is open, but the number of random pairs is known only for periodic boxes",
    "plot sizes sample": "is a snapshot; find its groups with jztree fof",
    "plot mass-function sample": "plot mass-function draws groups, but sample is a snapshot; find its groups",
    "plot halos sample --catalogue sample": "jztree fof sample -o halos.hdf5, and give halos.hdf5.",
}
OUTPUTS = {
    "missing/out.hdf5": "create the folder",
    "folder": "not a regular file",
    "snap_007.hdf5": "would overwrite",
    "./folder/../snap_007.hdf5": "would overwrite",
    "/dev/null": "not a regular file",
}
WITH_JAX |= {
    f"{command} snap_007.hdf5 -o {output}": words for command in ("fof", "knn") for output, words in OUTPUTS.items()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_gadget: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("calls")
    pos = np.random.default_rng(7).random((350, 3), np.float32)
    (folder / FILES[0]).mkdir()
    for name in FILES[1:]:
        write_gadget(folder / name, pos, columns={"ParticleIDs": np.arange(350), "Velocities": pos})
    return folder


def test_invalid_calls_are_reported_without_jax(folder: Path) -> None:
    """All calls in one process, which takes less time than starting Python for each."""
    calls = [command.split() for command in WITHOUT_JAX]
    run = f"import sys; from jztree_utils.cli import main; assert all(main(words) == 2 for words in {calls})"
    python = [sys.executable, "-P", "-c", f"{run}; assert 'jax' not in sys.modules"]
    done = subprocess.run(python, cwd=folder, capture_output=True, text=True, check=True)
    for (command, words), error in zip(WITHOUT_JAX.items(), done.stderr.splitlines(), strict=True):
        assert error.startswith("jztree: error: "), (command, error)
        assert words in error, (command, error)
    assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.fast
@pytest.mark.parametrize("command", WITHOUT_JAX | WITH_JAX)
def test_invalid_call_prints_one_line_and_writes_nothing(
    command: str, folder: Path, error_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert (WITHOUT_JAX | WITH_JAX)[command] in error_of(*command.split())
    assert sorted(path.name for path in folder.iterdir()) == FILES
