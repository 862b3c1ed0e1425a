//! What is new for open status pages, as server-sent events: the number of a publication, upon which the script loads the
//! page again. Pages load the compressed document that all of them share; a stream holds no text of its own, and a client
//! that does not read gets the newest number once it does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream::unfold;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::app_state::{AppState, unavailable};
use super::stopped;
use super::streams::{StreamPermit, Streams, event_stream, too_many};

/// Between two events: people read no faster, and each makes a page be drawn.
const PAUSE: Duration = Duration::from_secs(2);

/// Answers `/page/updates`.
pub async fn respond(State(state): State<Arc<AppState>>, Extension(streams): Extension<Streams>) -> Response {
    if let Err(why) = state.fresh() {
        return unavailable(why);
    }
    let Some(permit) = streams.open() else { return too_many() };
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let updates = Updates { state, permit, ticks, sent: None };
    event_stream(unfold(updates, |mut updates| async move { Some((updates.next().await?, updates)) }))
}

/// What one client gets until it is gone or the server ends.
struct Updates {
    state: Arc<AppState>,
    permit: StreamPermit,
    ticks: Interval,
    sent: Option<u64>,
}

impl Updates {
    /// The next publication, or a sign of life if none came: a client that is gone is noticed by it. Ends with values too old
    /// to serve, so that the page says so.
    async fn next(&mut self) -> Option<Result<Bytes, Infallible>> {
        tokio::select! {
            () = stopped(&mut self.permit.stop) => return None,
            _ = self.ticks.tick() => {}
        }
        let sequence = self.state.fresh().ok()?.sequence;
        let text = match self.sent.replace(sequence) {
            Some(sent) if sent == sequence => ": no publication\n\n".to_owned(),
            _ => format!("event: publication\ndata: {sequence}\n\n"),
        };
        Some(Ok(text.into()))
    }
}
