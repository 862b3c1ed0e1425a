#!/usr/bin/env python3
"""chart.py HELM EXPORTER CRDS: what deploy/chart renders, with each file of values in tests/data/chart.

Objects fit their APIs (Kubernetes from 1.33 on, the Prometheus operator's CRDS), pods serve and mount what is asked for, the program
accepts its settings, and values that contradict each other are refused. The default objects are those of default.golden.yaml;
UPDATE=1 writes it.
"""
import base64
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

import schemas

HELM, EXPORTER, CRDS = sys.argv[1:]
ROOT = pathlib.Path(__file__).parents[2]
CHART, DATA = ROOT / "deploy/chart", ROOT / "tests/data/chart"
# Kubernetes keeps no Secret and no ConfigMap of more bytes. Helm keeps a release in a Secret.
MOST_BYTES = 1 << 20
PREFIX = "GPU_NODE_EXPORTER__"
FILE = PREFIX + "CONFIG"
problems = []
# What a process may ask of the machine that it runs on, and what only a pod has.
ONLY_IN_A_POD = ("HTTP__WEB_CONFIG_FILE",)


def helm(*arguments, values=None):
    given = subprocess.run([HELM, *arguments, *(["-f", values] if values else [])], capture_output=True, text=True)
    return given.returncode, given.stdout, given.stderr


def render(values=None, release="v1.34", more=()):
    return helm("template", "gpus", CHART, "--kube-version", release, *more, values=values)


def operator_example():
    """The values for the place of dcgm-exporter, from the chart's own file."""
    lines = (CHART / "values.yaml").read_text().split("for NVIDIA's GPU Operator:\n")[1].splitlines()
    example = [line.removeprefix("#   ") for line in lines[:lines.index("service:")]]
    return "\n".join(example) + "\n"


def pods(objects):
    return [found["spec"]["template"]["spec"] for found in objects if found["kind"] == "DaemonSet"]


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def schema_problems(objects, crds, releases):
    """Each object in each of these releases."""
    checked = 0
    for found in objects:
        kind, api_version = found["kind"], found["apiVersion"]
        validators = [(api_version, crds[api_version, kind])] if (api_version, kind) in crds else [
            (release, schemas.of_kubernetes(release, api_version, kind)) for release in releases]
        for release, validate in validators:
            if validate is None:
                yield f"{release} has no {kind} of {api_version}"
                continue
            checked += 1
            try:
                schemas.check(validate, found)
            except schemas.Refused as error:
                yield f"{kind} {found['metadata']['name']} in {release}: {error}"
            try:
                schemas.check(validate, found | {"misspelt": 1})
                yield f"{kind} in {release}: a misspelt field is accepted"
            except schemas.Refused:
                pass
    counts.append(checked)


