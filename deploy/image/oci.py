#!/usr/bin/env python3
"""oci.py ROOT VERSION REVISION OUT: packs the folder ROOT as an OCI image into one tar file, reproducibly.

SOURCE_DATE_EPOCH sets the time of all files.
"""
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import time

ROOT, VERSION, REVISION, OUT = sys.argv[1:]
NAME = "gpu-node-exporter"
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
CREATED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
USER = 194080
# Folders that the program writes to if nothing is mounted on them.
OWN = {f"var/lib/{NAME}", f"run/{NAME}"}
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
OCI = "application/vnd.oci.image"


def layer():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(pathlib.Path(ROOT).rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(ROOT)))
            info.uid = info.gid = USER if info.name in OWN else 0
            info.uname = info.gname = ""
            info.mtime = EPOCH
            with open(path, "rb") if info.isreg() else io.BytesIO() as content:
                tar.addfile(info, content if info.isreg() else None)
    return out.getvalue()


def digest(blob):
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def main():
    files = {}

    def add(media, blob):
        files["blobs/" + digest(blob).replace(":", "/")] = blob
        return {"mediaType": media, "digest": digest(blob), "size": len(blob)}

    unpacked = layer()
    packed = add(f"{OCI}.layer.v1.tar+gzip", gzip.compress(unpacked, 9, mtime=0))
    labels = {"title": NAME, "version": VERSION, "revision": REVISION, "licenses": "Apache-2.0"}
    labels = {f"org.opencontainers.image.{key}": value for key, value in labels.items()}
    config = add(f"{OCI}.config.v1+json", json.dumps({
        "created": CREATED, "architecture": ARCHITECTURE, "os": "linux",
        "config": {
            "User": f"{USER}:{USER}", "ExposedPorts": {"9408/tcp": {}}, "Labels": labels,
            "Env": ["PATH=/usr/bin"], "Entrypoint": [f"/usr/bin/{NAME}"], "Cmd": ["serve"],
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(unpacked)]},
        "history": [{"created": CREATED, "created_by": "deploy/image/oci.py"}],
    }).encode())
    manifest = add(f"{OCI}.manifest.v1+json", json.dumps({
        "schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": [packed], "annotations": labels,
    }).encode())
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json",
             "manifests": [manifest | {"annotations": {"org.opencontainers.image.ref.name": VERSION}}]}
    files |= {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    with tarfile.open(OUT, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, blob in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(blob), EPOCH
            tar.addfile(info, io.BytesIO(blob))
    print(f"{OUT}: {len(unpacked) / 1e6:.1f} MB, {packed['size'] / 1e6:.1f} MB packed, {manifest['digest']}")


main()
