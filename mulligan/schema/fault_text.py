"""What an input must be, for a person: pydantic's errors in plain words."""

from __future__ import annotations

from typing import Any

_FORMS = {
    "string_type": "a string",
    "string_unicode": "a valid string: it has half a surrogate pair, which UTF-8 cannot represent",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "datetime_type": "a time such as 2026-11-22T12:00:00Z",
    "datetime_parsing": "a time such as 2026-11-22T12:00:00Z",
    "datetime_from_date_parsing": "a time such as 2026-11-22T12:00:00Z",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "of at least {min_length} items",
    "too_long": "of at most {max_length} items",
    "literal_error": "{expected}",
}


def required_form(fault: Any) -> str:
    """What the input of one of pydantic's errors must be: `it must be at least 1`."""
    form, context = _FORMS.get(fault["type"]), fault.get("ctx", {})
    if context.get("min_length") == 1:
        return "it must not be empty"
    if form is None:
        says = fault["msg"][0].lower() + fault["msg"][1:]
        return str(says).replace("input should be", "it must be").removeprefix("value error, ")
    return f"it must be {form.format(**context)}"
