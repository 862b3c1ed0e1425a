//! Calls that the driver answers to privileged users alone (CAP_SYS_ADMIN). An exporter without that right
//! tells what the MIG devices themselves tell; that it has no more is no failure.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use crate::driver::CallName;
use crate::visit::Visit;
use model::catalog::MetricId;

/// Whether the log has been told. Once for each handle is enough.
#[derive(Debug, Default)]
pub struct Told(bool);

impl Told {
    /// As [`Visit::read`]; a call that is not permitted counts as unsupported.
    pub fn read<T>(
        &mut self,
        v: &mut Visit<'_>,
        call: impl Into<CallName>,
        feeds: &[MetricId],
        f: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        let mut forbidden = false;
        let call = call.into();
        let answer = v.read(call, feeds, |d| match f(d) {
            Err(NvmlError::NoPermission) => {
                forbidden = true;
                Err(NvmlError::NotSupported)
            }
            other => other,
        });
        if forbidden && !std::mem::replace(&mut self.0, true) {
            tracing::info!(
                "GPU {}: {} needs CAP_SYS_ADMIN: placement and capacity of MIG instances are not told",
                v.gpu.gpu,
                call.function
            );
        }
        answer
    }
}
