"""Colours, thresholds, texts for values."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.models import dashboard as _model

# Colours with a meaning of their own. Texts and icons go with them: colour alone says nothing to some people.
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
BLUE, GREY, NONE = "blue", "#808080", "transparent"

Steps = Sequence[tuple[float | None, str]]


def steps(below: str, *above: float | str) -> Steps:
    """Thresholds: `steps(GREEN, 1, ORANGE, 5, RED)` is green, from 1 on orange, from 5 on red."""
    return ((None, below), *zip(above[::2], above[1::2], strict=True))


# For values that are neither good nor bad.
NEUTRAL = steps(BLUE)
# For lines, which have colours of their own.
NOTHING = steps(NONE)
# For counts of faults.
BAD_ABOVE_ZERO = steps(GREEN, 1, RED)
TICKET_ABOVE_ZERO = steps(GREEN, 1, ORANGE)
# For values that are 1 when all is well.
GOOD_AT_ONE = steps(RED, 1, GREEN)
# The band in which a GPU is well used. Neither side of it is a fault.
UTILIZATION_BAND = steps(NONE, 0.6, GREEN, 0.8, NONE)


def mapped(values: Mapping[float | str, tuple[str, str]]) -> _model.ValueMap:
    """Texts and colours for values."""
    return _model.ValueMap(
        options={
            value if isinstance(value, str) else f"{value:g}": _model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(values.items())
        }
    )


def special(text: str, color: str = GREY) -> _model.SpecialValueMap:
    """A text for cells without a value."""
    return _model.SpecialValueMap(
        options=_model.DashboardSpecialValueMapOptions(
            match=_model.SpecialValueMatch.NULL_AND_NAN,
            result=_model.ValueMappingResult(text=text, color=color, index=99),
        )
    )


ABSENT_TEXT = "no value"
ABSENT = special(ABSENT_TEXT)
YES_NO = mapped({1: ("yes", GREEN), 0: ("no", RED)})
