//! The report as text.

use std::collections::BTreeMap;

use dcgm::diff::{
    FamilyDiff, FamilyState, LabelDiff, LabelState, MissingReason, PageDiff, SeriesCount, SwitchVerdict,
};
use host::terminal::{Colour, Painter};

use super::CompatReport;

/// Symbol and colour of a state.
fn mark(state: FamilyState) -> (&'static str, Colour) {
    match state {
        FamilyState::Same => ("=", Colour::Green),
        FamilyState::Missing => ("-", Colour::Red),
        FamilyState::Extra => ("+", Colour::Cyan),
        _ => ("≠", Colour::Yellow),
    }
}

pub fn report(report: &CompatReport, colours: bool) -> String {
    let paint = Painter::new(colours);
    let CompatReport { theirs, ours, diff, .. } = report;
    let mut out = format!("dcgm-exporter   {theirs}\nthis exporter   {ours}\n");
    out += &format!("GPUs on both pages: {}\n", diff.gpus.common.len());
    let width = diff.families.iter().map(|family| family.name.len()).max().unwrap_or(0);
    out += &format!("\n{} ({})\n", paint.bold("Families"), counts(diff));
    let mut families: Vec<&FamilyDiff> = diff.families.iter().collect();
    families.sort_by_key(|family| family.states[0]);
    for family in families {
        let (sign, colour) = mark(family.states[0]);
        out += &format!("{} {:width$}  {}\n", paint.colour(colour, sign), family.name, family_text(family));
    }
    out += &format!("\n{}\n", paint.bold("Labels of the families that both pages have"));
    for label in &diff.labels {
        let (sign, colour) = mark(match label.state {
            LabelState::Same => FamilyState::Same,
            LabelState::Missing => FamilyState::Missing,
            LabelState::Extra => FamilyState::Extra,
            LabelState::Renamed { .. } | LabelState::OtherValue { .. } => FamilyState::OtherLabels,
        });
        out += &format!("{} {:width$}  {}\n", paint.colour(colour, sign), label.name, label_text(label));
    }
    for (reason, names) in not_compared(diff) {
        out += &format!("\nValues not compared ({reason}): {}\n", names.join(", "));
    }
    if !diff.about_itself.is_empty() {
        let names = diff.about_itself.join(", ");
        out += &format!("\nNot compared, because they describe the exporter itself: {names}\n");
    }
    if let Some(first) = diff.doubled.first() {
        let count = diff.doubled.len();
        out += &format!(
            "\nTwice on dcgm-exporter's page (Prometheus keeps the first): {count} series, for example {first}\n"
        );
    }
    out + &conclusion(diff, paint)
}

/// Formats the number of families per state.
fn counts(diff: &PageDiff) -> String {
    let count = |state: &dyn Fn(FamilyState) -> bool| {
        diff.families.iter().filter(|family| state(family.states[0])).count()
    };
    let (same, missing) = (count(&|it| it == FamilyState::Same), count(&|it| it == FamilyState::Missing));
    let extra = count(&|it| it == FamilyState::Extra);
    let other = diff.families.len() - same - missing - extra;
    format!("{same} same, {other} different, {missing} missing, {extra} only here")
}

fn family_text(family: &FamilyDiff) -> String {
    let text = |state: &FamilyState| match state {
        FamilyState::Missing => {
            format!("missing, {}", family.missing.as_ref().map(MissingReason::text).unwrap_or_default())
        }
        FamilyState::OtherType => {
            let (theirs, ours) = family.types.clone().unwrap_or_default();
            format!("different type: {theirs} there, {ours} here")
        }
        FamilyState::OtherLabels => {
            let labels = family.labels.iter().map(|label| match &label.state {
                LabelState::Missing => format!("-{}", label.name),
                LabelState::Extra => format!("+{}", label.name),
                LabelState::Renamed { ours } => format!("{} is {ours}", label.name),
                LabelState::OtherValue { .. } | LabelState::Same => format!("≠{}", label.name),
            });
            format!("different labels: {}", labels.collect::<Vec<_>>().join(", "))
        }
        FamilyState::OtherSeries => {
            let series = [(&family.missing_series, "missing"), (&family.extra_series, "only here")];
            let some = series.into_iter().filter(|(series, _)| series.count > 0);
            let text = some.map(|(SeriesCount { count, example }, place)| {
                format!("{count} series {place}, for example {example}")
            });
            text.collect::<Vec<_>>().join(", ")
        }
        FamilyState::OtherValue => {
            let values = &family.values;
            let (absolute, relative) = values.tolerance.unwrap_or_default();
            let (series, theirs, ours) = values.worst.clone().unwrap_or_default();
            let (outside, compared, percent) = (values.outside, values.compared, relative * 100.0);
            format!(
                "value outside the tolerance: {outside} of {compared}, for example {series} with {theirs} there, {ours} here \
                 (tolerance {absolute:.6} and {percent:.1} %: {})",
                values.reason
            )
        }
        FamilyState::Extra => "only here".to_owned(),
        FamilyState::Same => "same".to_owned(),
    };
    family.states.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Returns the families whose values were not compared, by reason.
fn not_compared(diff: &PageDiff) -> BTreeMap<&'static str, Vec<&str>> {
    let mut by_reason: BTreeMap<&'static str, Vec<&str>> = BTreeMap::new();
    for family in diff.families.iter().filter(|family| family.values.tolerance.is_none()) {
        if !family.values.reason.is_empty() {
            by_reason.entry(family.values.reason).or_default().push(&family.name);
        }
    }
    by_reason
}

