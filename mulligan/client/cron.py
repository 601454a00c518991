"""What Temporal would do with a cron expression, and its author does not expect."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from mulligan.errors import DeclarationError

_DAYS_AHEAD = 3 * 366
_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def check_cron(cron: str, timezone: str | None, *, today: datetime | None = None) -> None:
    """Refuse an expression by which Temporal would start runs at other times than it says. Whether its fields are valid is
    Temporal's to say.

    Temporal reads a sixth field as the year, where others have the seconds first; and it starts nothing at a time that the
    change to summer time leaves out.

    Raises:
        DeclarationError: it does not have five fields, or names such a time of the next three years.
    """
    if cron.startswith("@"):
        return
    fields = cron.split()
    if len(fields) != 5:
        raise DeclarationError(
            f"the cron expression {cron[:100]!r} has {len(fields)} fields; give five: minute, hour, day of the month, "
            'month, day of the week, as in "0 9 * * MON". There are no seconds, no years and no time zone in it.'
        )
    for moment in _left_out(timezone, today or datetime.now(UTC)):
        if _names(fields, moment):
            raise DeclarationError(
                f"the cron expression {cron[:100]!r} names {moment:%H:%M}, which does not exist in {timezone} on "
                f"{moment:%Y-%m-%d}, when summer time begins: nothing would start on that day. Choose an hour that exists "
                "on every day, or another --timezone, such as UTC."
            )


def _left_out(timezone: str | None, today: datetime) -> Iterator[datetime]:
    """Each minute, in the zone's own time, that a change of its clock leaves out in the next years."""
    try:
        zone = ZoneInfo(timezone or "UTC")
    except (LookupError, ValueError, OSError):  # Temporal has its own list of zones
        return
    at = today.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for _ in range(_DAYS_AHEAD * 24):
        before, at = at, at + _HOUR
        if _offset(before, zone) < _offset(at, zone):
            while _offset(before + _MINUTE, zone) == _offset(before, zone):
                before += _MINUTE
            local = (before + _MINUTE + _offset(before, zone)).replace(tzinfo=None)
            for minute in range((_offset(at, zone) - _offset(before, zone)) // _MINUTE):
                yield local + minute * _MINUTE


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _names(fields: list[str], moment: datetime) -> bool:
    """Whether an expression names this minute. Hours in ranges and steps repeat: one fewer on that day is what they mean."""
    minute, hour, day, month, weekday = fields
    hours = ",".join(each for each in hour.split(",") if each.isdecimal())
    weekdays = {moment.isoweekday(), moment.isoweekday() % 7}  # Sunday is 0 and 7
    return (
        moment.hour in _values(hours)
        and moment.minute in _values(minute)
        and moment.day in _values(day, first=1)
        and moment.month in _values(month, _MONTHS, first=1)
        and not weekdays.isdisjoint(_values(weekday, _WEEKDAYS))
    )


def _values(field: str, names: tuple[str, ...] = (), first: int = 0) -> set[int]:
    """The values of a field, up to 59. A part that cannot be read has none: Temporal refuses it."""
    values: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        low, dash, high = span.partition("-")
        if span in ("*", "?"):
            low, high = str(first), "59"
        elif not dash:
            high = "59" if step else low
        numbers = [names.index(each[:3]) + first if each[:3] in names else each for each in (low, high)]
        if all(str(each).isdecimal() for each in (*numbers, step or "1")):
            values.update(range(int(numbers[0]), min(int(numbers[1]), 59) + 1, max(1, int(step or 1))))
    return values
