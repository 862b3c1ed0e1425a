"""Colours, thresholds, units, words for values, legends."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import units

# Colours with a meaning of their own. Words and icons go with them: colour alone tells some people nothing.
GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
BLUE, GREY, NONE = "blue", "#808080", "transparent"

UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}

Step = tuple[float | None, str]
Steps = Sequence[Step]

# For values that are neither good nor bad.
NEUTRAL: Steps = ((None, BLUE),)
# For lines, which have colours of their own.
NOTHING: Steps = ((None, NONE),)
# For counts of what must not be.
BAD_ABOVE_ZERO: Steps = ((None, GREEN), (1, RED))
TICKET_ABOVE_ZERO: Steps = ((None, GREEN), (1, ORANGE))
# The band in which a GPU is well used. Neither side of it is a fault: it only tells.
UTILIZATION_BAND: Steps = ((None, NONE), (0.6, GREEN), (0.8, NONE))


def steps(*pairs: Step) -> Steps:
    return pairs


def mapped(values: dict[float, tuple[str, str]]) -> model.ValueMap:
    """Words and colours for values."""
    return model.ValueMap(
        options={
            f"{value:g}": model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(values.items())
        }
    )


def special(text: str, color: str = GREY) -> model.SpecialValueMap:
    """A word for cells without a value."""
    return model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(
            match=model.SpecialValueMatch.NULL_AND_NAN,
            result=model.ValueMappingResult(text=text, color=color, index=99),
        )
    )


NOT_TOLD = special("not told")
YES_NO = mapped({1: ("yes", GREEN), 0: ("no", RED)})


def threshold_config(of: Steps) -> dashboard_builder.ThresholdsConfig:
    assert of and of[0][0] is None, "thresholds start with the colour below the first"
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in of])
    )


def legend() -> common_builder.VizLegendOptions:
    return (
        common_builder.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
        .calcs([])
    )


def by_threshold() -> dashboard_builder.FieldColor:
    return dashboard_builder.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)
