#!/usr/bin/env python3
"""autoscaling.py PACKAGES CRD: the objects of deploy/autoscaling fit the schemas of their API, unknown fields refused.

HorizontalPodAutoscalers: of each Kubernetes release from 1.33 on, in the folder PACKAGES. ScaledObjects: CRD, KEDA's own.
"""
import copy
import json
import pathlib
import sys

PACKAGES, CRD = sys.argv[1:]
sys.path.insert(0, PACKAGES)

import fastjsonschema  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402

DEFINITIONS = "/api/_definitions.json"
OBJECTS = pathlib.Path(__file__).parents[2] / "deploy/autoscaling"


def documents(path):
    return [json.loads(json.dumps(document)) for document in YAML(typ="safe", pure=True).load_all(path.read_text())]


def strict(schema):
    """The schema of a CRD, which Kubernetes prunes by, refusing what would be pruned. Formats are of numbers' sizes."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if not (key == "format" and isinstance(value, str))}
    if isinstance(made.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in made:
        made.setdefault("additionalProperties", False)
    return made


def validators():
    schemas = pathlib.Path(PACKAGES, "kubernetes_validate/kubernetes-json-schema")
    folders = [folder for folder in sorted(schemas.glob("v1.*-local-strict")) if int(folder.name.split(".")[1]) >= 33]
    for folder in folders:
        schema = json.loads((folder / "horizontalpodautoscaler-autoscaling-v2.json").read_text())
        schema |= json.loads((folder / "_definitions.json").read_text().replace(DEFINITIONS, ""))
        whole = json.loads(json.dumps(schema).replace(DEFINITIONS, ""))
        yield "HorizontalPodAutoscaler", folder.name.split("-")[0], fastjsonschema.compile(whole)
    crd = documents(pathlib.Path(CRD))[0]
    version = crd["spec"]["versions"][0]
    schema = strict(version["schema"]["openAPIV3Schema"])
    # The API server's own.
    schema["properties"]["metadata"] = {"type": "object"}
    yield "ScaledObject", version["name"], fastjsonschema.compile(schema)


def refused(validate, document, change):
    changed = copy.deepcopy(document)
    change(changed["spec"])
    try:
        validate(changed)
    except fastjsonschema.JsonSchemaException:
        return True
    return False


def wrong(spec):
    """Three faults that a schema must find, one each: a misspelt field, a type, a field that is missing."""
    yield "a misspelt field", lambda spec: spec.update(maxReplica=3)
    yield "a text for a number", lambda spec: spec.update({key: "8" for key in spec if key.startswith("max")})
    yield "no target", lambda spec: spec.pop("scaleTargetRef")


def main():
    objects = [(path.name, document) for path in sorted(OBJECTS.glob("*.yaml"))
               for document in documents(path) if "kind" in document]
    checked, problems = 0, []
    for kind, version, validate in validators():
        for name, document in objects:
            if document["kind"] != kind:
                continue
            checked += 1
            try:
                validate(document)
            except fastjsonschema.JsonSchemaException as error:
                problems.append(f"{name}, {kind} of {version}: {error.message}")
            problems += [f"{name}, {kind} of {version}: {what} is accepted" for what, change in wrong(document["spec"])
                         if not refused(validate, document, change)]
    kinds = {document["kind"] for _, document in objects}
    if kinds != {"HorizontalPodAutoscaler", "ScaledObject"} or checked < len(objects):
        problems.append(f"{checked} checks of {len(objects)} objects of {kinds}")
    print("\n".join(problems) or f"{checked} checks of {len(objects)} objects passed")
    sys.exit(bool(problems))


main()
