#!/usr/bin/env python3
"""A plain loop of pinned copies, to the GPU and back by turns.

Prints one JSON line with the seconds of each copy each way, as the GPU's events tell them, then ends.
Usage: copy_loop.py GPU-UUID BYTES
"""

from __future__ import annotations

import json
import sys

from cuda_driver import Device, Driver

TIMES = 20


def main(uuid: str, size: int) -> None:
    driver = Driver()
    device = Device(driver, driver.ordinal(uuid))
    host, there, stream = device.pinned(size), device.alloc(size), device.stream()
    ways = {
        "to_gpu": lambda: device.to_device(there, host, size, stream),
        "to_host": lambda: device.to_host(host, there, size, stream),
    }
    plain: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TIMES):
        for way, copy in ways.items():
            begin, end = device.event(), device.event()
            device.record(begin, stream)
            copy()
            device.record(end, stream)
            device.wait(end)
            plain[way].append(device.seconds(begin, end))
    print(json.dumps(plain))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