def pod_problems(objects):
    """What belongs together: ports, volumes, selectors, names."""
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    yield from (f"{name} is there twice" for name in set(names) if names.count(name) > 1)
    for pod in pods(objects):
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        if volumes != mounted:
            yield f"volumes {volumes}, and mounted are {mounted}"
        exporter = pod["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in exporter["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if exporter[probe]["httpGet"]["port"] not in ports:
                yield f"{probe} asks a port without name"
        if pod["enableServiceLinks"] or pod["automountServiceAccountToken"]:
            yield "variables of Services, or a token that nothing uses"
        for container in containers(pod):
            security = container["securityContext"]
            if not security["readOnlyRootFilesystem"]:
                yield f"{container['name']} may write to its image"
            if not security.get("privileged") and (
                    security["allowPrivilegeEscalation"] or security["capabilities"] != {"drop": ["ALL"]}):
                yield f"{container['name']} has privileges"
            if "nvidia.com/gpu" in json.dumps(container["resources"]):
                yield f"{container['name']} takes a GPU"
        for found in objects:
            labels = next(o for o in objects if o["kind"] == "DaemonSet")["spec"]["template"]["metadata"]["labels"]
            if found["kind"] == "Service":
                yield from (f"the Service asks for {label}" for label in found["spec"]["selector"].items()
                            if label not in labels.items())
                yield from (f"no container port {port['targetPort']}" for port in found["spec"]["ports"]
                            if port["targetPort"] not in ports.values())
            if found["kind"] == "NetworkPolicy":
                allowed = {port["port"] for rule in found["spec"]["ingress"] for port in rule["ports"]}
                if allowed != set(ports.values()) or "egress" in found["spec"]:
                    yield f"the policy allows {allowed} of {ports}"
            if found["kind"].endswith("Monitor"):
                service = [o for o in objects if o["kind"] == "Service"] if found["kind"] == "ServiceMonitor" else []
                selected = service[0]["metadata"]["labels"] if service else labels
                wanted = found["spec"]["selector"]["matchLabels"]
                endpoint = (found["spec"].get("endpoints") or found["spec"]["podMetricsEndpoints"])[0]
                named = [port["name"] for port in service[0]["spec"]["ports"]] if service else list(ports)
                instance = [rule for rule in endpoint["relabelings"] if rule.get("targetLabel") == "instance"]
                if instance != [{"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}]:
                    yield f"the {found['kind']} makes `instance` by {instance}"
                if not wanted.items() <= selected.items() or endpoint["port"] not in named:
                    yield f"the {found['kind']} finds nothing: {wanted}, {endpoint['port']}"


def text(value):
    """A value of YAML or TOML as people write it."""
    return [text(item) for item in value] if isinstance(value, list) else json.dumps(value).strip('"')


def settings_problems(objects, values):
    """The program accepts what it is given; a value has arrived as it is."""
    for pod in pods(objects):
        environment = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]
                       if variable["name"].startswith(PREFIX) and not variable["name"].endswith(ONLY_IN_A_POD)}
        [data] = [volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == "config"]
        [found] = [found for found in objects if (found["kind"], found["metadata"]["name"]) == ("ConfigMap", data)]
        with tempfile.TemporaryDirectory() as folder:
            # As the kubelet mounts it.
            mount = pathlib.Path(folder, "..1")
            mount.mkdir()
            for key, content in found["data"].items():
                (mount / key).write_text(content)
            pathlib.Path(folder, "..data").symlink_to("..1")
            environment[FILE] = environment[FILE].replace("/etc/gpu-node-exporter/config", folder)
            ended = subprocess.run([EXPORTER, "check-config"], env=environment, capture_output=True, text=True)
        if ended.returncode:
            yield f"check-config: {ended.stderr}"
            continue
        arrived = tomllib.loads(ended.stdout)
        for section, keys in values.get("config", {}).items():
            yield from (f"{section}.{key} is {arrived[section][key]} and not {value}" for key, value in keys.items()
                        if text(arrived[section][key]) != text(value))


def rollout_problems():
    """A change of settings restarts the pods if it needs to, else not."""
    def template(config):
        objects = schemas.documents(render(more=("--set-json", "config=" + config))[1])
        return next(found for found in objects if found["kind"] == "DaemonSet")["spec"]["template"]

    if template("{}") != template('{"canary": {"mode": "off"}}'):
        yield "canary.mode, which applies without a restart, restarts the pods"
    if template("{}") == template('{"cpu": {"per_owner": true}}'):
        yield "cpu.per_owner, which needs a restart, restarts no pod"




def written_problems():
    """What an administrator writes from an alert, in each release with the API version that the file names for it."""
    folder = ROOT / "deploy/kubernetes"
    [rule], [patch] = [schemas.documents((folder / name).read_text()) for name in ("device-taint-rule.yaml", "node-condition.yaml")]
    group, kind = rule["apiVersion"].partition("/")[0], rule["kind"]
    for release in schemas.RELEASES:
        minor = int(release.partition(".")[2])
        newest = "v1" if minor >= 37 else "v1beta2" if minor == 36 else "v1alpha3"
        for version in ("v1", "v1beta2", "v1alpha3"):
            validate = schemas.of_kubernetes(release, f"{group}/{version}", kind)
            if version == newest:
                break
            if validate:
                yield f"{release} has {kind} of {version}, newer than {newest}"
        for validate, document in ((validate, rule | {"apiVersion": f"{group}/{newest}"}),
                                   (schemas.of_kubernetes(release, "v1", "Node"), {"apiVersion": "v1", "kind": "Node"} | patch)):
            if validate is None:
                yield f"{release} has no {document['kind']} of {document['apiVersion']}"
                continue
            try:
                schemas.check(validate, document)
            except schemas.Refused as error:
                yield f"{document['kind']} of deploy/kubernetes in {release}: {error}"


def named_problems():
    """The objects that documents name are those of a release called gpu-node-exporter."""
    _, manifest, _ = helm("template", "gpu-node-exporter", CHART, "--kube-version", "v1.34")
    objects = schemas.documents(manifest)
    daemonset = next(found for found in objects if found["kind"] == "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    named = 0
    for file in sorted((ROOT / "docs").rglob("*.md")):
        said = file.read_text()
        for name in re.findall(r"\bdaemonset[ /]([\w-]+)", said):
            named += 1
            if name != daemonset["metadata"]["name"]:
                yield f"{file.relative_to(ROOT)}: the chart makes no DaemonSet {name}"
        for label, value in re.findall(r"\b(app\.kubernetes\.io/\w+)=([\w-]+)", said):
            named += 1
            if labels.get(label) != value:
                yield f"{file.relative_to(ROOT)}: the chart's pods have no label {label}={value}"
    if named < 4:
        yield f"{named} names of objects in docs"
    regex = f"{labels['app.kubernetes.io/name']};{daemonset['spec']['template']['spec']['containers'][0]['ports'][0]['name']}"
    if f"regex: {regex}}}" not in (ROOT / "docs/kubernetes.md").read_text():
        yield f"docs/kubernetes.md: the scrape job by hand does not find {regex}"


def dashboard_problems(objects):
    maps = [found for found in objects if found["kind"] == "ConfigMap" and "config.toml" not in found["data"]]
    for found in maps:
        [(name, text)] = found["data"].items()
        if json.loads(text) != json.loads((ROOT / "dashboards" / name).read_text()):
            yield f"{name} is another dashboard"
        if len(text) >= MOST_BYTES:
            yield f"{name} has {len(text)} bytes"
    files = {file.name for file in (ROOT / "dashboards").glob("*.json")}
    if maps and {name for found in maps for name in found["data"]} != files:
        yield "not all dashboards"


def release_size(manifest):
    """What Helm keeps of a release with these objects, as its Secret driver does: JSON, gzip, base64."""
    with tempfile.TemporaryDirectory() as folder:
        helm("package", CHART, "-d", folder)
        with tarfile.open(next(pathlib.Path(folder).iterdir())) as package:
            files = [base64.b64encode(package.extractfile(file).read()).decode() for file in package if file.isfile()]
    release = json.dumps({"files": files, "manifest": manifest}).encode()
    return len(base64.b64encode(gzip.compress(release, 9)))


def golden(manifest):
    """The default objects that this chart alone makes: rules and dashboards are compared with their sources."""
    parts = [part for part in manifest.split("---\n") if part.strip()]
    kept = "".join("---\n" + part for part in parts if not any(
        file in part for file in ("templates/dashboards.yaml", "templates/prometheusrules.yaml")))
    file = DATA / "default.golden.yaml"
    if os.environ.get("UPDATE"):
        file.write_text(kept)
    if not file.exists() or file.read_text() != kept:
        problems.append("the default objects are not those of default.golden.yaml; UPDATE=1 make prove PARTS=chart writes it")


counts = []


def main():
    crds = {}
    for file in sorted(pathlib.Path(CRDS).glob("*.yaml")):
        api_version, kind, validate = schemas.of_crd(file)
        crds[api_version, kind] = validate
    with tempfile.TemporaryDirectory() as folder:
        dcgm = pathlib.Path(folder, "dcgm.yaml")
        dcgm.write_text(operator_example())
        sets = [None, dcgm, *(file for file in sorted(DATA.glob("*.yaml"))
                              if file.name not in ("refused.yaml", "default.golden.yaml"))]
        for values in sets:
            name = values.stem if values else "default"
            code, manifest, error = render(values)
            if code:
                problems.append(f"{name}: {error}")
                continue
            objects = schemas.documents(manifest)
            releases = [release for release in schemas.RELEASES if (name, release) != ("claim", "v1.33")]
            found = [*schema_problems(objects, crds, releases), *pod_problems(objects),
                     *settings_problems(objects, schemas.documents(values.read_text())[0] if values else {}),
                     *dashboard_problems(objects)]
            problems.extend(f"{name}: {problem}" for problem in found)
            code, said, _ = helm("lint", CHART, "--strict", "--kube-version", "v1.34", values=values)
            if code:
                problems.append(f"{name}: helm lint: {said}")
            if name == "default":
                golden(manifest)
            if name == "dcgm":
                service = next(found for found in objects if found["kind"] == "Service")
                names = service["metadata"]["name"], service["metadata"]["labels"], service["spec"]["ports"]
                port = {"name": "gpu-metrics", "port": 9400, "targetPort": 9400, "protocol": "TCP"}
                if names != ("nvidia-dcgm-exporter", {"app": "nvidia-dcgm-exporter"}, [port]):
                    problems.append(f"dcgm: a Service {names}")
            if name == "everything":
                size = release_size(manifest)
                if size >= MOST_BYTES:
                    problems.append(f"Helm keeps {size} bytes of a release, and a Secret has room for {MOST_BYTES}")
        problems.extend([*rollout_problems(), *written_problems(), *named_problems()])
        refused = schemas.documents((DATA / "refused.yaml").read_text())[0]
        for case in refused:
            file = pathlib.Path(folder, "refused.yaml")
            file.write_text(json.dumps(case["values"]))
            code, _, error = render(file, case.get("kubernetes", "v1.34"))
            if not code:
                problems.append(f"accepted, and is to be refused: {case}")
            elif case["says"] not in error:
                problems.append(f"refused without {case['says']!r}: {error}")
    print("\n".join(problems) or f"{len(sets)} sets of values in Kubernetes {schemas.RELEASES[0]} to {schemas.RELEASES[-1]}: "
          f"{sum(counts)} checks of objects, {len(refused)} contradictions refused; Helm keeps {size} bytes of a release")
    sys.exit(bool(problems))


main()
