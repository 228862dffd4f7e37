"""JSON schema of the output of `dtrain lint --format sarif`: the part of SARIF 2.1.0 that it uses, without other
properties.

It was written from the standard, https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html, whose sections are
in the comments. It is stricter than the schema of OASIS: a document that it accepts is also valid there.
`test_the_official_schema_agrees` checks this if there is a copy of that schema.
"""

from __future__ import annotations

from typing import Any


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _list(items: Any, *, at_least: int = 0, unique: bool = True) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": at_least, "uniqueItems": unique}


TEXT = {"type": "string", "minLength": 1}
MESSAGE = _object(("text",), text=TEXT)  # 3.11
FROM_ONE = {"type": "integer", "minimum": 1}
REGION = _object(  # 3.30: columns of one line, or from a place to another
    ("startLine", "startColumn", "endLine", "endColumn"),
    startLine=FROM_ONE,
    startColumn=FROM_ONE,
    endLine=FROM_ONE,
    endColumn=FROM_ONE,
)
URI = {"type": "string", "pattern": r"^(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})+$"}  # RFC 3986, no ? and no #
ARTIFACT = _object(("uri",), uri=URI)  # 3.4
PHYSICAL = _object(("artifactLocation", "region"), artifactLocation=ARTIFACT, region=REGION)  # 3.29
LOGICAL = _object(("fullyQualifiedName",), fullyQualifiedName=TEXT)  # 3.33
PLACE = {"physicalLocation": PHYSICAL, "logicalLocations": _list(LOGICAL, at_least=1)}
LOCATION = {**_object((), **PLACE), "minProperties": 1}  # 3.28
RELATED = _object(("id", "message"), id=FROM_ONE, message=MESSAGE, **PLACE)
INSERTED = _object(("text",), text={"type": "string"})
REPLACEMENT = _object(("deletedRegion", "insertedContent"), deletedRegion=REGION, insertedContent=INSERTED)  # 3.57
REPLACEMENTS = _list(REPLACEMENT, at_least=1, unique=False)
CHANGE = _object(("artifactLocation", "replacements"), artifactLocation=ARTIFACT, replacements=REPLACEMENTS)  # 3.56
FIX = _object(
    ("description", "artifactChanges"), description=MESSAGE, artifactChanges=_list(CHANGE, at_least=1)
)  # 3.55
RESULT = _object(  # 3.27
    ("ruleId", "ruleIndex", "level", "message", "locations"),
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level={"enum": ["error", "warning", "note"]},
    message=MESSAGE,
    locations=_list(LOCATION, at_least=1, unique=False),
    relatedLocations=_list(RELATED, at_least=1),
    fixes=_list(FIX, at_least=1),
)
RULE = _object(  # 3.49
    ("id",), id=TEXT, name=TEXT, shortDescription=MESSAGE, fullDescription=MESSAGE, help=MESSAGE
)
DRIVER = _object(("name", "version", "rules"), name={"const": "dtrain"}, version=TEXT, rules=_list(RULE))  # 3.19
RUN = _object(  # 3.14
    ("tool", "columnKind", "results"),
    tool=_object(("driver",), driver=DRIVER),
    columnKind={"const": "unicodeCodePoints"},
    results=_list(RESULT, unique=False),
)
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(  # 3.13
        ("$schema", "version", "runs"),
        **{"$schema": {"type": "string", "format": "uri"}, "version": {"const": "2.1.0"}},
        runs={**_list(RUN, at_least=1), "maxItems": 1},
    ),
}
