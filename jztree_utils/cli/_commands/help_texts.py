"""The ``--help`` texts of the commands, apart from their options."""

DESCRIPTION = """\
Exact friends-of-friends groups and k nearest neighbours of the particles of a simulation snapshot."""
EPILOG = """\
SNAPSHOT is an HDF5 file of Gadget, AREPO, GIZMO or SWIFT, or a file in the old binary formats of Gadget. If the
snapshot has several files, give the path of any file, or of the folder. SNAPSHOT may also be a NumPy file (.npy,
.npz), or any other HDF5 file if you name its datasets with --pos and similar options. The format is recognised from the
contents. The word "sample" means a small cosmological snapshot that is part of jztree (48^3 particles).
jztree uses all devices. Under srun and mpirun, it uses the devices of all processes. Results do not depend on the
number of devices.
"""
_SEVERAL = """\
If you give several snapshots, each has its own output. In the name of the output, {n} is replaced by the number of the
snapshot, and {name} by its name. Existing outputs are skipped. If a job was interrupted, run it again: it makes only
the missing outputs. If an existing output was made with other options or from another snapshot, the program stops with
an error. Pictures without a catalogue are always drawn again.
"""
FOF_EPILOG = f"""\
Two particles are linked if their distance is at most the linking length, also across the periodic boundary. Particles
that are connected by links form a group.

{EPILOG}
{_SEVERAL}
examples:
  jztree fof sample --plot halos.png
  jztree fof snapdir_099 -o catalogue.hdf5
  jztree fof snapdir_099 -o fof_tab_099.hdf5 --layout gadget4 --attach 0,4,5 --properties
  jztree fof snapdir_099 -o fof_subhalo_tab_099.hdf5 --layout gadget4 --snapshot-output snapshot_099.hdf5
  jztree fof snapdir_099 --subhaloes --layout gadget4 -o fof_subhalo_tab_099.hdf5
  jztree fof snapshot_099.0.hdf5 --rlink 0.15 --npart-min 32 --type 4 -o stars.hdf5
  jztree fof snap_*.hdf5 -o 'cat_{{n}}.hdf5' --json
  jztree fof points.npy --boxsize 100 --b 0.2
  jztree fof snapdir_099 --scan-b 0.1:0.3 --plot numbers.png

The catalogue (HDF5) has the number of particles, mass, centre, velocity, radii and velocity dispersion of each group,
and the identifiers of its members. The largest group comes first. Every dataset has its unit as attributes.
If the snapshot has no masses or no velocities, the catalogue leaves out the columns that need them.
"""
KNN_EPILOG = f"""\
The first of the K neighbours of a particle is the particle itself, at distance 0.

{EPILOG}
{_SEVERAL}
examples:
  jztree knn sample -k 8
  jztree knn snapdir_099 -k 32 --density -o density.hdf5
  jztree knn snapdir_099 -k 64 --kernel wendland_c2 --lists -o neighbours.hdf5

The kernel knn estimates the density as (m_2 + ... + m_(K-1)) / V(r_K) (Casertano & Hut 1985). The mass is that of the
neighbours, without the particle itself and without the last neighbour. V(r_K) is the volume of the ball whose radius is
the distance of the last neighbour. The other kernels are those of smoothed particle hydrodynamics. Their radius is
the distance of the last neighbour. If the snapshot has no masses, every particle has the mass 1.
The output (HDF5) has distances and indices (rows of the snapshot, from 0), (N, K) each. With --density, it has only
densities. With --density --lists, it has both.
"""
HDBSCAN_EPILOG = f"""\
Clusters are regions that stay denser than their surroundings over a long range of densities (Campello, Moulavi & Sander
2013). They need no linking length. Particles between clusters are noise. All devices find the tree of clusters, and the
first process selects the clusters.

{EPILOG}
{_SEVERAL}
examples:
  jztree hdbscan sample --plot clusters.png
  jztree hdbscan snapdir_099 --min-cluster-size 50 --min-samples 10 -o clusters.hdf5
  jztree hdbscan snapdir_099 --type 4 --method leaf --epsilon 0.01 -o streams.hdf5

The output (HDF5) has the cluster of each particle (-1 for noise), the strength of its membership and its outlier score,
in the order of the snapshot; and the number of particles, centre and radius of each cluster. The largest cluster comes
first.
"""
XI_EPILOG = f"""\
xi(r) = DD / RR - 1 compares two numbers of pairs at a distance r: DD of the particles, and RR that is expected for
random particles in the periodic box. Each pair counts twice, once in each order. A pair at an edge between two bins is
in the lower bin. Masses are not used.

{EPILOG}
{_SEVERAL}
examples:
  jztree xi sample --plot xi.png
  jztree xi snapdir_099 --bins 0.05,15,25 -o xi.hdf5
  jztree xi snapdir_099 --type 4 --projected 40 --bins 0.1,10,15 -o wp_stars.hdf5 --plot wp.pdf

The output (HDF5) has edges and centres of the bins, numbers of pairs, and the function. For weights, volumes other than
a periodic box, jackknife errors and multipoles in redshift space, see jztree_utils.correlation in Python.
"""
TREE_EPILOG = """\
INPUT is a snapshot, whose groups and subhaloes are found like by jztree fof --subhaloes; a catalogue with subhaloes and
identifiers of their members; or a catalogue of Gadget-4 or AREPO in the folder of its snapshot, whose particles are in
group order. The number at the end of its name is that of the snapshot.
The descendant of a subhalo is the one in the next catalogue with the largest sum of weights of common particles. If a
subhalo is lost for one output, the link skips this output.

examples:
  jztree tree snapdir_*/ -o trees.hdf5
  jztree tree fof_subhalo_tab_*.hdf5 -o trees.hdf5
  jztree tree groups_*/ -o trees.hdf5 --weights lhalotree
  jztree tree fof_subhalo_tab_*.hdf5 -o sublink.hdf5 --layout sublink

The output (HDF5) has the subhaloes of every catalogue, tree after tree in depth-first order, and the columns that each
catalogue has. The layout gadget4 is that of Gadget-4's trees.hdf5, which ytree opens; the layout sublink has the
columns of SubLink. The command checks the links before it writes the file.
"""
CONVERT_EPILOG = """\
A halo catalogue of jztree, Gadget-4, AREPO or SWIFT is converted to another layout, or to a table in a Parquet file. A
snapshot in any readable format is converted to the format of Gadget-4 or to a NumPy file. The suffix of the output and
--layout select the format.

examples:
  jztree convert catalogue.hdf5 -o fof_tab_099.hdf5 --layout gadget4
  jztree convert catalogue.hdf5 -o catalogue.parquet
  jztree convert swift_0099.hdf5 -o snapshot_099.hdf5
  jztree convert snapdir_099 --type 0 -o gas.npz
"""
PLOT_EPILOG = """\
KIND is one of
  halos          projected density of SNAPSHOT with circles around its groups, and the distribution of group sizes
  density        projected density of SNAPSHOT, with circles around the groups of --catalogue, if given
  halo           the matter of SNAPSHOT around one halo of --catalogue, with its spheres
  tree           the progenitors of a subhalo in a file of jztree tree
  mass-function  halo mass function of a catalogue with Poisson errors, and an analytic mass function;
                 several catalogues of one simulation are drawn together, with their redshifts
  sizes          distribution of the sizes of groups of a catalogue
  distances      distribution of distances in a file of neighbours, and the distribution for uniform points

Without -o, a window shows the picture.

examples:
  jztree plot density snapdir_099 --catalogue catalogue.hdf5 -o density.png
  jztree plot density snapdir_099 --slab 10,15 --smooth 16 --surface-density -o slab.png
  jztree plot halo snapdir_099 --catalogue catalogue.hdf5 --halo 3 -o halo.png
  jztree plot tree trees.hdf5 -o tree.png
  jztree plot mass-function catalogue.hdf5 -o mass_function.pdf
  jztree plot mass-function catalogue.hdf5 --mass m200m -o mass_function_200m.pdf
"""
VIEW_EPILOG = """\
Haloes are points coloured by mass. If the catalogue has r200c, three circles around each halo show it. Three more show
the distance of its farthest member. Turn with the left mouse button, move with the right one, zoom with the wheel.
Point at a halo to see its properties; click a name in the legend to hide or show it. The file needs no server and no
network, because it contains plotly. This command needs plotly: pip install 'jztree-native[view]'.

examples:
  jztree view snapdir_099 --catalogue halos.hdf5 -o halos.html
  jztree view snapdir_099 --type 4 --particles 100000 -o stars.html
"""
VERIFY_EPILOG = """\
Rows are chosen at random and computed again in float64 NumPy: groups from distances to all particles; masses, centres,
radii, shapes and motions from the members; spheres, circular velocities and the other properties of --properties from
all matter; subhaloes; and lists of neighbours. Each line has the number of checked rows and the probability that their
sample misses an error. The last line names the columns that were not checked, such as the spins of subhaloes. The exit
status is 2 if a row is wrong.

examples:
  jztree verify halos.hdf5 snapdir_099
  jztree verify neighbours.hdf5 snapdir_099 --samples 1000
"""
