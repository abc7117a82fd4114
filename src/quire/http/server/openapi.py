"""The OpenAPI document, generated from the route table."""

from __future__ import annotations

from typing import Any

from quire.http.server.api import Api, Field, Route, Text
from quire.http.server.security import HttpOptions

PATH = "/api/v1/openapi.json"
_ERROR = {"$ref": "#/components/schemas/Error"}


def document(api: Api, version: str, options: HttpOptions) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of an API. The options say which routes need a token."""
    paths: dict[str, dict[str, Any]] = {}
    for route in filter(lambda one: one.documented, api.routes):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, options)
    components: dict[str, Any] = {
        "schemas": {"Error": error_schema()},
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


def error_schema() -> dict[str, Any]:
    """Return the JSON schema of the body of an error."""
    text = {"type": "string"}
    properties: dict[str, Any] = {
        "status": {"type": "integer", "description": "the HTTP status"},
        "kind": {**text, "description": "the class of the error"},
        "what": {**text, "description": "what happened, and to what"},
        "causes": {
            "type": "object",
            "additionalProperties": text,
            "description": "the cause at each bookie or server",
        },
        "remedy": {**text, "description": "what to do"},
        "outcome_known": {
            "type": "boolean",
            "description": "false if the request may have taken effect",
        },
        "code": {"type": "integer", "description": "BookKeeper's error code"},
    }
    error = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _operation(route: Route, options: HttpOptions) -> dict[str, Any]:
    kind = "text/plain" if isinstance(route.example, Text) else "application/json"
    example = route.example.text if isinstance(route.example, Text) else route.example
    content = {kind: {} if example is None else {"example": example}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": {
                "description": "refused, or failed",
                "content": {"application/json": {"schema": _ERROR}},
            },
        },
    }
    parameters = [_parameter(one, "path") for one in route.fields]
    parameters += [_parameter(one, "query") for one in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        schema = {
            "type": "object",
            "properties": {one.name: _schema(one) for one in route.body},
            "required": [one.name for one in route.body if one.required],
            "additionalProperties": False,
        }
        operation["requestBody"] = {
            "required": any(one.required for one in route.body),
            "content": {"application/json": {"schema": schema}},
        }
    if options.needs_token(changes=route.changes, open=route.open, payloads=route.payloads):
        operation["security"] = [{"token": []}]
    return operation


def _parameter(one: Field, where: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": where,
        "required": one.required or where == "path",
        "description": one.help,
        "schema": _schema(one),
    }


def _schema(one: Field) -> dict[str, Any]:
    if one.type == "integer":
        return {"type": "integer", "minimum": one.minimum, "maximum": one.maximum}
    if one.type in ("bytes", "seconds"):
        # A text may name a unit. The bounds apply to the resulting number.
        kinds = ["integer", "string"]
        return {"type": kinds, "minimum": one.minimum, "maximum": one.maximum}
    if one.type == "strings":
        return {"type": "array", "items": {"type": "string"}}
    if one.choices:
        return {"type": "string", "enum": list(one.choices)}
    return {"type": one.type}
