#!/usr/bin/env python3
"""image.py HELM BUILT IMAGE: the image of `make release` runs as the pods of deploy/chart ask for it, on a simulated node.

No container runtime: this reads the image back, renders the chart, and starts each container of the pod by its own arguments,
variables, user, capabilities, mounts and probes. BUILT has simhost and libsimgpu.so. Run as root in network, mount and pid
namespaces of its own, which are the pod's (`hostPID`).
"""
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent import futures

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc  # noqa: E402
import schemas  # noqa: E402

HELM, BUILT, IMAGE = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
SOURCE = pathlib.Path(__file__).resolve().parents[2]
WORK = pathlib.Path(tempfile.mkdtemp())
# Where the toolkit puts the driver's libraries.
LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
NODE_NAME = "node-7"
PATIENCE = 60
POD_RESOURCES = "/v1.PodResourcesLister/"


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def run(*command, **more):
    return subprocess.run(list(map(str, command)), check=True, **more)


def wait(what, condition, process=None):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        expect(time.monotonic() < deadline, f"{what} within {PATIENCE} s")
        expect(process is None or process.poll() is None, f"{what}: the process has ended")
        time.sleep(0.05)
    return found


# The image.

def blob(layout, descriptor):
    content = layout[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    expect("sha256:" + hashlib.sha256(content).hexdigest() == descriptor["digest"], "a digest is wrong")
    expect(len(content) == descriptor["size"], "a size is wrong")
    return content


def unpack():
    """Reads the image as a registry's client would, and gives its configuration."""
    with tarfile.open(IMAGE) as tar:
        layout = {member.name: tar.extractfile(member).read() for member in tar}
    expect(json.loads(layout["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}, "no OCI layout")
    [descriptor] = json.loads(layout["index.json"])["manifests"]
    manifest = json.loads(blob(layout, descriptor))
    config = json.loads(blob(layout, manifest["config"]))
    [layer] = manifest["layers"]
    packed = WORK / "layer.tar.gz"
    packed.write_bytes(blob(layout, layer))
    unpacked = subprocess.run(["gzip", "-dc", packed], capture_output=True, check=True).stdout
    expect(config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(unpacked).hexdigest()], "the layer is another one")
    (WORK / "image").mkdir()
    run("tar", "--extract", "--numeric-owner", "--same-owner", "--preserve-permissions", "--directory", WORK / "image",
        input=unpacked)
    print(f"image: {len(unpacked) / 1e6:.1f} MB, {layer['size'] / 1e6:.1f} MB packed")
    return config["config"]


def check_content(config):
    image = WORK / "image"
    files = {str(path.relative_to(image)): path.lstat() for path in image.rglob("*")}
    programs = [name for name, about in files.items()
                if stat.S_ISREG(about.st_mode) and about.st_mode & 0o111 and not re.search(r"\.so\.\d+$", name)]
    expect(programs == ["usr/bin/gpu-node-exporter"], f"programs: {programs}")
    expect(not [name for name in files if re.search("nvidia|cuda|hwloc.*so|busybox", name)], "a driver, hwloc or a shell is inside")
    expect(not [name for name, about in files.items() if about.st_mode & 0o6000], "a file with another one's rights")
    writable = [name for name, about in files.items() if about.st_mode & 0o022 and not stat.S_ISLNK(about.st_mode)]
    expect(writable == ["tmp"], f"writable: {writable}")
    documents = "usr/share/doc/"
    licences = [f"gpu-node-exporter/LICENSE{part}" for part in ("", ".hwloc", ".morphdom", ".uPlot")]
    for name in (*licences, "libc6/copyright"):
        expect(documents + name in files, f"no {name}")
    components = json.loads((image / documents / "gpu-node-exporter/sbom.cdx.json").read_text())["components"]
    expect({"tokio", "hwloc", "uplot", "morphdom", "libc6", "libgcc-s1"} <= {part["name"] for part in components}, "the SBOM lacks what is inside")
    expect(config["User"] == "194080:194080" and config["Entrypoint"] == ["/usr/bin/gpu-node-exporter"], f"{config}")


# The node.

def varint(value):
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number, content):
    content = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def start_kubelet(host):
    """The pod-resources API with one pod that has one GPU, on a socket that is root's alone, as the kubelet makes it."""
    devices = field(1, "nvidia.com/gpu") + field(2, "GPU-1")
    listed = field(1, field(1, "train-0") + field(2, "ml") + field(3, field(1, "main") + field(2, devices)))
    answers = {POD_RESOURCES + "List": listed, POD_RESOURCES + "GetAllocatableResources": field(1, devices)}

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            answer = answers.get(call.method)
            return answer and grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    folder = host / "var/lib/kubelet/pod-resources"
    folder.mkdir(parents=True, mode=0o750)
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Handler()])
    server.add_insecure_port(f"unix://{folder}/kubelet.sock")
    server.start()
    os.chmod(folder / "kubelet.sock", 0o755)
    return server


