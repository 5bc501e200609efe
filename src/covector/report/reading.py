"""A report from its data, which may be anyone's: every value is checked before it is used."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from covector.errors import ArgumentValueError
from covector.report.report import VERSION, Report
from covector.verify.finding import Diagnosis, Table


class _Damage(Exception):
    """What is wrong with the data."""


def report_from(data: Any, verb: str = "Report.from_dict") -> Report:
    """The report that `to_dict` gave these data of."""
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is not int or version != VERSION:
        raise ArgumentValueError(
            f"{verb}: got {_shown(data)} of version {_shown(version)}, "
            f"expected the object that to_dict or to_json of a report gives, of version {VERSION}."
        )
    try:
        return _record(Report, data, "the report")
    except _Damage as damage:
        raise ArgumentValueError(
            f"{verb}: the report is damaged: {damage}. Make the check again and save its report."
        ) from None


def report_from_text(text: str) -> Report:
    """The report that `to_json` gave this text of."""
    verb = "Report.from_json"
    if not isinstance(text, str):
        raise ArgumentValueError(f"{verb}: got a {type(text).__name__}, expected the text of a report.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentValueError(f"{verb}: the text is not JSON: {error}. Was it cut off?") from None
    return report_from(data, verb)


def _record(kind: type, data: Any, where: str) -> Any:
    """A dataclass from an object, by the types of its fields; keys of a later format are left out."""
    if not isinstance(data, dict):
        raise _Damage(f"{where} is {_shown(data)}, not an object")
    hints = get_type_hints(kind, localns={"Source": object})  # a report's source is no part of its data
    found = kind(
        **{
            part.name: _value(hints[part.name], data[part.name], f"{part.name!r} of {where}")
            for part in fields(kind)
            if part.compare and _given(part, data, where)
        }
    )
    if isinstance(found, Diagnosis) and not 0 <= found.confidence <= 1:
        raise _Damage(f"'confidence' of {where} is {found.confidence}, not between 0 and 1")
    if isinstance(found, Table) and any(len(row) != len(found.columns) for row in found.rows):
        raise _Damage(f"{where} has rows that are not as long as its columns")
    return found


def _given(part: Field[Any], data: dict[str, Any], where: str) -> bool:
    """Whether a field is there; one that was added to the format later has a default."""
    if part.name not in data and part.default is MISSING:
        raise _Damage(f"{where} has no {part.name!r}")
    return part.name in data


def _value(kind: Any, data: Any, where: str) -> Any:
    """The data as a value of the type, or what is wrong with them."""
    if get_origin(kind) is tuple and isinstance(data, list | tuple):
        return tuple(_value(get_args(kind)[0], item, where) for item in data)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _record(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum) and data in list(kind):
        return kind(data)
    if kind is float and (number := _number(data)) is not None:
        return number
    plain = data is None or type(data) in (bool, int, float, str) if kind is Any else type(data) is kind
    if not plain or (isinstance(data, str) and not _writable(data)):
        raise _Damage(f"{where} has {_shown(data)} where a report has {getattr(kind, '__name__', kind)}")
    return data


def _number(data: Any) -> float | None:
    """A number, also one that is not finite and so was written as text."""
    if type(data) is str and data in ("nan", "inf", "-inf"):
        return float(data)
    try:
        return float(data) if type(data) in (int, float) else None
    except OverflowError:
        return math.inf if data > 0 else -math.inf


def _writable(text: str) -> bool:
    """Whether the text can be printed at all: JSON can hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(data: Any) -> str:
    """What the data are, short enough for a message."""
    if isinstance(data, str):
        return ascii(data[:60])
    return str(data) if type(data) is int and abs(data) < 10**9 else type(data).__name__
