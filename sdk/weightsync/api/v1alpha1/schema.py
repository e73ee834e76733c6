"""From a pydantic model to a structural OpenAPI schema, which is all that the API server takes. Pure.

pydantic's JSON schema is not structural: references are written out, nullable unions lose their null, constants
become enums of one, closed objects lose ``additionalProperties: false`` (the server prunes unknown fields). What has
no structural form raises TypeError when the CRD is generated, not when it is applied.
"""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "enum", "format", "maximum", "maxItems", "maxLength", "maxProperties", "minimum",
        "minItems", "minLength", "minProperties", "pattern", "required", "type",
    }
)  # fmt: skip
_DROPPED = frozenset({"title", "default"})  # defaults are decided in _default
_NESTED = ("items", "properties", "additionalProperties")  # printed last, so that what is short is seen first
_BOUNDS = {"string": "maxLength", "array": "maxItems"}
_FIXED_LENGTH = re.compile(r"^\^\[0-9a-f\]\{(\d+)\}\$$")


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The schema of ``model``. defaults: write them out, so that the server fills them in."""
    document = model.model_json_schema(by_alias=True)
    definitions: dict[str, Schema] = document.pop("$defs", {})
    return _Converter(definitions, defaults).convert(document, model.__name__)


@dataclass(frozen=True)
class _Converter:
    definitions: dict[str, Schema]
    defaults: bool

    def convert(self, node: Schema, path: str) -> Schema:
        node = self._resolve(node, path)
        out: Schema = {}
        for key in node.keys() - _DROPPED:
            out |= self._entry(key, node[key], path)
        if "type" not in out and "x-kubernetes-int-or-string" not in out:
            raise TypeError(f"{path}: a structural schema needs a type")
        if self.defaults and "default" in node:
            out |= _default(node["default"], out.get("type", ""))
        out |= _limits(out, path)
        return {key: out[key] for key in sorted(out, key=lambda k: (k in _NESTED, k))}

    def _entry(self, key: str, value: Any, path: str) -> Schema:
        match key:
            case "properties":
                return {key: {name: self.convert(child, f"{path}.{name}") for name, child in value.items()}}
            case "items":
                return {key: self.convert(value, f"{path}[]")}
            case "additionalProperties":
                return {} if value is False else {key: self.convert(value, f"{path}{{}}")}
            case "const":
                return {"enum": [value]}
            case "description":
                return {key: " ".join(value.split())}
            case _ if key in _KEPT or key.startswith("x-kubernetes-"):
                return {key: value}
        raise TypeError(f"{path}: {key!r} has no structural form")

    def _resolve(self, node: Schema, path: str) -> Schema:
        """Follow $ref and ``X or null``; what stands beside the reference (a field's own description) wins."""
        if "anyOf" in node:
            choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
            if choices in ([{"type": "integer"}, {"type": "string"}], [{"type": "string"}, {"type": "integer"}]):
                # The one union that the server knows; what each half must be is for a rule to say, in a sentence.
                return {k: v for k, v in node.items() if k != "anyOf"} | {"x-kubernetes-int-or-string": True}
            if len(choices) != 1:
                raise TypeError(f"{path}: a union of {len(choices)} types has no structural form")
            beside = {k: v for k, v in node.items() if k != "anyOf" and not (k == "default" and v is None)}
            node = choices[0] | beside
        if "$ref" in node:
            target = self.definitions[node["$ref"].rsplit("/", 1)[1]]
            return self._resolve(target | {k: v for k, v in node.items() if k != "$ref"}, path)
        return node


def _default(value: Any, kind: str) -> Schema:
    # An object's default is the empty object: the server then fills it from the defaults inside, said once.
    # An empty list says nothing that its absence does not say.
    if kind == "object":
        return {"default": {}}
    return {} if kind == "array" else {"default": value}


def _limits(schema: Schema, path: str) -> Schema:
    """The bound that every string, list and map must have; a digest's follows from its pattern."""
    kind = schema.get("type", "")
    if kind == "integer":
        return {"format": "int64"}
    if kind == "object" and "additionalProperties" in schema and "maxProperties" not in schema:
        raise TypeError(f"{path}: a map needs a bound (maxProperties)")
    bound = _BOUNDS.get(kind)
    if bound is None or bound in schema or "enum" in schema:
        return {}
    fixed = _FIXED_LENGTH.match(schema.get("pattern", ""))
    if fixed is None:
        raise TypeError(f"{path}: every {kind} needs a bound ({bound})")
    return {bound: int(fixed[1])}
