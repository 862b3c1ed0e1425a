//! The outcome of each incident, and whether it is the expected one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::http::Notification;
use crate::incident::Incident;

/// Time that scrape, rules, grouping and the way to the receiver may take together.
pub const SLACK: Duration = Duration::from_secs(60);
/// The same for a condition that must last: a scrape, a recording rule, its alert and the end of `for` at the next
/// evaluation (15 s each), and `group_wait` (30 s).
pub const SLACK_THAT_LASTS: Duration = Duration::from_secs(90);
/// The first minutes of an incident, with one notification. Alertmanager's next flush of a group comes after five minutes to
/// the second, which is not counted.
pub const FIRST: Duration = Duration::from_secs(298);

/// An alert rule as Prometheus has it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `for`.
    pub lasts: Duration,
    /// `for` before times were divided.
    pub undivided: Duration,
    /// Its label `severity`.
    pub severity: String,
}

/// The rules of each alert: several where its reasons wait for different times, or have different severities.
pub type Rules = BTreeMap<String, Vec<Rule>>;

/// What is known when the game is over.
pub struct Evidence<'a> {
    /// The rules that watched it.
    pub rules: &'a Rules,
    /// All notifications.
    pub notifications: &'a [Notification],
    /// Names of the alerts that fired of its nodes.
    pub fired: &'a BTreeSet<String>,
    /// When it began.
    pub cause: Instant,
}

/// What came of an incident.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seconds from the cause to the first notification that names one of its alerts.
    pub after: Option<Duration>,
    /// Within which it had to come.
    pub limit: Duration,
    /// Notifications in the first five minutes.
    pub notifications: usize,
    /// What is wrong. Empty: all is as it must be.
    pub wrong: Vec<String>,
}

/// Notifications about one of these nodes, the dead man's switch aside.
pub fn about<'a>(incident: &Incident, all: &'a [Notification]) -> Vec<&'a Notification> {
    let instances = incident.instances();
    let of_it = |notification: &&Notification| {
        notification.receiver != "dead-mans-switch"
            && notification.alerts.iter().any(|alert| {
                instances.iter().any(|instance| instance == alert.label("instance"))
                    || (!incident.cluster.is_empty() && alert.label("cluster") == incident.cluster)
            })
    };
    all.iter().filter(of_it).collect()
}

/// The first notification that names one of the incident's alerts.
pub fn first<'a>(incident: &Incident, notifications: &[&'a Notification]) -> Option<&'a Notification> {
    let names = |notification: &&&Notification| {
        let mut firing = notification.alerts.iter().filter(|alert| alert.firing);
        firing.any(|alert| incident.alerts.iter().any(|name| name == alert.label("alertname")))
    };
    notifications.iter().find(names).copied()
}

/// `for` of the incident's alerts: of the rules of its severity, the one that the incident names, else the shortest.
pub fn lasts(incident: &Incident, rules: &Rules) -> Duration {
    let of = |name: &String| {
        let rules = rules.get(name).into_iter().flatten();
        let rules = rules.filter(|rule| rule.severity == incident.severity);
        let named = rules.filter(|rule| incident.lasts().is_none_or(|lasts| lasts == rule.undivided));
        named.map(|rule| rule.lasts).min()
    };
    incident.alerts.iter().filter_map(of).max().unwrap_or_default()
}

/// Time within which the notification must come.
pub fn limit(incident: &Incident, rules: &Rules) -> Duration {
    let lasts = lasts(incident, rules);
    let slack = if lasts.is_zero() { SLACK } else { SLACK_THAT_LASTS };
    lasts + slack + incident.known_after()
}

