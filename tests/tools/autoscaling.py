#!/usr/bin/env python3
"""autoscaling.py CRD: the objects of deploy/autoscaling fit the schemas of their API, unknown fields refused.

HorizontalPodAutoscalers: of each Kubernetes release from 1.33 on. ScaledObjects: CRD, KEDA's own.
"""
import copy
import pathlib
import sys

import schemas

OBJECTS = pathlib.Path(__file__).parents[2] / "deploy/autoscaling"


def validators():
    for release in schemas.RELEASES:
        kind = "HorizontalPodAutoscaler"
        yield kind, release, schemas.of_kubernetes(release, "autoscaling/v2", kind)
    api_version, kind, validate = schemas.of_crd(sys.argv[1])
    yield kind, api_version, validate


def refused(validate, document, change):
    changed = copy.deepcopy(document)
    change(changed["spec"])
    try:
        schemas.check(validate, changed)
    except schemas.Refused:
        return True
    return False


def wrong(spec):
    """Three faults that a schema must find, one each: a misspelt field, a type, a field that is missing."""
    yield "a misspelt field", lambda spec: spec.update(maxReplica=3)
    yield "a text for a number", lambda spec: spec.update({key: "8" for key in spec if key.startswith("max")})
    yield "no target", lambda spec: spec.pop("scaleTargetRef")


def main():
    objects = [(path.name, document) for path in sorted(OBJECTS.glob("*.yaml"))
               for document in schemas.documents(path.read_text()) if "kind" in document]
    checked, problems = 0, []
    for kind, version, validate in validators():
        for name, document in objects:
            if document["kind"] != kind:
                continue
            checked += 1
            try:
                schemas.check(validate, document)
            except schemas.Refused as error:
                problems.append(f"{name}, {kind} of {version}: {error}")
            problems += [f"{name}, {kind} of {version}: {what} is accepted" for what, change in wrong(document["spec"])
                         if not refused(validate, document, change)]
    kinds = {document["kind"] for _, document in objects}
    if kinds != {"HorizontalPodAutoscaler", "ScaledObject"} or checked < len(objects):
        problems.append(f"{checked} checks of {len(objects)} objects of {kinds}")
    print("\n".join(problems) or f"{checked} checks of {len(objects)} objects passed")
    sys.exit(bool(problems))


main()
