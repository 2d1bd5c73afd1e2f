"""Vectors for functions that Numba compiles: the same number of 16 examples at once, one in each lane.

Numba has no vector types and LLVM rarely finds the vectors in its loops; but LLVM does have them. Lanes are
16 float32 numbers. A Pose is 16 Lanes: the elements of a vector, or of a 4x4 matrix, row by row. Both are
values that live in registers: Lanes in one of AVX-512, two of AVX2 or four of NEON. Operators compute in each
lane alone and in the order in which they are written, so results depend neither on memory addresses nor on
the width of registers.

A kernel reads like arithmetic with single numbers. This one moves 16 examples' poses to the mean of a few:

    @kernel
    def center(poses):  # float32 [C, 16, LANES]: the last axis is that of the examples
        total = no_pose()
        for c in range(len(poses)):
            total += load(poses[c])  # 16 vectors, one for each element
        mean = total / every(len(poses))  # `every` puts a number into all lanes
        for c in range(len(poses)):
            store(poses[c], load(poses[c]) - mean)

It has three parts: `generated` functions write LLVM's instructions, `compiled` ones are made of these and
become part of others, and a `kernel` is what Python calls, with NumPy arrays.
"""

import operator
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

LANES = 16
SIDE = 4
ELEMENTS = SIDE * SIDE
NUMBER, INTEGER = ir.FloatType(), ir.IntType(32)
VECTOR, INTEGERS = ir.VectorType(NUMBER, LANES), ir.VectorType(INTEGER, LANES)
MATRIX = ir.ArrayType(VECTOR, ELEMENTS)
FAST = ("contract",)  # a product and a sum may become one instruction; NaN and infinity survive
LOG2_E = 1.44269504
LN_2_HIGH, LN_2_LOW = 0.693359375, -2.12194440e-4  # k times the first is exact
ROUNDER = 1.5 * 2**23  # a float32 plus this number has its nearest integer in its lowest bits
# Numba keeps compiled code until the function's own file changes; but it contains functions of other files.
_FILES = sorted(Path(__file__).parent.glob("*.py"))
SOURCES = sha256(b"".join(file.read_bytes() for file in _FILES)).hexdigest()[:16]
PROCESSOR = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()