fn label_text(label: &LabelDiff) -> String {
    let families = format!("in {} families", label.families);
    match &label.state {
        LabelState::Same => format!("same {families}"),
        LabelState::Missing => format!("missing {families}"),
        LabelState::Extra => format!("only here {families}"),
        LabelState::Renamed { ours } => format!("is {ours} here {families}"),
        LabelState::OtherValue { theirs, ours } => {
            format!(
                "different value {families}, {} series, for example \"{theirs}\" there, \"{ours}\" here",
                label.series
            )
        }
    }
}

/// Formats the suggested settings, the losses and the verdict.
fn conclusion(diff: &PageDiff, paint: Painter) -> String {
    let advice = &diff.advice;
    let mut out = String::new();
    if !advice.settings.is_empty() {
        out += &format!("\n{}\n  [dcgm]\n", paint.bold("Suggested settings"));
        for setting in &advice.settings {
            let line = format!("{} = {}", setting.key, setting.value);
            out += &format!("  {line:<60}  # {}\n", setting.reason);
        }
    }
    if advice.settings.iter().any(|setting| setting.key == "fields_file") {
        out += "\n  The file replaces the default list. You can use dcgm-exporter's own file, from its option -f or the ConfigMap of \
                your chart, mounted.\n";
        if !advice.rows.is_empty() {
            out += "  These rows are missing or different:\n";
        }
        out.extend(advice.rows.iter().map(|row| format!("    {row}\n")));
    }
    for (title, lines) in
        [("Differences that no setting removes", &advice.lost), ("Only here", &advice.stays)]
    {
        if !lines.is_empty() {
            out += &format!("\n{}\n", paint.bold(title));
            out.extend(lines.iter().map(|line| format!("  {line}\n")));
        }
    }
    let (colour, verdict) = match advice.verdict {
        SwitchVerdict::Safe if diff.alike => (
            Colour::Green,
            "The switch is safe: everything on dcgm-exporter's page is here too, with the same values.",
        ),
        SwitchVerdict::Safe => {
            (Colour::Green, "The switch is safe: nothing is lost. Review the series that are only here.")
        }
        SwitchVerdict::AfterSettings => (
            Colour::Yellow,
            "The switch is safe with these settings: set them, restart the daemon, and compare again.",
        ),
        SwitchVerdict::Lossy => (
            Colour::Red,
            "The switch is not safe yet: check dashboards, alerts and autoscalers for the lost series first.",
        ),
    };
    out + &format!("\n{}\n", paint.colour(colour, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dcgm::diff::{DiffConfig, compare};
    use dcgm::page::PageConfig;

    fn text(theirs: &str, colours: bool) -> String {
        let ours = include_str!("../../../crates/dcgm/src/page/golden/plain-4.8-faithful.prom");
        let read = |text: &str| [dcgm::parse::read(text).unwrap()];
        let page = PageConfig::default();
        let config = DiffConfig { page: &page, own_list: false, same_time: true, factor: 1.0 };
        let diff = compare(&read(theirs), &read(ours), config).unwrap();
        let (theirs, ours) = ("http://there".to_owned(), "http://here".to_owned());
        report(&CompatReport { version: "", theirs, ours, diff }, colours)
    }

    #[test]
    fn signs_are_coloured_and_say_the_same_without() {
        let theirs = include_str!("../../../crates/dcgm/src/diff/pages/4.8.2.prom");
        let plain = text(theirs, false);
        assert!(!plain.contains('\x1b') && plain.contains("\n- DCGM_FI_DEV_FAN_SPEED "), "{plain}");
        let painted = text(theirs, true);
        assert!(painted.contains("\x1b[31m-\x1b[0m DCGM_FI_DEV_FAN_SPEED "), "{painted}");
        let bare = ["31", "32", "33", "36", "1", "0"];
        let bare = bare.iter().fold(painted, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(bare, plain);
    }

    #[test]
    fn the_last_lines_say_what_to_set_and_whether_the_switch_is_safe() {
        let newer = include_str!("../../../crates/dcgm/src/page/golden/plain-4.9-faithful.prom");
        let text = text(newer, false);
        assert!(text.contains("missing, a name of release 4.9: see dcgm.release\n"), "{text}");
        let (_, end) = text.split_once("\nSuggested settings\n  [dcgm]\n  release = \"4.9\" ").unwrap();
        assert!(end.ends_with(
            "\nThe switch is safe with these settings: set them, restart the daemon, and compare again.\n"
        ));
        assert!(!end.contains("no setting removes"), "{end}");
    }
}
