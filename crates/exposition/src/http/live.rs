//! Updates for open status pages, as server-sent events. An event contains the number of a publication, and the script
//! then reloads the page. All pages load the same compressed document, so that a stream buffers no text of its own.
//! A client that has not read for a while receives only the newest number.

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

/// Minimum interval between two events. People do not read faster, and every event makes the server render a page.
const PAUSE: Duration = Duration::from_secs(2);

/// Serves the stream of `/page/updates`.
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

/// The update stream of one client, which ends when the client disconnects or the server stops.
struct Updates {
    state: Arc<AppState>,
    permit: StreamPermit,
    ticks: Interval,
    sent: Option<u64>,
}

impl Updates {
    /// Returns the next publication, or a comment if there is none, whose failed write reveals that the client has
    /// disconnected. Ends the stream if the values are too old to serve, so that the page shows that.
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