def compiled(function: Callable[..., Any]) -> Any:
    """For other compiled functions: it becomes part of them."""
    return numba.njit(error_model="numpy", fastmath=set(FAST), forceinline=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile at the first call, or take what was compiled of the same sources before.

    Each version of the sources has files of its own, and on each kind of processor: Numba writes the index
    before the code, and for a moment a new index would name old code, which another process then runs. Where
    no folder can be written, every process compiles.
    """
    function.__qualname__ += f"_{PROCESSOR}_{SOURCES}"  # from which Numba makes the files' names
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(FAST)}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no such folder
        return numba.njit(**options)(function)


def generated(function: Callable[..., Any]) -> Any:
    """For compiled functions; what is decorated takes their arguments' types and generates instructions."""
    return intrinsic(function)


class LanesType(types.Type):
    """Of Lanes in compiled functions."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


class PoseType(types.Type):
    """Of a Pose in compiled functions."""

    def __init__(self) -> None:
        super().__init__(name="Pose")


lanes, pose = LanesType(), PoseType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any):
        super().__init__(manager, of, VECTOR)


@register_model(PoseType)
class _PoseModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any):
        super().__init__(manager, of, MATRIX)


def _elements(builder: Any, value: Any) -> list[Any]:
    """The 16 vectors of a Pose; Lanes are the same in all, and so is None."""
    if value is not None and value.type == MATRIX:
        return [builder.extract_value(value, h) for h in range(ELEMENTS)]
    return [value] * ELEMENTS


def _packed(builder: Any, vectors: Sequence[Any]) -> Any:
    whole = ir.Constant(MATRIX, ir.Undefined)
    for h, vector in enumerate(vectors):
        whole = builder.insert_value(whole, vector, h)
    return whole


def _in_every_lane(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, INTEGER(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(INTEGERS, [0] * LANES))


def _sum_of_products(builder: Any, pairs: Sequence[tuple[Any, Any]], total: Any = None) -> Any:
    for one, other in pairs:
        product = builder.fmul(one, other, flags=FAST)
        total = product if total is None else builder.fadd(total, product, flags=FAST)
    return total


def _arithmetic(instruction: str) -> Any:
    """An operator's function: of Lanes, of Poses element by element, or of a Pose with the same Lanes."""

    @generated
    def compute(context: Any, a: Any, b: Any) -> Any:
        result = pose if pose in (a, b) else lanes

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            apply = getattr(builder, instruction)
            if result == lanes:
                return apply(*arguments, flags=FAST)
            pairs = zip(*(_elements(builder, argument) for argument in arguments), strict=True)
            return _packed(builder, [apply(one, other, flags=FAST) for one, other in pairs])

        return result(a, b), generate

    def compute_vectors(a: Any, b: Any) -> Any:
        if {a, b} <= {lanes, pose}:
            return lambda a, b: compute(a, b)
        return None

    return compute_vectors


for of, instruction in (
    ((operator.add, operator.iadd), "fadd"),
    ((operator.sub, operator.isub), "fsub"),
    ((operator.mul, operator.imul), "fmul"),
    ((operator.truediv, operator.itruediv), "fdiv"),
):
    for function in of:
        overload(function, strict=False)(_arithmetic(instruction))


@generated
def every(context: Any, number: Any) -> Any:
    """A number in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _in_every_lane(builder, context.cast(builder, arguments[0], number, types.float32))

    return lanes(number), generate


@generated
def broadcast(context: Any, array: Any) -> Any:
    """A Pose from 16 numbers in contiguous memory, each in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _numbers(context, builder, array, arguments[0])
        return _packed(builder, [vector for row in rows for vector in row])

    return pose(array), generate


@generated
def no_pose(context: Any) -> Any:
    """A Pose of zeros."""
    return pose(), lambda context, builder, signature, arguments: ir.Constant(MATRIX, None)


def _memory(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Where the numbers of a float32 array begin; they have to lie one after the other."""
    assert (kind.dtype, kind.layout) == (types.float32, "C"), kind
    return context.make_array(kind)(context, builder, array).data


def _address(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return builder.bitcast(_memory(context, builder, kind, array), VECTOR.as_pointer())


@generated
def load(context: Any, array: Any) -> Any:
    """Lanes from contiguous memory [16], or a Pose from [16, 16]."""
    result = lanes if array.ndim == 1 else pose

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, array, arguments[0])
        if result == lanes:
            return builder.load(address, align=4)
        places = [builder.gep(address, [INTEGER(h)]) for h in range(ELEMENTS)]
        return _packed(builder, [builder.load(place, align=4) for place in places])

    return result(array), generate


@generated
def store(context: Any, array: Any, value: Any) -> Any:
    """Lanes to contiguous memory [16], or a Pose to [16, 16]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, array, arguments[0])
        vectors = [arguments[1]] if value == lanes else _elements(builder, arguments[1])
        for h, vector in enumerate(vectors):
            builder.store(vector, builder.gep(address, [INTEGER(h)]), align=4)
        return context.get_dummy_value()

    return types.void(array, value), generate


def _numbers(context: Any, builder: Any, kind: Any, array: Any) -> list[list[Any]]:
    """A 4x4 matrix [16] in contiguous memory, each number in every lane, row by row."""
    address = _memory(context, builder, kind, array)
    places = [builder.gep(address, [INTEGER(h)]) for h in range(ELEMENTS)]
    vectors = [_in_every_lane(builder, builder.load(place)) for place in places]
    return [vectors[row : row + SIDE] for row in range(0, ELEMENTS, SIDE)]


def _rows(builder: Any, value: Any) -> list[list[Any]]:
    vectors = _elements(builder, value)
    return [vectors[row : row + SIDE] for row in range(0, ELEMENTS, SIDE)]


def _matrix_product(builder: Any, rows: Any, columns: Any, start: Any) -> Any:
    """From rows of one 4x4 matrix and columns of another, added to what it starts with."""
    pairs = [list(zip(row, column, strict=True)) for row in rows for column in columns]
    sums = zip(pairs, _elements(builder, start), strict=True)
    return _packed(builder, [_sum_of_products(builder, pair, total) for pair, total in sums])


def _transposed(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True))


@generated
def plus_product(context: Any, start: Any, left: Any, right: Any) -> Any:
    """A Pose, plus another one times a matrix [16] that is the same in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns = _transposed(_numbers(context, builder, right, arguments[2]))
        return _matrix_product(builder, _rows(builder, arguments[1]), columns, arguments[0])

    return pose(start, left, right), generate


@generated
def plus_product_with_transposed(context: Any, start: Any, left: Any, right: Any) -> Any:
    """A Pose, plus another one times the transpose of a matrix [16]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns = _numbers(context, builder, right, arguments[2])
        return _matrix_product(builder, _rows(builder, arguments[1]), columns, arguments[0])

    return pose(start, left, right), generate