def make_host():
    host = WORK / "node"
    run(BUILT / "simhost", host, "1000")
    for name in ("proc/sys/kernel/random", "dev", "run", "sys/module/nvidia", "etc/gpu-node-exporter"):
        (host / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/proc/stat", host / "proc/stat")
    shutil.copy("/proc/sys/kernel/random/boot_id", host / "proc/sys/kernel/random/boot_id")
    (host / "sys/module/nvidia/version").write_text("580.159.04\n")
    (host / "sys/module/nvidia/initstate").write_text("live\n")
    # A file system of its own below the root, as /run is.
    run("mount", "-t", "tmpfs", "run", host / "run")
    return host


# The pod.

# What a runtime does last: root, user, no capability and no way to one.
ENTER = """
import ctypes, os, sys
root, user, group, privileged, *command = sys.argv[1:]
os.chroot(root)
os.chdir("/")
if privileged == "no":
    prctl = ctypes.CDLL(None).prctl
    # PR_CAPBSET_DROP, until there are no more; PR_SET_NO_NEW_PRIVS.
    capability = 0
    while prctl(24, capability, 0, 0, 0) == 0:
        capability += 1
    prctl(38, 1, 0, 0, 0)
os.setgroups([])
os.setresgid(*[int(group)] * 3)
os.setresuid(*[int(user)] * 3)
os.environ["PATH"] = "/usr/bin"
os.execv(command[0], command)
"""


class Pod:
    """What the kubelet, a container runtime and NVIDIA's toolkit make of a pod's specification."""

    def __init__(self, host, specified, driver=True, secret=None):
        self.spec, self.config = specified
        self.host, self.driver, self.running = host, driver, {}
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=WORK))
        self.volumes = {volume["name"]: self.volume(volume, secret) for volume in self.spec["volumes"]}

    def volume(self, volume, secret):
        if "hostPath" in volume:
            path = self.host / volume["hostPath"]["path"].lstrip("/")
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True, mode=0o755)
            expect(path.exists(), f"the host has no {path}")
            return path
        path = self.folder / volume["name"]
        path.mkdir()
        path.chmod(0o777)
        if "secret" in volume:
            self.put(path, {key.name: key.read_text() for key in secret.iterdir()})
        if "configMap" in volume:
            self.put(path, self.config)
        return path

    @staticmethod
    def put(path, content):
        """As the kubelet changes all keys of a Secret or a ConfigMap at once: links to links."""
        data = pathlib.Path(tempfile.mkdtemp(prefix="..", dir=path))
        data.chmod(0o755)
        for key, text in content.items():
            (data / key).write_text(text)
            if not (path / key).is_symlink():
                (path / key).symlink_to(f"..data/{key}")
        (path / "..new").symlink_to(data.name)
        (path / "..new").rename(path / "..data")

    def reconfigure(self, specified):
        """Another ConfigMap; the kubelet restarts no pod for it."""
        self.put(self.volumes["config"], specified[1])

    def start(self):
        for container in self.spec.get("initContainers", []):
            process = self.run(container)
            if container.get("restartPolicy") != "Always":
                expect(process.wait(PATIENCE) == 0, f"the container {container['name']} fails")
                del self.running[container["name"]]
        [container] = self.spec["containers"]
        process = self.run(container)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait(probe, lambda: self.probe(container, container[probe]["httpGet"]), process)
        return self

    def probe(self, container, get):
        [port] = [port["containerPort"] for port in container["ports"] if port["name"] == get["port"]]
        headers = {header["name"]: header["value"] for header in get["httpHeaders"]}
        return ask(port, get["path"], headers, get["scheme"] == "HTTPS")[0] == 200

    def run(self, container):
        root, lines, context = self.folder / f"{container['name']}.root", [], container["securityContext"]
        root.mkdir()
        environment = {}
        for variable in container.get("env", []):
            environment[variable["name"]] = variable.get("value", NODE_NAME)
        image = WORK / "image"
        # The runtime makes mount points; the pod's own root is then read-only.
        mounts = sorted(container["volumeMounts"], key=lambda mount: mount["mountPath"].count("/"))
        lines.append(f"mount --bind {image} {root}")
        if environment.get("NVIDIA_VISIBLE_DEVICES") == "all" and self.driver:
            for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
                (image / LIBRARIES / name).touch()
                lines.append(f"mount --bind {BUILT}/libsimgpu.so {root}/{LIBRARIES}/{name}")
            (image / "sim").mkdir(exist_ok=True)
            lines.append(f"mount --bind {self.sim()} {root}/sim")
            environment |= {"GPU_SIM_SCENARIO": "/sim/scenario.toml", "GPU_SIM_STATE": "/sim/state"}
        lines += [f"mount --rbind /{name} {root}/{name}" for name in ("proc", "sys")]
        lines += [f"mount -t tmpfs -o mode=755 dev {root}/dev"]
        lines += [f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}" for name in ("null", "urandom", "zero")]
        if context["readOnlyRootFilesystem"]:
            lines += [f"mount -o remount,bind,ro {root}", f"mount -o remount,ro {root}/dev"]
        for mount in mounts:
            source, target = self.volumes[mount["name"]], f"{root}{mount['mountPath']}"
            if not mount["mountPath"].startswith("/host/"):
                (image / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --{'r' if mount['name'] == 'root' else ''}bind {source} {target}")
            if mount.get("recursiveReadOnly"):
                lines.append(f"findmnt -rno TARGET -R {target} | while read -r at; do mount -o remount,bind,ro $at; done")
            elif mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {target}")
        user = context.get("runAsUser", 194080)
        command = [sys.executable, "-c", ENTER, root, user, context.get("runAsGroup", user),
                   "yes" if context.get("privileged") else "no", "/usr/bin/gpu-node-exporter", *container["args"]]
        lines.append('exec "$@"')
        script = "set -e\n" + "\n".join(lines)
        log = open(self.folder / f"{container['name']}.log", "w")
        process = subprocess.Popen(["unshare", "--mount", "--propagation=private", "bash", "-c", script, "container",
                                    *map(str, command)], env=environment | {"PATH": os.environ["PATH"]}, stdout=log, stderr=log)
        self.running[container["name"]] = process
        return process

    def sim(self):
        sim = WORK / "sim"
        if not sim.exists():
            sim.mkdir(mode=0o777)
            sim.chmod(0o777)
            shutil.copy(SOURCE / "tests/scenarios/node-8xh200.toml", sim / "scenario.toml")
        return sim

    def logs(self):
        return "".join(log.read_text() for log in sorted(self.folder.glob("*.log")))

    def stop(self):
        """The exporter first: sidecars go last."""
        for name in reversed(list(self.running)):
            process = self.running.pop(name)
            process.terminate()
            started = time.monotonic()
            expect(process.wait(30) == 0, f"the container {name} ends with {process.returncode}")
            expect(time.monotonic() - started < 10, f"the container {name} ends late")


def ask(port, path, headers=None, tls=False):
    try:
        if tls:
            # As the kubelet, which checks no certificate.
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=ssl._create_unverified_context())
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""


