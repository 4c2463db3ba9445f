"""The two patches that helm sends: merge patches, and strategic ones, which know keys of lists."""

from __future__ import annotations

from typing import Any, cast

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# By which key Kubernetes merges the elements of a list; every other list is replaced.
LIST_KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}

Map = dict[str, Any]


def patched(old: Map, patch: Map, content_type: str) -> Map:
    """ValueError for a patch of another kind."""
    if content_type == MERGE:
        return _merge(old, patch)
    if content_type == STRATEGIC:
        return _strategic(old, patch)
    raise ValueError(f"patches of type {content_type} are not known here")


def _merge(old: Any, patch: Any) -> Any:
    """Null deletes, lists are replaced."""
    if not isinstance(patch, dict):
        return patch
    result: Map = dict(cast("Map", old)) if isinstance(old, dict) else {}
    for key, value in cast("Map", patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def _strategic(old: Any, patch: Map) -> Map:
    patch = dict(patch)
    if patch.pop("$patch", None) == "replace":
        return patch
    result: Map = dict(cast("Map", old)) if isinstance(old, dict) else {}
    retained = patch.pop("$retainKeys", None)
    if retained is not None:
        result = {key: value for key, value in result.items() if key in retained}
    orders = {key: patch.pop(key) for key in list(patch) if key.startswith("$setElementOrder/")}
    unknown = [key for key in patch if key.startswith("$")]
    if unknown:
        raise ValueError(f"directives {unknown} are not known here")
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in LIST_KEYS:
            merged = _elements(result.get(key) or [], cast("list[Map]", value), key)
            order = orders.get(f"$setElementOrder/{key}")
            result[key] = merged if order is None else _ordered(merged, order, key)
        elif isinstance(value, dict):
            result[key] = _strategic(result.get(key), cast("Map", value))
        else:
            result[key] = value
    return result


def _name(element: Map, key: str) -> Any:
    return next(element[each] for each in LIST_KEYS[key] if each in element)


def _elements(old: list[Map], patch: list[Map], key: str) -> list[Map]:
    result = {_name(each, key): each for each in old}
    for each in patch:
        name = _name(each, key)
        if each.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = _strategic(result.get(name), each)
    return list(result.values())


def _ordered(elements: list[Map], order: list[Map], key: str) -> list[Map]:
    places = {_name(each, key): place for place, each in enumerate(order)}
    return sorted(elements, key=lambda each: places.get(_name(each, key), len(places)))
