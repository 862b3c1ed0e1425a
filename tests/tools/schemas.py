"""Whether objects fit the schemas of their API, unknown fields refused: of each Kubernetes release from 1.33 on, and of CRDs.

Its packages are in the folder that the variable SCHEMAS names, `.tools/schemas`.
"""
import functools
import json
import os
import pathlib
import sys

PACKAGES = pathlib.Path(os.environ["SCHEMAS"])
sys.path.insert(0, str(PACKAGES))

import fastjsonschema  # noqa: E402
from ruamel.yaml import YAML  # noqa: E402

DEFINITIONS = "/api/_definitions.json"
STORED = PACKAGES / "kubernetes_validate/kubernetes-json-schema"
FOLDERS = {folder.name.split("-")[0].removesuffix(".0"): folder for folder in STORED.glob("v1.*-local-strict")}
RELEASES = [f"v1.{minor}" for minor in range(33, 100) if f"v1.{minor}" in FOLDERS]


class Refused(Exception):
    """An object that does not fit."""


def documents(text):
    found = [json.loads(json.dumps(document)) for document in YAML(typ="safe", pure=True).load_all(text)]
    return [document for document in found if document]


def check(validate, document):
    try:
        validate(document)
    except fastjsonschema.JsonSchemaException as error:
        raise Refused(error.message) from error


@functools.cache
def of_kubernetes(release, api_version, kind):
    """The validator of an object in this release; None if the release does not have it."""
    group, _, version = api_version.rpartition("/")
    group = group.split(".")[0]
    file = FOLDERS[release] / ("-".join(filter(None, [kind.lower(), group, version])) + ".json")
    if not file.exists():
        return None
    schema = json.loads(file.read_text()) | json.loads((FOLDERS[release] / "_definitions.json").read_text())
    return fastjsonschema.compile(json.loads(json.dumps(schema).replace(DEFINITIONS, "")))


def strict(schema):
    """The schema of a CRD, which Kubernetes prunes by, refusing what would be pruned. Formats are of numbers' sizes."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if not (key == "format" and isinstance(value, str))}
    if isinstance(pattern := made.get("pattern"), str) and "(?i)" in pattern:
        # Python takes Go's flag at the beginning of a whole expression alone.
        made["pattern"] = "(?i:" + pattern.replace("(?i)", "", 1) + ")"
    if isinstance(made.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in made:
        made.setdefault("additionalProperties", False)
    return made


def of_crd(file):
    """API version, kind and validator of a CRD."""
    spec = documents(pathlib.Path(file).read_text())[0]["spec"]
    version = spec["versions"][0]
    schema = strict(version["schema"]["openAPIV3Schema"])
    # The API server's own.
    schema["properties"]["metadata"] = {"type": "object"}
    return f"{spec['group']}/{version['name']}", spec["names"]["kind"], fastjsonschema.compile(schema)