/// Judges an incident.
pub fn judge(incident: &Incident, evidence: &Evidence<'_>) -> Outcome {
    let notifications = about(incident, evidence.notifications);
    let limit = limit(incident, evidence.rules);
    let mut wrong = Vec::new();
    for name in incident.alerts.iter().filter(|name| !evidence.rules.contains_key(*name)) {
        wrong.push(format!("there is no alert {name}"));
    }
    if let Some(lasts) = incident.lasts() {
        let mut rules = incident.alerts.iter().filter_map(|name| evidence.rules.get(name)).flatten();
        if !rules.any(|rule| rule.undivided == lasts && rule.severity == incident.severity) {
            wrong.push(format!("no rule has for: {}", incident.lasts));
        }
    }
    let expected = |name: &String| incident.alerts.contains(name) || incident.also.contains(name);
    let loud = |name: &&String| {
        let rules = evidence.rules.get(*name);
        incident.silent() || rules.is_none_or(|rules| rules.iter().any(|rule| rule.severity != "info"))
    };
    for name in evidence.fired.iter().filter(|name| !expected(name)).filter(loud) {
        wrong.push(format!("{name} fired too"));
    }
    for name in incident.alerts.iter().filter(|name| !evidence.fired.contains(*name)) {
        wrong.push(format!("{name} did not fire"));
    }
    let early = |notification: &&&Notification| notification.at < evidence.cause;
    if let Some(early) = notifications.iter().find(early) {
        let names: Vec<&str> = early.alerts.iter().map(|alert| alert.label("alertname")).collect();
        wrong.push(format!("before the cause: {}", names.join(", ")));
    }
    if incident.silent() {
        for notification in &notifications {
            let names: Vec<&str> = notification.alerts.iter().map(|alert| alert.label("alertname")).collect();
            wrong.push(format!("{} received {}", notification.receiver, names.join(", ")));
        }
        let count = notifications.len();
        return Outcome { after: None, limit, notifications: count, wrong };
    }
    let Some(first) = first(incident, &notifications) else {
        wrong.push("no notification".into());
        let count = notifications.len();
        return Outcome { after: None, limit, notifications: count, wrong };
    };
    let after = first.at.saturating_duration_since(evidence.cause);
    if after > limit {
        wrong.push(format!("after {:.0} s, more than {:.0} s", after.as_secs_f64(), limit.as_secs_f64()));
    }
    if first.receiver != incident.receiver {
        wrong.push(format!("{} received the first", first.receiver));
    }
    let firing: Vec<_> = first.alerts.iter().filter(|alert| alert.firing).collect();
    for alert in &firing {
        let (name, severity) = (alert.label("alertname"), alert.label("severity"));
        if incident.alerts.iter().any(|mine| mine == name) && severity != incident.severity {
            wrong.push(format!("{name} is a {severity}"));
        }
    }
    let named: BTreeSet<&str> = firing.iter().map(|alert| alert.label("alertname")).collect();
    if incident.together {
        for name in incident.alerts.iter().filter(|name| !named.contains(name.as_str())) {
            wrong.push(format!("{name} is not in the first notification"));
        }
    }
    // From the first notification of any kind: a later one may be another group's.
    let end = notifications.iter().map(|notification| notification.at).min().unwrap_or(first.at) + FIRST;
    let count = notifications.iter().filter(|notification| notification.at <= end).count();
    if count != incident.notifications {
        wrong.push(format!("{count} notifications instead of {}", incident.notifications));
    }
    Outcome { after: Some(after), limit, notifications: count, wrong }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ReceivedAlert;

    fn incident() -> Incident {
        toml::from_str(
            "name = \"a\"\nwhat = \"\"\nscenario = \"\"\nalerts = [\"X\"]\nalso = [\"Y\"]\nseverity = \"page\"\n\
             receiver = \"pager\"",
        )
        .unwrap()
    }

    fn received(at: Instant, receiver: &str, alert: &str) -> Notification {
        let labels = serde_json::json!({ "alertname": alert, "instance": "a", "severity": "page" });
        Notification { at, receiver: receiver.into(), alerts: vec![ReceivedAlert { labels, firing: true }] }
    }

    fn wrong(incident: &Incident, after: &[(u64, &str, &str)], fired: &[&str]) -> Vec<String> {
        let cause = Instant::now();
        let lasts = Duration::from_secs(30);
        let rule = Rule { lasts, undivided: lasts, severity: "page".into() };
        let rules = ["X", "Y", "Z"].map(|name| (name.to_owned(), vec![rule.clone()])).into();
        let notifications: Vec<Notification> = after
            .iter()
            .map(|(s, receiver, alert)| received(cause + Duration::from_secs(*s), receiver, alert))
            .collect();
        let fired = fired.iter().map(|name| (*name).to_owned()).collect();
        let evidence = Evidence { rules: &rules, notifications: &notifications, fired: &fired, cause };
        judge(incident, &evidence).wrong
    }

    #[test]
    fn one_notification_in_time_is_right() {
        assert!(wrong(&incident(), &[(90, "pager", "X")], &["X", "Y"]).is_empty());
        assert!(wrong(&incident(), &[(20, "pager", "X"), (320, "pager", "X")], &["X"]).is_empty());
    }

    #[test]
    fn everything_else_is_wrong() {
        let once = [(20, "pager", "X")];
        for (after, fired, why) in [
            (&[][..], &["X"][..], "no notification"),
            (&[(121, "pager", "X")], &["X"], "after 121 s"),
            (&[(20, "tickets", "X")], &["X"], "tickets received the first"),
            (&[(20, "pager", "X"), (300, "pager", "X")], &["X"], "2 notifications"),
            (&[(20, "pager", "Y")], &["X", "Y"], "no notification"),
            (&once, &["X", "Z"], "Z fired too"),
            (&once, &[], "X did not fire"),
        ] {
            let wrong = wrong(&incident(), after, fired);
            assert!(wrong.iter().any(|line| line.contains(why)), "{why}: {wrong:?}");
        }
        let mut silent = incident();
        silent.alerts.clear();
        assert!(!wrong(&silent, &once, &[]).is_empty() && !wrong(&silent, &[], &["Z"]).is_empty());
        assert!(wrong(&silent, &[], &["Y"]).is_empty());
    }
}