def series(pattern, port=9408):
    return wait(f"a series {pattern}", lambda: re.search(pattern, ask(port, "/metrics")[1], re.M))


def check_rights(pod):
    """What the processes have is what the specification gives."""
    for name, process in pod.running.items():
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        numbers = {key: value.split() for key, value in re.findall(r"^(\w+):[ \t]*(.*)$", status, re.M)}
        user = {"exporter": "194080", "kubelet": "0"}[name]
        expect(numbers["Uid"][0] == user and numbers["Gid"][0] == "194080" and not numbers["Groups"], f"{name}: {numbers['Uid']}")
        expect(all(int(numbers[key][0], 16) == 0 for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb")), f"{name} has capabilities")
        expect(numbers["NoNewPrivs"] == ["1"], f"{name} may get new privileges")
        mounts = [line.split() for line in pathlib.Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()]
        # As the process sees them, so below its root. The last ones are the runtime's and the simulated driver's.
        writable = {line[4] for line in mounts if "ro" not in line[5].split(",")}
        writable = {path for path in writable if not re.match("/(proc|sys|dev|sim|usr)(/|$)", path)}
        mounted = {"exporter": {"/var/lib/gpu-node-exporter", "/run/gpu-node-exporter", "/tmp"}, "kubelet": {"/relay"}}[name]
        expect(writable == mounted, f"{name} may write to {writable}")


def pss(pod, name):
    """Of a container's processes: those of its mount namespace."""
    namespace, total = os.readlink(f"/proc/{pod.running[name].pid}/ns/mnt"), 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/mnt") == namespace:
                total += int(re.search(r"^Pss: +(\d+)", (process / "smaps_rollup").read_text(), re.M)[1])
        except OSError:
            pass
    return total / 1024


def specification(*values):
    """The pod and the content of its ConfigMap."""
    command = [HELM, "template", "gpus", SOURCE / "deploy/chart", "--kube-version", "v1.34", "-s", "templates/daemonset.yaml",
               "-s", "templates/config.yaml"]
    for value in values:
        command += ["--set-json", value]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {document["kind"]: document for document in schemas.documents(rendered)}
    return found["DaemonSet"]["spec"]["template"]["spec"], found["ConfigMap"]["data"]


def secret():
    """A web configuration as a Secret has it: TLS, and a client's certificate for all but the open paths."""
    folder = WORK / "secret"
    folder.mkdir()
    for name in ("server.pem", "server.key", "authority.pem"):
        shutil.copy(SOURCE / "tests/certificates" / name, folder)
    (folder / "web.yml").write_text(
        "tls_server_config: {cert_file: server.pem, key_file: server.key, client_ca_file: authority.pem,\n"
        "  client_auth_type: RequireAndVerifyClientCert}\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


def main():
    run("ip", "link", "set", "lo", "up")
    check_content(unpack())
    host = make_host()

    # A node without a driver and without a kubelet's answer yet.
    (host / "var/lib/kubelet/pod-resources").mkdir(parents=True)
    pod = Pod(host, specification(), driver=False).start()
    series(r"^gpu_driver_up\S* 0")
    check_rights(pod)
    pod.stop()
    (host / "var/lib/kubelet/pod-resources").rmdir()
    print("ready without a driver and a kubelet, user 194080, no capability, no writable root")

    kubelet = start_kubelet(host)
    pod = Pod(host, specification()).start()
    series(r'^gpu_devices\S* 8$')
    series(r'^gpu_kubelet_allocated_devices\{.*resource="nvidia.com/gpu".*\} 1')
    series(r'^gpu_owner_info\{.*pod="llm-0"')
    # What the chart sets by default leaves no collector without what it reads: an alert would fire on every node.
    down = re.compile(r"^gpu_exporter_collector_up\S* 0$", re.M)
    wait("every collector", lambda: (page := ask(9408, "/metrics")[1]) and not down.search(page))
    check_rights(pod)
    health = [BUILT / "gpu-node-exporter", "health", "--format", "json"]
    outside = subprocess.run(health, capture_output=True, text=True, user=65534, group=65534, extra_groups=[], env={
        "GPU_NODE_EXPORTER__HEALTH__SOCKET": f"{host}/run/gpu-node-exporter/health.sock",
        "GPU_NODE_EXPORTER__CONTROL__SOCKET": ""})
    expect('"gpus"' in outside.stdout, f"health on the host: {outside}")
    print(f"PSS with 8 GPUs: exporter {pss(pod, 'exporter'):.1f} MiB, relay {pss(pod, 'kubelet'):.1f} MiB")
    said = pod.logs()
    expect(not re.search("ERROR|panicked", said), said)
    series(r'^gpu_devices_highest\S* 8$')
    wait("the state of the node", (host / "var/lib/gpu-node-exporter/history.json").exists)
    pod.reconfigure(specification('config={"node":{"rack":"r7"},"canary":{"mode":"off"}}'))
    series(r'^gpu_devices\{.*rack="r7".*\} 8$')
    series(r'^gpu_canary_mode\{.*mode="off".*\} 1$')
    pod.stop()
    print("8 GPUs, the kubelet's pods, health for other users of the node, changed settings without a restart")

    # The next pod, without a driver, knows what the one before has seen; in dcgm-exporter's place.
    pod = Pod(host, specification('config={"dcgm":{"listen":":9400"},"canary":{"mode":"off"}}'), driver=False).start()
    series(r'^gpu_devices_highest\S* 8$')
    pod.stop()
    pod = Pod(host, specification('config={"dcgm":{"listen":":9400"},"canary":{"mode":"off"}}')).start()
    series(rf'^DCGM_FI_DEV_GPU_TEMP\{{.*hostname="{NODE_NAME}"', 9400)
    pod.stop()
    print("state of the pod before, dcgm-exporter's metrics on port 9400 with the node's name")

    pod = Pod(host, specification('webConfig={"secret":"web"}'), secret=secret()).start()
    status, _ = ask(9408, "/metrics", tls=True)
    expect(status == 403, f"without a certificate /metrics answers {status}")
    pod.stop()
    print("probes over TLS, metrics for clients with a certificate alone")

    # As root with the host's devices: the kernel log, and the kubelet without a relay.
    (host / "dev/kmsg").touch()
    pod = Pod(host, specification("privileged=true", "kernelLog=true")).start()
    series(r'^gpu_exporter_collector_up\{.*collector="kmsg".*\} 1')
    series(r'^gpu_kubelet_allocated_devices\{.*resource="nvidia.com/gpu".*\} 1')
    expect(list(pod.running) == ["exporter"], f"containers {list(pod.running)}")
    pod.stop()
    print("privileged: the kernel log too")

    # Back to the pod without root, which reads what root has written.
    state = host / "var/lib/gpu-node-exporter"
    written = state / "history.json"
    os.chown(written, 0, 0)
    written.chmod(0o600)
    pod = Pod(host, specification('config={"canary":{"mode":"off"}}'), driver=False).start()
    series(r'^gpu_devices_highest\S* 8$')
    expect("denied" not in pod.logs(), pod.logs())
    pod.stop()

    # A node that had the package: its folder is another user's.
    os.chown(state, 997, 997)
    pod = Pod(host, specification())
    [folders] = [container for container in pod.spec["initContainers"] if container["name"] == "folders"]
    expect(pod.run(folders).wait(PATIENCE) == 1, "a folder of another user is given away")
    expect("chown -R root: /var/lib/gpu-node-exporter" in pod.logs(), pod.logs())
    print("folders of a privileged pod and of the package before")
    kubelet.stop(0)


try:
    main()
finally:
    for log in WORK.glob("tmp*/*.log"):
        if sys.exc_info()[0]:
            print(f"{log.name}:\n{log.read_text()}", file=sys.stderr)
    subprocess.run(["umount", "--quiet", WORK / "node/run"])
    shutil.rmtree(WORK, ignore_errors=True)
