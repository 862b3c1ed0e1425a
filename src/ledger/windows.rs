//! Windows of planned work.

use std::sync::Arc;

use super::Ledger;
use super::publish::Builder;
use crate::windows::Window;

/// Every window that is open, to come, or ended lately.
#[derive(Debug, Default)]
pub struct Windows(Arc<[Window]>);

impl Windows {
    /// Takes in all there are.
    pub fn take(&mut self, windows: Vec<Window>) {
        self.0 = windows.into();
    }
}

impl Ledger {
    /// Everything about windows.
    pub(super) fn put_windows(&self, _b: &mut Builder<'_>, _unix_seconds: f64) -> Arc<[Window]> {
        Arc::clone(&self.windows.0)
    }
}
