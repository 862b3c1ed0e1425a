//! Texts of a snapshot for people: driver, GPUs, collectors and events.

use super::{CollectorView, DriverState, Event, EventKind, GpuState};
use crate::catalog::FaultAction;
use crate::catalog::schema::KnownLabel;
use crate::text::{duration, plain, time_of_day};

impl DriverState {
    /// Returns the name of the state, and its text for people.
    pub fn texts(&self) -> (&'static str, String) {
        match self {
            DriverState::Waiting => ("waiting", "waiting for its first answer".into()),
            DriverState::Up => ("up", "up".into()),
            DriverState::Stuck => ("stuck", "stuck: calls into it do not return".into()),
            DriverState::Away { text } => ("away", format!("away: {text}")),
            DriverState::Mismatch { text } => {
                let text = text.trim_end_matches('.');
                let what = "the loaded kernel module and libnvidia-ml differ in version, as after an upgrade without \
                            reloading the module";
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

    /// Returns the text of the state for people.
    pub fn text(&self) -> String {
        self.texts().1
    }
}

impl FaultAction {
    /// Returns the action as an instruction for people; `None` if no action is required.
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
    /// Returns the name of the state, and its text for people.
    pub fn texts(&self) -> (&'static str, String) {
        match self {
            GpuState::Up => ("up", "up".into()),
            GpuState::Waiting => ("waiting", "no value was read yet".into()),
            GpuState::Stuck { call, age } => {
                ("stuck", format!("{call} has not returned for {}", duration(*age)))
            }
            GpuState::Unread => ("unread", "no value was read for too long".into()),
            GpuState::Failing { text, .. } => ("failing", format!("it answers with errors only: {text}")),
            GpuState::NoDriver => ("no_driver", "the driver does not answer".into()),
            GpuState::Paused => ("paused", "the driver is released".into()),
        }
    }

    /// Returns the text of the state for people.
    pub fn text(&self) -> String {
        self.texts().1
    }
}

impl CollectorView {
    /// Returns the text of the state for people.
    pub fn text(&self) -> String {
        if self.up && self.age.is_none() && !self.text.is_empty() {
            // The collector has nothing to collect, and the text is the reason.
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
    /// Returns the event in one line: its kind, its meaning and the first action.
    pub fn line(&self) -> String {
        let code = self.code.map(|code| format!(" {code}")).unwrap_or_default();
        let kind = match self.kind {
            EventKind::Xid => format!("Xid{code}: "),
            EventKind::Sxid => format!("NVSwitch fault{code}: "),
            EventKind::Canary => {
                let check = self.check.map(|check| format!(", {check}")).unwrap_or_default();
                // The text of the canary contains the first action.
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

    /// Returns the suspected cause, from the table of Xid codes and from the units that had the fault before. The text
    /// has a leading space.
    fn suspect(&self) -> &'static str {
        match (self.same_unit, self.app_can_cause) {
            (Some(true), _) => {
                " Only the same unit had this fault before, in another process or crash. Suspect the GPU if the program runs well on other GPUs."
            }
            (Some(false), _) => " Other units had this fault before. Suspect the program.",
            (None, "yes") => " Programs cause this fault.",
            (None, "possible") => " A program can cause this fault.",
            (None, "rare") => " A program rarely causes this fault.",
            // Restarting the program does not imply that the program is the cause.
            (None, "no") if self.action == FaultAction::RestartApp => " Programs do not cause this fault.",
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
            "Xid 39: It failed. Programs do not cause this fault. First: restart the application."
        );
        assert_eq!(line(109, None), "Xid 109: It failed. Programs cause this fault. First: reset the GPU.");
        assert_eq!(
            line(11, None),
            "Xid 11: It failed. A program can cause this fault. First: restart the application."
        );
        assert_eq!(
            line(32, None),
            "Xid 32: It failed. A program rarely causes this fault. First: restart the application."
        );
        assert_eq!(line(79, None), "Xid 79: It failed. First: reboot the node.");
        assert!(
            line(13, Some(true)).contains("Suspect the GPU")
                && line(13, Some(false)).contains("Suspect the program")
        );
    }
}
