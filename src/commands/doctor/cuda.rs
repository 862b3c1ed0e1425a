//! Decides if programs built with a CUDA version run on a driver, by NVIDIA's compatibility rules. Source:
//! "CUDA Compatibility" (docs.nvidia.com/deploy/cuda-compatibility), tables 1 and 2.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// CUDA version such as `12.4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Cuda {
    pub major: u32,
    pub minor: u32,
}

impl FromStr for Cuda {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Cuda, &'static str> {
        let numbers = text.trim().split_once('.');
        let version = numbers
            .and_then(|(major, minor)| Some(Cuda { major: major.parse().ok()?, minor: minor.parse().ok()? }));
        version.ok_or("not a CUDA version: write it as 12.4")
    }
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Oldest driver that runs every minor version of a CUDA major version (Linux).
const MINOR_VERSIONS_FROM: [(u32, &str); 3] = [(11, "450.80.02"), (12, "525.60.13"), (13, "580.65.06")];

/// Result of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The driver supports that version itself.
    Yes,
    /// Programs run because of minor-version compatibility.
    MinorVersion,
    /// Programs do not run.
    No,
    /// The driver did not report enough.
    Unknown,
}

/// Result with the rule that it follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Judgement {
    pub answer: Answer,
    pub rule: String,
}

impl Judgement {
    /// Returns true if such programs run.
    pub fn runs(&self) -> bool {
        matches!(self.answer, Answer::Yes | Answer::MinorVersion)
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = match self.answer {
            Answer::Yes => "yes: ",
            Answer::MinorVersion => "yes, by ",
            Answer::No => "no: ",
            Answer::Unknown => "unknown: ",
        };
        write!(f, "{answer}{}", self.rule)
    }
}

/// Judges by the driver's version and the newest CUDA version that it supports, as far as they are known.
pub fn judge(wanted: Cuda, driver: Option<&str>, supports: Option<Cuda>) -> Judgement {
    let named = driver.unwrap_or("of unknown version");
    let from = MINOR_VERSIONS_FROM.iter().find(|(major, _)| *major == wanted.major).map(|(_, from)| *from);
    let is_new_enough = from.zip(driver).and_then(|(from, driver)| at_least(driver, from));
    let (answer, rule) = match (supports, from, is_new_enough) {
        (Some(supports), ..) if supports >= wanted => (
            Answer::Yes,
            format!(
                "driver {named} supports CUDA up to {supports}, and drivers run programs of every older version"
            ),
        ),
        (_, Some(from), Some(true)) => (
            Answer::MinorVersion,
            format!(
                "minor-version compatibility: programs of CUDA {}.x run on drivers from {from} on, this is \
                 {named}; not for features that need a newer driver, nor for PTX compiled at run time",
                wanted.major
            ),
        ),
        (None, _, None) => {
            (Answer::Unknown, "the driver's version and the CUDA version it supports are not known".into())
        }
        _ => {
            let needs = match from {
                Some(from) => format!("CUDA {}.x needs driver {from} or later", wanted.major),
                None => format!("CUDA {wanted} needs a driver that supports it itself"),
            };
            let has = supports.map_or(String::new(), |it| format!(", which supports CUDA up to {it}"));
            let package = format!("cuda-compat-{}-{}", wanted.major, wanted.minor);
            let rule = format!(
                "{needs}, this is {named}{has}; on data-centre GPUs the package {package} may help (forward \
                 compatibility), else a newer driver"
            );
            (Answer::No, rule)
        }
    };
    Judgement { answer, rule }
}

/// Compares driver versions number by number; `None` if one is not a version.
fn at_least(driver: &str, from: &str) -> Option<bool> {
    let numbers = |text: &str| text.split('.').map(|n| n.parse().ok()).collect::<Option<Vec<u32>>>();
    Some(numbers(driver)? >= numbers(from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(wanted: &str, driver: Option<&str>, supports: Option<&str>) -> Answer {
        judge(wanted.parse().unwrap(), driver, supports.map(|s| s.parse().unwrap())).answer
    }

    #[test]
    fn nvidias_table() {
        for (wanted, driver, supports, answered) in [
            ("13.0", "580.159.04", "13.0", Answer::Yes),
            ("12.9", "580.159.04", "13.0", Answer::Yes),
            ("10.2", "580.159.04", "13.0", Answer::Yes),
            ("13.2", "580.159.04", "13.0", Answer::MinorVersion),
            ("14.0", "580.159.04", "13.0", Answer::No),
            ("12.8", "535.104.05", "12.2", Answer::MinorVersion),
            ("12.8", "525.60.13", "12.0", Answer::MinorVersion),
            ("12.8", "525.60.11", "12.0", Answer::No),
            ("12.0", "470.82.01", "11.4", Answer::No),
            ("11.8", "450.80.02", "11.0", Answer::MinorVersion),
            ("11.8", "450.51.06", "11.0", Answer::No),
            ("13.1", "580.65.06", "13.0", Answer::MinorVersion),
            ("13.1", "580.65.05", "13.0", Answer::No),
            ("10.2", "418.39", "10.1", Answer::No),
        ] {
            assert_eq!(answer(wanted, Some(driver), Some(supports)), answered, "{wanted} on {driver}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        assert_eq!(answer("12.0", None, None), Answer::Unknown);
        assert_eq!(answer("10.2", Some("580.1"), None), Answer::Unknown);
        assert_eq!(answer("12.4", Some("580.1"), None), Answer::MinorVersion, "the module alone is enough");
        assert_eq!(answer("12.4", Some("470.1"), None), Answer::No);
        assert_eq!(answer("12.4", Some("beta"), None), Answer::Unknown);
        for text in ["", "12", "12.x", "12.4.1", "-1.2", "v12.4"] {
            assert!(text.parse::<Cuda>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_judgement_names_the_rule() {
        let judgement = judge("14.0".parse().unwrap(), Some("580.159.04"), Some("13.0".parse().unwrap()));
        assert!(
            judgement.rule.contains("cuda-compat-14-0") && judgement.rule.contains("up to 13.0"),
            "{}",
            judgement.rule
        );
    }

    proptest! {
        #[test]
        fn a_newer_driver_never_runs_less(major in 9u32..15, minor in 0u32..10, a in 400u32..600, b in 400u32..600) {
            let wanted = Cuda { major, minor };
            let runs = |driver: u32| {
                let driver = format!("{driver}.1.1");
                matches!(judge(wanted, Some(&driver), None).answer, Answer::Yes | Answer::MinorVersion)
            };
            prop_assert!(!runs(a.min(b)) || runs(a.max(b)));
        }
    }
}
