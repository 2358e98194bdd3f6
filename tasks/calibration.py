"""A fixed piece of work: what a machine does in its time tells how fast the machine is just now.

Speeds measured on different days are comparable once they are divided by it. It mixes what a step
mixes: small matrix products, element-wise work and plain Python.
"""

import time

SIZE = 128
PRODUCTS = 400
LOOP = 300_000


def calibrate() -> float:
    """Processor seconds of the fixed work, in this process."""
    import torch  # noqa: PLC0415 - a second

    values = torch.linspace(-1, 1, SIZE * SIZE).reshape(SIZE, SIZE)
    result = values
    total = 0
    started = time.process_time()
    for _ in range(PRODUCTS):
        result = torch.tanh(values @ result)
    for number in range(LOOP):
        total += number & 7
    seconds = time.process_time() - started
    assert total, "the loop was run"  # noqa: S101
    return seconds
