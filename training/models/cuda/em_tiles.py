"""What the kernels of EM routing share: tiles of poses and votes, and products of 4x4 matrices.

A tile has four axes: rows and columns of a 4x4 pose matrix, children, examples, [4, 4, n, b]. In memory, too,
examples lie last. With 32 examples in a tile and as many warps as children, each thread has the whole vote of
one child in one example: products of matrices need no exchange between threads.
"""

# B examples, C children in all, P parent positions, J parent types, N children of a parent, Q parent
# positions that a child reaches at most; `batch`, `types`, `children` and `reach` are B, J, N and Q
#
# Numbers in the kernels, tiles that broadcast: b of examples, n of children in a receptive field, c of the
# same among all children, p and j of a parent, h of a pose element. `there` says what of a tile exists.

import triton
import triton.language as tl

# Knowing that B is a multiple of 16, Triton would load four examples in a thread, and exchange them again. Of
# the others it would learn nothing that pays, and compile a kernel anew for each layer.
OF_LAYER = ["types", "children", "reach", "positions", "stride_p", "stride_j"]
kernel = triton.jit(do_not_specialize=["batch", *OF_LAYER])


@triton.jit
def each_element():
    """0 to 15, row by row, [4, 4, 1, 1]."""
    along = tl.arange(0, 4)
    return 4 * along[:, None, None, None] + along[None, :, None, None]


@triton.jit
def over_elements(x):
    """Sum over rows and columns, [1, 1, n, b]."""
    return tl.sum(tl.sum(x, axis=1, keep_dims=True), axis=0, keep_dims=True)


@triton.jit
def product(a, b):
    """Of 4x4 matrices: a b."""
    return tl.sum(a[:, :, None] * b[None], axis=1)


@triton.jit
def product_with_transposed(a, b):
    """Of 4x4 matrices: a b^T."""
    return tl.sum(a[:, None] * b[None], axis=2)


@triton.jit
def product_of_transposed(a, b):
    """Of 4x4 matrices: a^T b."""
    return tl.sum(a[:, :, None] * b[:, None], axis=0)


@triton.jit
def each_example(program, tile: tl.constexpr):
    """The examples that a program works on, [1, 1, 1, b]."""
    return program.to(tl.int64) * tile + tl.arange(0, tile)[None, None, None]


@triton.jit
def each_child(start, children, tile: tl.constexpr):
    """Children of a field, [1, 1, n, 1], and which exist; instead of those that do not, it is the last."""
    n = start + tl.arange(0, tile)[None, None, :, None]
    return tl.minimum(n, children - 1), n < children


@triton.jit
def load_votes(poses, matrices, offsets, c, j, n, b, children, batch):
    """V_n = M_c W_jn + offset_n, [4, 4, n, b]."""
    h = each_element()
    pose = tl.load(poses + (c * 16 + h) * batch + b, mask=b < batch, other=0.0)
    matrix = tl.load(matrices + (j * children + n) * 16 + h)
    return product(pose, matrix) + tl.load(offsets + n * 16 + h)
