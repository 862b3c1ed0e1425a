//! Requests that read files: a disk that hangs holds up a few of them and no other request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;

/// Requests that read files at one time: fewer than the control socket has connections, and than there are threads for
/// blocking work.
const MAX_REQUESTS: usize = 4;
/// Timeout of one request: shorter than that of the client.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Permits for such requests.
#[derive(Clone, Debug)]
pub struct BlockingRequests {
    free: Arc<Semaphore>,
    timeout: Duration,
}

impl Default for BlockingRequests {
    fn default() -> BlockingRequests {
        BlockingRequests { free: Arc::new(Semaphore::new(MAX_REQUESTS)), timeout: TIMEOUT }
    }
}

impl BlockingRequests {
    /// Runs the request on a thread that may wait for a disk.
    pub async fn run(
        &self,
        request: impl FnOnce() -> Result<Bytes, String> + Send + 'static,
    ) -> Result<Bytes, String> {
        let response = async {
            let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|error| error.to_string())?;
            let work = move || {
                let _permit = permit;
                request()
            };
            tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
        };
        tokio::time::timeout(self.timeout, response).await.unwrap_or_else(|_| {
            let seconds = self.timeout.as_secs();
            Err(format!(
                "the files of the request (in state.dir, windows.dir, /sys/fs/cgroup) have not answered within {seconds} s"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_holds_up_a_few_requests_alone() {
        let requests = BlockingRequests { timeout: Duration::from_millis(50), ..BlockingRequests::default() };
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        for _ in 0..MAX_REQUESTS + 4 {
            let released = Arc::clone(&released);
            let hang = move || {
                let _ = released.lock().unwrap().recv();
                Ok(Bytes::new())
            };
            let error = requests.run(hang).await.unwrap_err();
            assert!(error.contains("have not answered"), "{error}");
        }
        assert_eq!(requests.free.available_permits(), 0, "a request without a permit waits on no thread");
        drop(release);
        let patient = BlockingRequests { timeout: Duration::from_secs(60), ..requests };
        assert_eq!(patient.run(|| Ok(Bytes::from("done"))).await, Ok(Bytes::from("done")));
    }
}
