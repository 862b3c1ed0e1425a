#!/usr/bin/env python3
"""Keeps GPU 0 busy with matrix products for a while, using less than 1 GiB. Changes no setting.

Prints "loading" once the GPU works. Ends by itself, or early and in order on SIGTERM.
"""

import argparse
import signal
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    asked_to_stop = False

    def stop(*_: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    import torch

    size = 8192
    device = torch.device("cuda:0")
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    torch.cuda.synchronize()
    print("loading", flush=True)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end and not asked_to_stop:
        for _ in range(50):
            torch.matmul(a, b, out=c)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
