"""NVLink: a known number of bytes from one GPU to the next, beside every byte counter that saw it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

from proofs.common import Env, Gpu, Load, Report, Skip, wait_visits

SECONDS = 150
GIB = 2**30
TOLERANCE = 0.001


def smi_bytes(gpu: Gpu) -> dict[str, float] | None:
    """Data bytes by `nvidia-smi nvlink -gt d`, all links together."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    done = subprocess.run([path, "nvlink", "-gt", "d", "-i", str(gpu.index)], capture_output=True, text=True, timeout=60)
    sums = {"tx": 0.0, "rx": 0.0}
    found = re.findall(r"Data\s+(Tx|Rx):\s*(\d+)\s*KiB", done.stdout)
    for direction, kib in found:
        sums[direction.lower()] += 1024.0 * int(kib)
    return sums if done.returncode == 0 and found else None


def counters(gpu: Gpu, page) -> dict[str, float | None]:
    """Every byte counter of the GPU, by name and direction."""
    out: dict[str, float | None] = {}
    for direction in ("tx", "rx"):
        for name in ("gpu_nvlink_bytes_total", "gpu_nvlink_raw_bytes_total", "gpu_gpm_nvlink_bytes_total"):
            out[f"{name}/{direction}"] = gpu.get(page, name, direction=direction)
        links = [v for labels, v in gpu.all(page, "gpu_nvlink_link_bytes_total") if labels["direction"] == direction]
        out[f"gpu_nvlink_link_bytes_total/{direction}"] = sum(links) if links else None
        out[f"links/{direction}"] = float(len(links))
    return out


def run(env: Env, report: Report) -> None:
    gpus = env.gpus()
    if len(gpus) < 2:
        raise Skip("one GPU only")
    first = env.gpu()
    second = next(g for g in gpus if g != first)
    size = env.options.nvlink_gib * GIB
    report.info("from, to, bytes", f"GPU {first.index}, GPU {second.index}, {size}")
    settings = {"SAMPLER__SLOW_INTERVAL": "5s", "SAMPLER__RARE_INTERVAL": "10s", "SAMPLER__NVLINK_INTERVAL": "10s"}
    with env.daemon("nvlink", settings) as daemon:
        page = daemon.scrape()
        if not gpu_has_links(first, page):
            raise Skip("gpu_nvlink_links says that the GPU has no NVLink")

        def settled() -> dict[Gpu, dict[str, float | None]]:
            """All counters, once both GPUs were visited twice in the slow and once in the rare tier from now on."""
            now = time.time()
            for gpu in (first, second):
                wait_visits(daemon, gpu, "slow", now, 2, 30)
                wait_visits(daemon, gpu, "nvlink", now, 1, 40)
            time.sleep(1.2)  # until both GPUs' newest visits are on one page
            page = daemon.scrape()
            return {gpu: counters(gpu, page) for gpu in (first, second)}

        # What making the two contexts sends lies between the readings as well: some megabytes.
        before, smi_before = settled(), {g: smi_bytes(g) for g in (first, second)}
        with env.load("peer", first, "--peer", second.uuid, "--bytes", str(size)) as load:
            done = finish(report, load)
        after, smi_after = settled(), {g: smi_bytes(g) for g in (first, second)}
        report.data |= {
            "bytes": done,
            "before": {g.index: v for g, v in before.items()}, "after": {g.index: v for g, v in after.items()},
            "smi_before": {g.index: v for g, v in smi_before.items()},
            "smi_after": {g.index: v for g, v in smi_after.items()},
        }  # fmt: skip

        def grown(gpu: Gpu, key: str) -> float:
            a, b = before[gpu][key], after[gpu][key]
            if a is None or b is None:
                raise RuntimeError(f"{key} of GPU {gpu.index} is not in /metrics")
            return b - a

        for gpu, direction in ((first, "tx"), (second, "rx")):
            what = f"GPU {gpu.index} {direction}"
            for name in ("gpu_nvlink_bytes_total", "gpu_nvlink_link_bytes_total"):
                with report.part(f"{what}: {name}"):
                    text = f"{after[gpu][f'links/{direction}']:.0f} links" if "_link_" in name else ""
                    report.near(f"{what}: {name}, growth", grown(gpu, f"{name}/{direction}"), done,
                                relative=TOLERANCE, text=text)  # fmt: skip
            for name in ("gpu_nvlink_raw_bytes_total", "gpu_gpm_nvlink_bytes_total"):
                with report.part(f"{what}: {name}"):
                    report.info(f"{what}: {name}, growth over bytes", grown(gpu, f"{name}/{direction}") / done)
            with report.part(f"{what}: nvidia-smi"):
                a, b = smi_before[gpu], smi_after[gpu]
                if a is None or b is None:
                    raise Skip("nvidia-smi nvlink -gt d tells nothing that is understood")
                moved = b[direction] - a[direction]
                report.near(f"{what}: nvidia-smi nvlink -gt d, growth", moved, done, relative=TOLERANCE)
                report.near(f"{what}: all links beside nvidia-smi", grown(gpu, f"gpu_nvlink_bytes_total/{direction}"),
                            moved, relative=TOLERANCE)  # fmt: skip
        for gpu, direction in ((first, "rx"), (second, "tx")):
            with report.part(f"GPU {gpu.index} {direction}, the way back"):
                report.info(f"GPU {gpu.index} {direction}, the way back, over bytes",
                            grown(gpu, f"gpu_nvlink_bytes_total/{direction}") / done)  # fmt: skip


def gpu_has_links(gpu: Gpu, page) -> bool:
    """Whether there are links; a page that does not tell is taken for one that should."""
    return gpu.get(page, "gpu_nvlink_links") != 0


def finish(report: Report, load: Load) -> float:
    """Waits for all copies; gives the bytes."""
    end = load.wait("end", 120)
    took = end["mono"] - end["begin"]["mono"]
    report.info("rate, bytes a second", end["done"] / took, text="NVLink if well above what PCIe can do")
    return end["done"]
