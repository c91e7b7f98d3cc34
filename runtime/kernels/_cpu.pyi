"""The compiled kernels (cpu.cpp). Arguments named *_ptr are addresses of contiguous tensors."""

def supported() -> bool: ...
def set_threads(count: int, /) -> None: ...
def linear(
    x_ptr: int, w_ptr: int, bias_ptr: int, y_ptr: int, m: int, n: int, k: int, output: int, /
) -> None: ...
def quantized_linear(
    x_ptr: int,
    w_ptr: int,
    bias_ptr: int,
    y_ptr: int,
    m: int,
    n: int,
    k: int,
    output: int,
    bits: int,
    /,
) -> None: ...
def quantized_rows(
    w_ptr: int, rows_ptr: int, y_ptr: int, count: int, k: int, bits: int, /
) -> None: ...
def attention(
    q_ptr: int,
    keys_ptr: int,
    values_ptr: int,
    tables_ptr: int,
    sequences_ptr: int,
    positions_ptr: int,
    out_ptr: int,
    rows: int,
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    width: int,
    window: int,
    scale: float,
    cap: float,
    /,
) -> None: ...
def rms_norm(x_ptr: int, weight_ptr: int, y_ptr: int, rows: int, n: int, eps: float, /) -> None: ...
def add_rms_norm(
    x_ptr: int, weight_ptr: int, y_ptr: int, rows: int, n: int, eps: float, /
) -> None: ...
def soft_cap(x_ptr: int, rows: int, n: int, cap: float, /) -> None: ...
def rotate(
    qkv_ptr: int,
    table_ptr: int,
    positions_ptr: int,
    slots_ptr: int,
    q_norm_ptr: int,
    k_norm_ptr: int,
    q_ptr: int,
    keys_ptr: int,
    values_ptr: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    dim: int,
    rotary: int,
    eps: float,
    /,
) -> None: ...
def silu_mul(gate_up_ptr: int, y_ptr: int, rows: int, n: int, /) -> None: ...
def gelu_mul(gate_up_ptr: int, y_ptr: int, rows: int, n: int, /) -> None: ...
