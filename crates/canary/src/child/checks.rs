//! The checks, one file each (or for two of a kind).

mod launch;
mod overlap;
mod p2p;
mod pcie;
mod rates;
mod read;
mod sdc;
mod transform;
mod walk;

use super::errors::Try;
use super::session::Session;
use crate::report::{Found, Mismatches};
use model::catalog::{CanaryCheck, CanaryStep};

/// What a check found.
#[derive(Debug)]
pub struct Finding {
    /// Its figures.
    pub found: Found,
    /// Its wrong results.
    pub mismatches: Mismatches,
}

/// The step in which a check is made; `None` for the check that all the driver's steps are.
pub fn step(check: CanaryCheck) -> Option<CanaryStep> {
    Some(match check {
        CanaryCheck::Init => return None,
        CanaryCheck::SmRate => CanaryStep::SmRate,
        CanaryCheck::Tensor => CanaryStep::Tensor,
        CanaryCheck::SmSdc => CanaryStep::SmSdc,
        CanaryCheck::HbmRead => CanaryStep::HbmRead,
        CanaryCheck::HbmWalk => CanaryStep::HbmWalk,
        CanaryCheck::L2 => CanaryStep::L2,
        CanaryCheck::Pcie => CanaryStep::Pcie,
        CanaryCheck::Launch => CanaryStep::Launch,
        CanaryCheck::Overlap => CanaryStep::Overlap,
        CanaryCheck::Transform => CanaryStep::Transform,
        CanaryCheck::P2p => CanaryStep::P2p,
    })
}

/// Makes a check. `None` where there is nothing to measure.
pub fn make(check: CanaryCheck, session: &mut Session<'_>) -> Try<Option<Finding>> {
    session.arena.clear();
    match check {
        CanaryCheck::Init => Ok(None),
        CanaryCheck::SmRate => rates::sm_rate(session).map(Some),
        CanaryCheck::Tensor => rates::tensor(session).map(Some),
        CanaryCheck::SmSdc => sdc::sm_sdc(session).map(Some),
        CanaryCheck::HbmRead => read::hbm_read(session).map(Some),
        CanaryCheck::L2 => read::l2(session),
        CanaryCheck::HbmWalk => walk::hbm_walk(session).map(Some),
        CanaryCheck::Pcie => pcie::pcie(session).map(Some),
        CanaryCheck::Launch => launch::launch(session).map(Some),
        CanaryCheck::Overlap => overlap::overlap(session).map(Some),
        CanaryCheck::Transform => transform::transform(session).map(Some),
        CanaryCheck::P2p => p2p::p2p(session),
    }
}
