"""`jztree_utils.torch_bridge`: tensors without copies, and derivatives compared with those computed by PyTorch."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from jztree.data import PosMass
from jztree.density import knn_density
from jztree.fof import fof_labels
from jztree.knn import knn
from jztree.radius import neighbours_within
from jztree_utils.torch_bridge import differentiable, to_torch

K = 5
DEVICE = to_torch(jax.numpy.zeros(1)).device  # of results


def tensor(rows: int, kind: Any, seed: int = 1) -> Any:
    return torch.rand(rows, 3, generator=torch.Generator().manual_seed(seed), dtype=kind).to(DEVICE)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_tensors_are_accepted(kind: Any) -> None:
    pos, query = tensor(300, kind), tensor(40, kind, seed=2)
    for find in (knn, knn.jit):
        rad, idx = to_torch(find(pos, K, part_query=query))
        expected = torch.cdist(query.double(), pos.double()).topk(K, largest=False)
        torch.testing.assert_close(rad.double(), expected.values, rtol=1e-5, atol=1e-6)
        assert (idx.long() == expected.indices).float().mean() > 0.99
    lists = to_torch(neighbours_within.jit(pos.T.contiguous().T, 0.2))
    is_near = torch.cdist(pos.double(), pos.double()) <= 0.2
    assert torch.equal(torch.diff(lists.splits).long(), is_near.sum(dim=1))


@pytest.mark.parametrize("find", [knn, knn.jit])
def test_dtypes_that_numpy_lacks(find: Any) -> None:
    pos, mass = tensor(60, torch.float32), torch.arange(60, device=DEVICE).bfloat16()
    idx, result = find(PosMass(pos=pos, mass=mass), K, result="globalidx_mass")
    assert torch.equal(to_torch(result), mass[to_torch(idx).long()])
    with pytest.raises(TypeError, match="positions must be float32 or float64, not bfloat16"):
        find(pos.bfloat16(), K)


def test_results_are_not_copied() -> None:
    rad, _ = knn.jit(tensor(300, torch.float32), K)
    assert to_torch(rad).data_ptr() == rad.unsafe_buffer_pointer()
    given = torch.rand(4096, 3)
    result = np.from_dlpack(given)
    assert result.ctypes.data == given.data_ptr()


def test_results_of_plain_calls_are_tensors() -> None:
    given = torch.rand(300, 3)
    partz, labels = to_torch(fof_labels(given, 0.1, output_order="input"))
    assert isinstance(partz, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    torch.testing.assert_close(partz, given)
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    assert to_torch(fixed).tolist() == [0, 1, 2]


def own_distances(pos: Any, query: Any, idx: Any, box: float | None) -> Any:
    """Compute distances in PyTorch, which differentiates them."""
    separation = query[:, None] - pos[idx.long()]
    if box is not None:
        separation = separation - box * torch.round(separation.detach() / box)
    return separation.norm(dim=-1)


@pytest.mark.parametrize("box", [None, 1.0])
def test_gradients_of_distances(box: float | None) -> None:
    nearest = differentiable(lambda pos, query: knn.jit(pos, K, box, part_query=query))
    pos, query = tensor(60, torch.float64).requires_grad_(), tensor(9, torch.float64, seed=2).requires_grad_()
    weight = tensor(9, torch.float64, seed=3).repeat(1, 2)[:, :K]
    rad, idx = nearest(pos, query)
    assert (rad.dtype, idx.dtype, idx.requires_grad) == (torch.float64, torch.int32, False)
    (weight * rad**2).sum().backward()
    result = pos.grad.clone(), query.grad.clone()
    pos.grad = query.grad = None
    (weight * own_distances(pos, query, idx, box) ** 2).sum().backward()
    torch.testing.assert_close(result[0], pos.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result[1], query.grad, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: nearest(x, query)[0], (pos.detach()[:20].requires_grad_(),))
    assert not jax.config.jax_enable_x64


def test_only_tensors_that_require_gradients_get_them() -> None:
    nearest = differentiable(lambda pos, query: knn.jit(pos, K, part_query=query)[0])
    pos, query = tensor(60, torch.float32), tensor(9, torch.float32, seed=2).requires_grad_()
    rad = nearest(pos, query)
    assert rad.dtype == torch.float32
    rad.sum().backward()
    assert pos.grad is None
    assert query.grad.shape == (9, 3)
    with torch.no_grad():
        assert not nearest(pos, query).requires_grad


def test_second_derivatives() -> None:
    """Include a constant gradient of the first differentiation, so that only the positions contribute."""
    nearest = differentiable(lambda pos, query: knn.jit(pos, K, part_query=query))
    pos, query = tensor(20, torch.float64), tensor(4, torch.float64, seed=2)
    idx = nearest(pos, query)[1]
    hessian = torch.autograd.functional.hessian
    for power in (1, 3):
        result = hessian(lambda x, power=power: (nearest(x, query)[0] ** power).sum(), pos)
        expected = hessian(lambda x, power=power: (own_distances(x, query, idx, None) ** power).sum(), pos)
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)
    both = pos.clone().requires_grad_(), query.clone().requires_grad_()
    varies = 0 if DEVICE.type == "cpu" else 1e-12  # a GPU adds in any order
    assert torch.autograd.gradgradcheck(lambda x, y: nearest(x, y)[0], both, nondet_tol=varies)


def test_layer_can_be_trained() -> None:
    """Points are moved until their 3rd neighbours are at a target distance."""
    third = differentiable(lambda pos: knn.jit(pos, 3, exclude_self=True)[0][:, 2])
    pos = tensor(80, torch.float32).requires_grad_()
    optimizer = torch.optim.Adam([pos], lr=0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = ((third(pos) - 0.3) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_densities_through_the_bridge() -> None:
    pos = tensor(100, torch.float64).requires_grad_()
    density = differentiable(functools.partial(knn_density.jit, k=8))(pos)
    (gradient,) = torch.autograd.grad(density.log().sum(), pos)
    with jax.enable_x64(True):
        expected = jax.grad(lambda x: jax.numpy.log(knn_density.jit(x, k=8)).sum())(pos.detach().cpu().numpy())
    np.testing.assert_allclose(gradient.cpu().numpy(), expected, rtol=1e-10)


def test_invalid_arguments_raise() -> None:
    pos = tensor(60, torch.float32).requires_grad_()
    for find in (knn, knn.jit):
        with pytest.raises(TypeError, match=r"^an argument is an array of torch.*torch_bridge, which has derivatives"):
            find(pos, K)
        with pytest.raises(TypeError, match=r"^mass is an array of torch"):
            find(PosMass(pos=pos.detach(), mass=pos[:, 0]), K)
    with pytest.raises(TypeError, match="argument 0 has type ndarray; it must be a tensor of PyTorch"):
        differentiable(lambda x: knn.jit(x, K))(np.zeros((9, 3)))
    with pytest.raises(ValueError, match="argument 1 holds 1099511627776, but JAX keeps only 32 bits"):
        differentiable(lambda x, ids: (x, ids))(pos, torch.tensor([2**40, 5]))
    with pytest.raises(TypeError, match="argument 0 is complex"):
        differentiable(lambda x: abs(x).sum())(torch.ones(3, dtype=torch.complex64).requires_grad_())


@pytest.mark.parametrize("kind", ["meta", "sparse", "nested", "quantized"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_that_are_not_dense_raise(kind: str) -> None:
    make: dict[str, Any] = {
        "meta": lambda: torch.rand(9, 3, device="meta"),
        "sparse": lambda: torch.eye(3).to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)]),
        "quantized": lambda: torch.quantize_per_tensor(torch.rand(9, 3), 0.1, 0, torch.qint8),
    }
    with pytest.raises(TypeError, match=f"argument 1 is a {kind} tensor; give a dense tensor"):
        differentiable(lambda x, y: (x, y))(torch.rand(2), make[kind]())


def test_views_of_complex_numbers() -> None:
    given = torch.complex(torch.rand(9), torch.rand(9))
    for view in (given.conj(), given.conj().imag):
        torch.testing.assert_close(differentiable(lambda x: 2 * x)(view), 2 * view)


def test_unsupported_transformations_are_refused() -> None:
    double, given = differentiable(lambda x: 2 * x), torch.rand(3)
    jacobian = functools.partial(torch.autograd.functional.jacobian, double, given, vectorize=True)
    refused: list[Any] = [
        lambda: torch.func.grad(lambda x: double(x).sum())(given),
        lambda: torch.func.vmap(double)(given),
        lambda: torch.func.jvp(double, (given,), (given,)),
        jacobian,
        lambda: jacobian(strategy="forward-mode"),
    ]
    for call in refused:
        with pytest.raises(NotImplementedError, match="supports only backward derivatives, one gradient at a time"):
            call()
    complete = torch.autograd.functional.jacobian(double, given)
    torch.testing.assert_close(complete, 2 * torch.eye(3))


def test_compiled_functions_may_call_it() -> None:
    double = differentiable(lambda x: 2 * x)
    compiled = torch.compile(lambda x: (double(x + 1) ** 2).sum(), backend="eager")
    given = torch.rand(3, requires_grad=True)
    result = compiled(given)
    torch.testing.assert_close(result, 4 * ((given + 1) ** 2).sum())
    result.backward()
    torch.testing.assert_close(given.grad, 8 * (given.detach() + 1))
