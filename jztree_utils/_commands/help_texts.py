"""The ``--help`` texts of the commands, apart from their options."""

DESCRIPTION = """\
Exact friends-of-friends groups and k nearest neighbours of the particles of a simulation snapshot."""
EPILOG = """\
SNAPSHOT is one of Gadget, AREPO, GIZMO or SWIFT in HDF5, or of Gadget in its old binary formats: the file, any file of
a snapshot in several, or the folder of one. It may also be any HDF5 file whose datasets are named with --pos and so on,
or a NumPy file (.npy, .npz). Which of these it is, is found out from its content. The word "sample" stands for a small
cosmological snapshot that comes with jztree (48^3 particles).
All devices are used, under srun and mpirun those of all processes; results do not depend on their number.
"""
_SEVERAL = """\
Of several snapshots each has its own output: {n} in its name stands for the number of the snapshot, {name} for its
name. Outputs that are there already are skipped, so that a job that was cut short goes on where it stopped; those of
other options or another snapshot are an error. Pictures without a catalogue are drawn anew.
"""
FOF_EPILOG = f"""\
Two particles are linked if they are at most the linking length apart, across the periodic boundary too. A group is
what is connected by links.

{EPILOG}
{_SEVERAL}
examples:
  jztree fof sample --plot halos.png
  jztree fof snapdir_099 -o catalogue.hdf5
  jztree fof snapdir_099 -o fof_tab_099.hdf5 --layout gadget4 --attach 0,4,5 --properties
  jztree fof snapdir_099 -o fof_subhalo_tab_099.hdf5 --layout gadget4 --snapshot-output snapshot_099.hdf5
  jztree fof snapshot_099.0.hdf5 --rlink 0.15 --npart-min 32 --type 4 -o stars.hdf5
  jztree fof snap_*.hdf5 -o 'cat_{{n}}.hdf5' --json
  jztree fof points.npy --boxsize 100 --b 0.2

The catalogue (HDF5) holds, for each group, number of particles, mass, centre, velocity, radii and velocity dispersion,
and the identifiers of its members; the largest group comes first. Every dataset has its unit as attributes.
Without masses or velocities in the snapshot, what needs them is left out.
"""
KNN_EPILOG = f"""\
The first neighbour of a particle is the particle itself, at distance 0, and counts as one of the K.

{EPILOG}
{_SEVERAL}
examples:
  jztree knn sample -k 8
  jztree knn snapdir_099 -k 32 --density -o density.hdf5
  jztree knn snapdir_099 -k 64 --kernel wendland_c2 --lists -o neighbours.hdf5

The kernel knn estimates the density as (m_2 + ... + m_(K-1)) / V(r_K): the mass of the neighbours, without the particle
itself and without the last one, over the volume of the ball that reaches to the last one (Casertano & Hut 1985). The
others are kernels of smoothed particle hydrodynamics that reach to the last neighbour. Particles are counted if the
snapshot has no masses.
The output (HDF5) holds distances and indices (rows of the snapshot, from 0), (N, K) each; with --density the densities
alone, or both with --lists.
"""
XI_EPILOG = f"""\
xi(r) says how many more pairs of particles are at a distance r than if they were spread at random in the periodic box:
xi = DD / RR - 1. All pairs are counted, each in both orders; one at an edge is in the bin below. Masses do not count.

{EPILOG}
{_SEVERAL}
examples:
  jztree xi sample --plot xi.png
  jztree xi snapdir_099 --bins 0.05,15,25 -o xi.hdf5
  jztree xi snapdir_099 --type 4 --projected 40 --bins 0.1,10,15 -o wp_stars.hdf5 --plot wp.pdf

The output (HDF5) holds edges and centres of bins, pairs, and the function. For weights, volumes that are no periodic
box, errors by jackknife and multipoles in redshift space, see jztree_utils.correlation in Python.
"""
CONVERT_EPILOG = """\
A halo catalogue of jztree, Gadget-4, AREPO or SWIFT becomes one in another layout, or a table in a Parquet file; a
snapshot in any format that is read becomes one in the format of Gadget-4 or a NumPy file. The suffix of the output and
--layout say which.

examples:
  jztree convert catalogue.hdf5 -o fof_tab_099.hdf5 --layout gadget4
  jztree convert catalogue.hdf5 -o catalogue.parquet
  jztree convert swift_0099.hdf5 -o snapshot_099.hdf5
  jztree convert snapdir_099 --type 0 -o gas.npz
"""
PLOT_EPILOG = """\
KIND is one of
  halos          projected density of SNAPSHOT with circles around its groups, and the distribution of group sizes
  density        projected density of SNAPSHOT, with circles if there is a --catalogue
  halo           the matter of SNAPSHOT around one halo of --catalogue, with its spheres
  mass-function  halo mass function of a catalogue with Poisson errors, beside an analytic one
  sizes          distribution of the sizes of groups of a catalogue
  distances      distribution of distances in a file of neighbours, beside that of uniform points
  scaling        times in the results of the benchmarks (.json)

Without -o the picture is shown.

examples:
  jztree plot density snapdir_099 --catalogue catalogue.hdf5 -o density.png
  jztree plot density snapdir_099 --slab 10,15 --smooth 16 --surface-density -o slab.png
  jztree plot halo snapdir_099 --catalogue catalogue.hdf5 --halo 3 -o halo.png
  jztree plot mass-function catalogue.hdf5 -o mass_function.pdf
  jztree plot mass-function catalogue.hdf5 --mass m200m -o mass_function_200m.pdf
"""
VIEW_EPILOG = """\
Haloes are points coloured by mass, each with three circles of its r200c, if the catalogue has that, and of its farthest
member. Turn with the left mouse button, move with the right one, zoom with the wheel; point at a halo to see what is
known of it; click at a name in the legend to hide or to show it. The file holds the program that shows it, so it needs
no server and no network. Making it needs plotly: pip install 'jztree-native[view]'.

examples:
  jztree view snapdir_099 --catalogue halos.hdf5 -o halos.html
  jztree view snapdir_099 --type 4 --particles 100000 -o stars.html
"""
