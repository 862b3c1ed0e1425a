//! The topology process, which examines the machine, sends one answer and exits. It loads no vendor library. It is the
//! only process that reads sysfs files for which the kernel queries a device.

use std::io;

use super::ask::{MachineAnswer, Question};
use super::discover::{self, Origin};
use host::{child, frame};

/// Nice value of the process.
const NICE: i32 = 10;

/// Reads one request from the control pipe, sends the answer and returns.
pub fn run() -> io::Result<()> {
    child::ignore_signals()?;
    let (mut answers, mut control, _shared) = child::inherited()?;
    if let Err(error) = child::be_nice(NICE) {
        tracing::debug!(%error, "failed to lower the priority of the topology process");
    }
    let (origin, xml) = match frame::read(&mut control).map_err(io::Error::other)? {
        Some(Question::Machine(origin, xml)) => (origin, xml),
        Some(Question::Links(root)) => {
            return frame::write(&mut answers, &Ok::<_, String>(discover::links(&root)));
        }
        None => return Ok(()),
    };
    let devices = match &origin {
        Origin::Live(root) => discover::links(root).addresses(),
        Origin::Xml(_) | Origin::Synthetic(_) => Vec::new(),
    };
    let found = discover::discover(&origin, xml);
    let found = found.map(|(topology, xml)| MachineAnswer { topology, devices, xml });
    frame::write(&mut answers, &found)
}
