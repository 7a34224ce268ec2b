"""Particle classes: every class must give the result of brute force, or an error of one sentence, in every function."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree import data
from jztree.config import CatalogueConfig, FofConfig
from jztree_utils import io

N, K, RLINK = 60, 3, 0.12
CFG = FofConfig(catalogue=CatalogueConfig(npart_min=2))


def columns(n: int = N) -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {
        "pos": jnp.asarray(oracles.uniform(n, 2)),
        "mass": jnp.asarray(random.random(n) + 1, jnp.float32),
        "id": jnp.asarray(random.permutation(n) + 5, jnp.int32),
    }


# Classes that work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Frozen:
    pos: Any
    mass: Any
    id: Any
    num: Any = None
    num_total: Any = None  # traced, because it is a leaf here


class Named(NamedTuple):
    pos: Any
    mass: Any
    id: Any
    num: Any = None


@jax.tree_util.register_pytree_node_class
class Hidden:
    """Stores its arrays in slots, and has properties for them."""

    __slots__ = ("_columns", "num")

    def __init__(self, num: Any = None, **columns: Any) -> None:
        self._columns, self.num = columns, num

    def tree_flatten(self) -> Any:
        return (*self._columns.values(), self.num), tuple(self._columns)

    @classmethod
    def tree_unflatten(cls, names: Any, values: Any) -> Any:
        return cls(values[-1], **dict(zip(names, values[:-1], strict=True)))

    pos = property(lambda self: self._columns["pos"])
    mass = property(lambda self: self._columns["mass"])
    id = property(lambda self: self._columns["id"])


@jax.tree_util.register_pytree_node_class
class Halved:
    """Computes its positions; for one device only."""

    def __init__(self, pos: Any, mass: Any, id: Any, num: Any = None) -> None:
        self.x, self.y = pos[..., 0] / 2, pos[..., 1] / 2
        self.mass, self.id, self.num = mass, id, num

    def tree_flatten(self) -> Any:
        return (self.x, self.y, self.mass, self.id, self.num), None

    @classmethod
    def tree_unflatten(cls, _: Any, values: Any) -> Any:
        built = object.__new__(cls)
        built.x, built.y, built.mass, built.id, built.num = values
        return built

    pos = property(lambda self: jnp.stack([2 * self.x, 2 * self.y], axis=1))


GOOD = {"library": data.ParticleData, "frozen": Frozen, "named tuple": Named, "hidden": Hidden, "computed": Halved}
good = pytest.mark.parametrize("cls", GOOD.values(), ids=GOOD)

# Classes that do not work


@dataclass
class Plain:
    pos: Any
    mass: Any
    id: Any
    num: Any = None


@jax.tree_util.register_dataclass
@dataclass
class StaticPos:
    mass: Any
    id: Any
    pos: Any = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class StaticMass:
    pos: Any
    id: Any
    mass: Any = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class StaticIds:
    pos: Any
    mass: Any
    id: Any = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass
class Computed:
    whole: Any = field(metadata={"static": True})
    mass: Any = None
    id: Any = None

    @property
    def pos(self) -> Any:
        return 2 * self.whole.pos


@jax.tree_util.register_pytree_node_class
class Forgetful:
    """Does not register its identifiers with JAX."""

    def __init__(self, pos: Any, mass: Any, id: Any) -> None:
        self.pos, self.mass, self.id = pos, mass, id

    def tree_flatten(self) -> Any:
        return (self.pos, self.mass), self.id

    @classmethod
    def tree_unflatten(cls, id: Any, values: Any) -> Any:
        return cls(*values, id)


def records(pos: Any, mass: Any, id: Any) -> Any:
    rows = np.zeros(np.shape(mass), [("pos", "f4", 2), ("mass", "f4"), ("id", "i4")])
    rows["pos"], rows["mass"], rows["id"] = pos, mass, id
    return rows.view(np.recarray)


BAD = {
    "dataclass": (Plain, "Plain.*register_dataclass"),
    "namespace": (SimpleNamespace, "SimpleNamespace.*register_dataclass"),
    "dict": (dict, r"dict; .*ParticleData"),
    "class": (lambda **_: data.ParticleData, "are the class ParticleData itself"),
    "static pos": (StaticPos, "pos of StaticPos.*leaves"),
    "static mass": (StaticMass, "mass of StaticMass.*leaves"),
    "static ids": (StaticIds, "id of StaticIds.*leaves"),
    "pos computed of none": (lambda pos, **_: Computed(data.Pos(pos=pos)), "pos of Computed is computed.*leaf"),
    "forgetful": (Forgetful, "id of Forgetful.*leaves"),
    "records": (records, r"records \(pos, mass, id\)|float32 or float64"),
    "list of masses": (lambda mass, **others: data.ParticleData(mass=mass.tolist(), **others), "mass.*list"),
    "list of ids": (lambda id, **others: data.ParticleData(id=id.tolist(), **others), "id .*list"),
    "list of velocities": (
        lambda pos, **others: data.ParticleData(pos=pos, vel=np.asarray(pos).tolist(), **others),
        "vel .*list",
    ),
    "list of positions": (lambda pos, **others: data.ParticleData(pos=pos.tolist(), **others), "pos .*list"),
    "text": (
        lambda id, **others: data.ParticleData(id=np.asarray(id).astype(str), **others),
        "id is an array of text|whose rows",
    ),
}
bad = pytest.mark.parametrize(("cls", "words"), BAD.values(), ids=BAD)

OTHERS = data.ParticleData(**columns(20))


def catalogue_of(part: Any) -> Any:
    """Return the catalogue of such particles, in a class that works."""
    return jz.fof.fof_and_catalogue(data.ParticleData(**columns()), RLINK, cfg=CFG)


def entries(twin: str) -> dict[str, Any]:
    """Return all public functions of particles: name -> function of a particle class. twin: "", "jit" or "smap"."""

    def of(function: Any) -> Any:
        if not twin:
            return function
        return function.jit if twin == "jit" else function.smap(mesh_of(1), jit=True)

    def dealt(part: Any) -> Any:
        return part if twin != "smap" else jax.tree.map(lambda leaf: leaf[None], part)

    second, tree, knn, density = dealt(OTHERS), jz.tree, jz.knn.knn, jz.density
    calls = {
        "zsort": of(tree.zsort),
        "search_sorted_z": lambda part: of(tree.search_sorted_z)(part, second),
        "search_sorted_z query": lambda part: of(tree.search_sorted_z)(second, part),
        "build_tree_hierarchy": of(tree.build_tree_hierarchy),
        "zsort_and_tree": of(tree.zsort_and_tree),
        "multi type": lambda part: of(tree.zsort_and_tree_multi_type)([second, part]),
        "knn": lambda part: of(knn)(part, K),
        "knn part": lambda part: of(knn)(part, K, result="part"),
        "knn query": lambda part: of(knn)(second, K, part_query=part),
        "fof_labels": lambda part: of(jz.fof.fof_labels)(part, RLINK),
        "distr_fof_labels": lambda part: of(jz.fof.distr_fof_labels)(part, RLINK),
        "fof_and_catalogue": lambda part: of(jz.fof.fof_and_catalogue)(part, RLINK),
        "attached": lambda part: of(jz.fof.fof_and_catalogue)(second, RLINK, attached=part),
        "several attached": lambda part: of(jz.fof.fof_and_catalogue)(second, RLINK, attached=[second, part]),
        "smoothing_length": lambda part: of(density.smoothing_length)(part, K),
        "knn_density": lambda part: of(density.knn_density)(part, K),
        "sph_density": lambda part: of(density.sph_density)(part, K),
        "density query": lambda part: of(density.knn_density)(second, K, queries=part),
        "overdensity": lambda part: of(jz.overdensity.spherical_overdensity)(part, 2.0, queries=second),
        "centres": lambda part: of(jz.overdensity.spherical_overdensity)(second, 2.0, queries=part),
        "densest_particle": lambda part: of(jz.halos.densest_particle)(
            part, dealt(catalogue_of(part)[1]), dealt(jnp.ones(N))
        ),
    }
    if twin != "jit":
        calls["distr_zsort"] = of(tree.distr_zsort)
    if not twin:
        calls |= {
            "pad": lambda part: data.pad_particles(part, 3),
            "squeeze": data.squeeze_particles,
            "expand": lambda part: data.expand_particles(part, 2),
            "flatten": data.flatten_particles,
            "map_rows": lambda part: data.map_rows(lambda leaf: leaf[::-1], part),
            "split_rows": data.split_rows,
            "canonical_order": lambda part: io.canonical_order(part, catalogue_of(part)[1]),
        }
    return calls


@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
@bad
def test_unsupported_particle_classes_are_refused_by_every_function(twin: str, cls: Any, words: str) -> None:
    part = cls(**columns()) if twin != "smap" else cls(**{name: leaf[None] for name, leaf in columns().items()})
    for name, call in entries(twin).items():
        with pytest.raises(TypeError, match=words) as error:
            call(part)
        assert oracles.one_sentence(error), name


@pytest.mark.parametrize("twin", ["", "jit"], ids=["plain", "jit"])
@good
def test_neighbours_keep_their_particle_class(cls: Any, twin: str) -> None:
    knn = jz.knn.knn.jit if twin else jz.knn.knn
    given = columns()
    last = "rad" if cls is Hidden else "id"  # words are names of fields, not of properties
    rad, idx, nearest, ids = knn(cls(**given), K, result=f"rad_globalidx_part_{last}")
    pos = np.asarray(given["pos"])
    oracles.assert_neighbours(rad, idx, pos, pos, None)
    assert type(nearest) is cls
    np.testing.assert_array_equal(nearest.id, given["id"][idx])
    np.testing.assert_array_equal(nearest.mass, given["mass"][idx])
    if cls is not Hidden:
        np.testing.assert_array_equal(ids, given["id"][idx])


@pytest.mark.parametrize(
    ("cls", "ndev"),
    [
        pytest.param(cls, ndev, marks=() if ndev == 1 or cls is Named else pytest.mark.slow)
        for cls in GOOD.values()
        for ndev in (1, 2)
    ],
)
def test_groups_of_every_class(cls: Any, ndev: int) -> None:
    given = columns()
    expected = oracles.components(np.asarray(given["pos"]), RLINK)
    part = data.expand_particles(cls(**given), ndev, npad=4)
    assert type(part) is cls
    grouped, cata = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)(part, RLINK, cfg=CFG)
    assert type(grouped) is cls
    joined = data.flatten_particles(grouped)
    assert type(joined) is cls
    row = {int(item): i for i, item in enumerate(given["id"])}
    rows = np.array([row[int(array)] for array in joined.id])
    np.testing.assert_array_equal(joined.pos, given["pos"][rows])
    np.testing.assert_array_equal(joined.mass, given["mass"][rows])
    nparts = np.asarray(grouped.num)
    complete = data.squeeze_catalogue(cata, offset_mode="global", nparts=nparts)
    mass = np.asarray(given["mass"], np.float64)
    for i in range(complete.ngroups):
        members = rows[complete.offset[i] : complete.offset[i] + complete.count[i]]
        assert len(set(expected[members])) == 1
        assert (expected == expected[members[0]]).sum() == complete.count[i]
        np.testing.assert_allclose(complete.mass[i], mass[members].sum(), rtol=1e-5)
    assert complete.ngroups == (np.unique(expected, return_counts=True)[1] > 1).sum()


@good
def test_sorting_padding_and_distributing_keep_rows_together(cls: Any) -> None:
    part = cls(**columns())
    for moved in (
        jz.tree.zsort(part)[0],
        jz.tree.zsort_and_tree(part)[0],
        jz.tree.zsort_and_tree_multi_type([part])[0][0],
        data.squeeze_particles(data.pad_particles(part, 5)),
        data.flatten_particles(data.expand_particles(part, 7)),
        data.map_rows(lambda leaf: leaf[::-1], part),
    ):
        assert type(moved) is cls
        back, there = (np.argsort(np.asarray(item.id)) for item in (moved, part))
        for name in ("pos", "mass", "id"):
            ours, given = (np.asarray(getattr(item, name)) for item in (moved, part))
            np.testing.assert_array_equal(ours[back], given[there])


def test_num_that_cannot_be_set_raises() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class StaticNum:
        pos: Any
        num: Any = field(default=None, metadata={"static": True})

    class Counted(NamedTuple):
        pos: Any
        num = property(lambda self: self.pos.shape[0])

    pos = columns()["pos"]
    for part, words in ((StaticNum(pos, 50), "num of StaticNum is a static field"), (Counted(pos), "cannot be set")):
        assert jz.tree.zsort(part)[0].num == part.num
        with pytest.raises(TypeError, match=words) as error:
            data.expand_particles(part, 7)
        assert oracles.one_sentence(error)


def test_padding_needs_a_particle_class_with_num() -> None:
    pos = columns()["pos"]
    assert data.expand_particles(pos, 6).shape == (6, 10, 2)
    for ndev, npad in ((7, 0), (6, 1)):
        with pytest.raises(ValueError, match="needs a field num") as error:
            data.expand_particles(pos, ndev, npad)
        assert oracles.one_sentence(error)
