//! Whose work is on the GPUs, and what it costs: processes joined with their owners, time and energy added up.

use super::Ledger;
use super::publish::Builder;
use crate::clock::Mono;
use crate::owners::News;
use crate::snapshot::OwnerView;

/// Everything known of owners.
#[derive(Debug, Default)]
pub struct Owners {}

impl Owners {
    /// Takes in what was told.
    pub fn take(&mut self, _news: News) {}
}

impl Ledger {
    /// Everything about owners.
    pub(super) fn put_owners(
        &mut self,
        _b: &mut Builder<'_>,
        _now: Mono,
        _unix_seconds: f64,
    ) -> Vec<OwnerView> {
        Vec::new()
    }
}
