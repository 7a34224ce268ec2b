"""Determine the work memory of a kernel call.

The work memory of a CUDA kernel is an additional result of its call, so XLA allocates it before the program runs. So no
call can run out of memory in the middle of a sequence of collectives, while the other ranks wait for it. The library
determines the size by a dry run of the call that puts no work on a GPU (native/common/cuda/context.cuh) and needs no
GPU.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# XLA_FFI_DataType in xla/ffi/api/c_api.h.
_TYPES = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 15,
    "bfloat16": 16,
    "complex128": 18,
    "float8_e5m2": 19,
    "float8_e4m3fn": 20,
    "int4": 21,
    "uint4": 22,
    "float8_e4m3b11fnuz": 23,
    "float8_e5m2fnuz": 24,
    "float8_e4m3fnuz": 25,
    "int2": 26,
    "uint2": 27,
    "float8_e4m3": 28,
    "float8_e3m4": 29,
    "int1": 30,
    "uint1": 31,
    "float4_e2m1fn": 32,
    "float8_e8m0fnu": 33,
}


class _Buffer(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int64), ("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64)))


class _Attribute(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("count", ctypes.c_int64), ("numbers", ctypes.POINTER(ctypes.c_int64)))


def scratch_bytes(
    library: ctypes.CDLL, kernel: str, arguments: Sequence[Any], results: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    """Return the bytes of work memory.

    The result is 0 for arguments that the kernel rejects: the call itself then raises.

    Args:
        library: The library with the kernel.
        kernel: Its name.
        arguments: Objects with ``shape`` and ``dtype``.
        results: Objects with ``shape`` and ``dtype``.
        attributes: Static arguments by name.
    """
    numbers = {name: np.atleast_1d(value) for name, value in attributes.items() if not isinstance(value, str)}
    inputs, outputs = _buffers(arguments), _buffers(results)
    plain = [_Attribute(name.encode(), values.size, _integers(values.tolist())) for name, values in numbers.items()]
    return library.jztree_scratch_bytes(
        kernel.encode(), *_counted(_Buffer, inputs), *_counted(_Buffer, outputs), *_counted(_Attribute, plain)
    )


def _buffers(arrays: Sequence[Any]) -> list[_Buffer]:
    return [_Buffer(_TYPES[np.dtype(array.dtype).name], len(array.shape), _integers(array.shape)) for array in arrays]


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _counted(kind: Any, items: Sequence[Any]) -> tuple[Any, ctypes.c_int64]:
    """Return items as a C array, and their number."""
    return (kind * len(items))(*items), ctypes.c_int64(len(items))
