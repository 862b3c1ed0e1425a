//! The words of a snapshot: driver, GPUs, collectors and events for people.

use super::{CollectorView, DriverState, Event, EventKind, GpuState};
use crate::catalog::FaultAction;
use crate::catalog::schema::KnownLabel;
use crate::text::{duration, plain, time_of_day};

impl DriverState {
    /// The name of the state, and the state for people.
    pub fn texts(&self) -> (&'static str, String) {
        match self {
            DriverState::Waiting => ("waiting", "waiting for its first answer".into()),
            DriverState::Up => ("up", "up".into()),
            DriverState::Stuck => ("stuck", "stuck: calls into it do not return".into()),
            DriverState::Away { text } => ("away", format!("away: {text}")),
            DriverState::Mismatch { text } => {
                let text = text.trim_end_matches('.');
                let what = "the loaded kernel module and libnvidia-ml differ in version, as after an upgrade without a \
                            reload of the module";
                ("library_mismatch", format!("{what}: {text}"))
            }
            DriverState::Paused { since_unix_seconds, age, holders } => {
                let (at, ago) = (time_of_day(*since_unix_seconds), duration(*age));
                let pids: Vec<String> = holders.iter().map(i32::to_string).collect();
                let held = match pids.as_slice() {
                    [] => String::new(),
                    pids => format!(", but still held by process {}", pids.join(", ")),
                };
                let resumes = "resumes when the kernel module is loaded again, or with `gpu-node-exporter driver resume`";
                ("paused", format!("paused: driver released at {at}, {ago} ago{held}; {resumes}"))
            }
        }
    }

    /// The state for people.
    pub fn text(&self) -> String {
        self.texts().1
    }
}

impl FaultAction {
    /// The action for people, as an order; none where nothing is to be done.
    pub fn order(self) -> Option<&'static str> {
        match self {
            FaultAction::Ignore => None,
            FaultAction::RestartApp => Some("restart the application"),
            FaultAction::ResetGpu => Some("reset the GPU"),
            FaultAction::RebootNode => Some("reboot the node"),
            FaultAction::CheckHardware => Some("check the hardware"),
            FaultAction::UpdateSoftware => Some("update the software"),
            FaultAction::ContactSupport => Some("contact support"),
        }
    }
}

impl GpuState {
    /// The name of the state, and the state for people.
    pub fn texts(&self) -> (&'static str, String) {
        match self {
            GpuState::Up => ("up", "up".into()),
            GpuState::Waiting => ("waiting", "nothing was read yet".into()),
            GpuState::Stuck { call, age } => {
                ("stuck", format!("{call} has not returned for {}", duration(*age)))
            }
            GpuState::Unread => ("unread", "nothing was read of it for too long".into()),
            GpuState::Failing { text, .. } => ("failing", format!("it answers with errors only: {text}")),
            GpuState::NoDriver => ("no_driver", "the driver does not answer".into()),
            GpuState::Paused => ("paused", "the driver is released".into()),
        }
    }

    /// The state for people.
    pub fn text(&self) -> String {
        self.texts().1
    }
}

impl CollectorView {
    /// The state for people.
    pub fn text(&self) -> String {
        if self.up && self.age.is_none() && !self.text.is_empty() {
            // Nothing to collect, and the reason.
            return self.text.clone();
        }
        let mut text = String::from(if self.up { "up" } else { "down" });
        if !self.text.is_empty() {
            text += &format!(": {}", self.text);
        }
        match self.age {
            Some(age) => text + &format!(", last values {} ago", duration(age)),
            None => text + ", no values yet",
        }
    }
}

impl Event {
    /// The event in a line: its kind, its meaning, the first action.
    pub fn line(&self) -> String {
        let code = self.code.map(|code| format!(" {code}")).unwrap_or_default();
        let kind = match self.kind {
            EventKind::Xid => format!("Xid{code}: "),
            EventKind::Sxid => format!("NVSwitch fault{code}: "),
            EventKind::Canary => {
                let check = self.check.map(|check| format!(", {check}")).unwrap_or_default();
                // The canary's text has the first action.
                let text = if self.text.is_empty() { self.meaning } else { &self.text };
                return format!("canary{check}: {text}");
            }
            EventKind::Window | EventKind::DevicesDeclared | EventKind::SwitchesCleared => {
                return format!("{} {}", self.meaning, self.text);
            }
            _ => String::new(),
        };
        let meaning =
            if self.meaning.is_empty() { plain(self.kind.known()) } else { self.meaning.to_owned() };
        let first = self.action.order().map(|action| format!(" First: {action}.")).unwrap_or_default();
        format!("{kind}{meaning}{}{first}", self.suspect())
    }

    /// Who is to blame, by the column of the table of Xid codes and by the units that had the fault before; begins with
    /// a blank.
    fn suspect(&self) -> &'static str {
        match (self.same_unit, self.app_can_cause) {
            (Some(true), _) => {
                " The same unit alone had it before in another process or crash: suspect the GPU if others run the program well."
            }
            (Some(false), _) => " Other units had it before: suspect the program.",
            (None, "yes") => " Programs cause it.",
            (None, "possible") => " A program can cause it.",
            (None, "rare") => " A program seldom causes it.",
            // Restarting the program is no word against it.
            (None, "no") if self.action == FaultAction::RestartApp => " No program causes it.",
            (None, _) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_blame_follows_the_table() {
        let line = |code: u32, same_unit| {
            let row = crate::xid::xid(code);
            let app_can_cause = row.app_can_cause;
            let event = Event::new(EventKind::Xid, 1.0, row.severity, row.action);
            Event { code: Some(code.into()), meaning: "It failed.", app_can_cause, same_unit, ..event }.line()
        };
        assert_eq!(
            line(39, None),
            "Xid 39: It failed. No program causes it. First: restart the application."
        );
        assert_eq!(line(109, None), "Xid 109: It failed. Programs cause it. First: reset the GPU.");
        assert_eq!(
            line(11, None),
            "Xid 11: It failed. A program can cause it. First: restart the application."
        );
        assert_eq!(
            line(32, None),
            "Xid 32: It failed. A program seldom causes it. First: restart the application."
        );
        assert_eq!(line(79, None), "Xid 79: It failed. First: reboot the node.");
        assert!(
            line(13, Some(true)).contains("suspect the GPU")
                && line(13, Some(false)).contains("suspect the program")
        );
    }
}
