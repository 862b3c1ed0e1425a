"""nvidia-smi beside the exporter: which fields it knows, one reading of all GPUs at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

from series import Spec, Unanswered, Value

NO_VALUE = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "", "[Not Found]", "Unknown Error")


@dataclass
class Reading:
    """What one pair of runs said, by GPU UUID and field."""

    begin: float
    end: float
    fields: dict[str, dict[str, str]] = field(default_factory=dict)
    cuda_version: str = ""
    driver_version: str = ""

    def value(self, uuid: str, spec: Spec) -> Value:
        if spec.smi is None:
            raise Unanswered("nvidia-smi does not show it")
        raw = self.fields.get(uuid, {}).get(spec.smi.name)
        if raw is None:
            raise Unanswered(f"this nvidia-smi has no {spec.smi.name}")
        if raw in NO_VALUE:
            raise Unanswered(raw)
        try:
            return spec.smi.convert(raw)
        except ValueError:
            raise Unanswered(f"unexpected: {raw}") from None


def nvlink(said: str) -> dict[str, dict[str, str]]:
    """What `nvidia-smi nvlink` says of links, by GPU UUID and `nvlink:LINK/what`; the speed is its `-s`."""
    found: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    for line in said.splitlines():
        if gpu := re.search(r"^\s*GPU \d+:.*UUID: (\S+?)\)", line):
            values = found.setdefault(gpu[1], {})
        elif link := re.match(r"\s*Link (\d+): (?:([A-Za-z][A-Za-z ]*): )?(.+?)\s*$", line):
            what = (link[2] or "speed").strip().lower().replace(" ", "_")
            values[f"nvlink:{int(link[1])}/{what}"] = link[3]
    return found


class Smi:
    """nvidia-smi, if there is one."""

    def __init__(self, specs: list[Spec]) -> None:
        self.path = shutil.which("nvidia-smi")
        wanted = dict.fromkeys(s.smi.name for s in specs if s.smi)
        self.paths = [name.removeprefix("xml:") for name in wanted if name.startswith("xml:")]
        self.names = [name for name in wanted if not name.startswith(("xml:", "nvlink:"))]
        self.links = any(name.startswith("nvlink:") for name in wanted)
        self.refused: list[str] = []
        if self.path:
            known = set(re.findall(r'"([a-z0-9_.]+)"', self._run("--help-query-gpu")))
            self.refused = [name for name in self.names if name not in known]
            self.names = [name for name in self.names if name in known]
            # Some versions list fields that they then refuse.
            while found := self._refuses():
                self.refused.append(found)
                self.names.remove(found)
        self.failures: list[str] = []

    def _refuses(self) -> str | None:
        """A field that makes a query fail, if there is one."""
        try:
            self._run(f"--query-gpu={','.join(['uuid', *self.names])}", "--format=csv,noheader,nounits")
        except RuntimeError as error:
            found = re.search(r'Field "([^"]+)" is not a valid', str(error))
            return found[1] if found and found[1] in self.names else None
        return None

    def try_read(self, now, links: bool = False) -> Reading | None:
        """As `read`; a failed run is noted in `failures`."""
        if not self.path:
            return None
        try:
            return self.read(now, links)
        except (RuntimeError, subprocess.TimeoutExpired, xml.ParseError) as error:
            self.failures.append(str(error).strip()[:300])
            return None

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"nvidia-smi {' '.join(arguments)[:80]}: {done.stdout}{done.stderr}")
        return done.stdout

    def read(self, now, links: bool = False) -> Reading:
        """All GPUs, all fields, on demand all links; `now` is the clock."""
        begin = now()
        names = list(dict.fromkeys(["uuid", *self.names]))
        reading = Reading(begin, begin)
        for line in self._run(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits").splitlines():
            values = dict(zip(names, (part.strip() for part in line.split(","))))
            reading.fields[values["uuid"]] = values
        root = xml.fromstring(self._run("-q", "-x"))
        reading.cuda_version = root.findtext("cuda_version", "").strip()
        reading.driver_version = root.findtext("driver_version", "").strip()
        for gpu in root.iter("gpu"):
            values = reading.fields.setdefault(gpu.findtext("uuid", "").strip(), {})
            for path in self.paths:
                found = gpu.findtext(path)
                if found is not None:
                    values[f"xml:{path}"] = found.strip()
        if links and self.links:
            for option in ("-s", "-gt d", "-e"):
                try:
                    said = self._run("nvlink", *option.split())
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    self.failures.append(str(error).strip()[:300])
                    continue
                for uuid, values in nvlink(said).items():
                    reading.fields.setdefault(uuid, {}).update(values)
        reading.end = now()
        return reading