@generated
def product_of_transposed(context: Any, left: Any, right: Any) -> Any:
    """The transpose of a Pose times a Pose."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, columns = (_transposed(_rows(builder, argument)) for argument in arguments)
        return _matrix_product(builder, rows, columns, None)

    return pose(left, right), generate


@generated
def dot(context: Any, left: Any, right: Any) -> Any:
    """The sum over elements of the product of two Poses, Lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = zip(*(_rows(builder, argument) for argument in arguments), strict=True)
        sums = [_sum_of_products(builder, list(zip(*row, strict=True))) for row in rows]
        return _pairwise_sum(builder, sums)

    return lanes(left, right), generate


def _pairwise_sum(builder: Any, vectors: Sequence[Any]) -> Any:
    while len(vectors) > 1:
        half = len(vectors) // 2
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [builder.fadd(one, other, flags=FAST) for one, other in pairs]
    return vectors[0]


@generated
def sums_over_lanes(context: Any, value: Any) -> Any:
    """Of each element of a Pose, as Lanes: that of element h in lane h."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors, width = _elements(builder, arguments[0]), LANES
        while len(vectors) > 1:  # each holds LANES / width elements, as `width` partial sums of each
            half, count = width // 2, len(vectors) // 2
            of_both = [*range(half), *range(LANES, LANES + half)]
            places = [group + place for group in range(0, LANES, width) for place in of_both]
            masks = [ir.Constant(INTEGERS, [place + jump for place in places]) for jump in (0, half)]
            vectors = [
                builder.fadd(*(builder.shuffle_vector(*pair, mask) for mask in masks), flags=FAST)
                for pair in zip(vectors[:count], vectors[count:], strict=True)
            ]
            width = half
        return vectors[0]

    return lanes(value), generate


@generated
def larger(context: Any, a: Any, b: Any) -> Any:
    """Lane by lane the larger number; b where one is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return lanes(a, b), generate


@generated
def power_of_two(context: Any, rounded: Any) -> Any:
    """2^k, of k + ROUNDER; 0 for k = -127."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.bitcast(arguments[0], INTEGERS), ir.Constant(INTEGERS, [23] * LANES))
        return builder.bitcast(builder.add(bits, ir.Constant(INTEGERS, [127 << 23] * LANES)), VECTOR)

    return lanes(rounded), generate


@generated
def exponent(context: Any, value: Any) -> Any:
    """The k for which a number is 2^k times another from sqrt(1/2) to sqrt(2)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], INTEGERS)
        above = builder.sub(bits, ir.Constant(INTEGERS, [0x3F3504F3] * LANES))  # sqrt(1/2)
        return builder.sitofp(builder.ashr(above, ir.Constant(INTEGERS, [23] * LANES)), VECTOR)

    return lanes(value), generate


@compiled
def exp(x: Any) -> Any:
    """Of Lanes up to 88, to 1 ulp; 0 below -88. The polynomial is that of Cephes' expf."""
    x = larger(every(-88), x)
    rounded = x * every(LOG2_E) + every(ROUNDER)
    k = rounded - every(ROUNDER)
    r = x - k * every(LN_2_HIGH) - k * every(LN_2_LOW)
    y = every(1.9875691500e-4)
    y = y * r + every(1.3981999507e-3)
    y = y * r + every(8.3334519073e-3)
    y = y * r + every(4.1665795894e-2)
    y = y * r + every(1.6666665459e-1)
    y = y * r + every(5.0000001201e-1)
    return (y * r * r + r + every(1)) * power_of_two(rounded)


@compiled
def log(x: Any) -> Any:
    """Of Lanes from 2^-126 to 2^126, to 1 ulp. The polynomial is that of Cephes' logf."""
    k = exponent(x)
    r = x * power_of_two(every(ROUNDER) - k) - every(1)
    y = every(7.0376836292e-2)
    y = y * r - every(1.1514610310e-1)
    y = y * r + every(1.1676998740e-1)
    y = y * r - every(1.2420140846e-1)
    y = y * r + every(1.4249322787e-1)
    y = y * r - every(1.6668057665e-1)
    y = y * r + every(2.0000714765e-1)
    y = y * r - every(2.4999993993e-1)
    y = y * r + every(3.3333331174e-1)
    square = r * r
    return r + (y * r * square + k * every(LN_2_LOW) - every(0.5) * square) + k * every(LN_2_HIGH)


@compiled
def log_of_one_plus(x: Any) -> Any:
    """Of Lanes from 0 to 1, exact near 0."""
    sum_ = every(1) + x
    return log(sum_) + (x - (sum_ - every(1))) / sum_
