//! How batches are queued.

use super::{BATCHES, Batch, QUEUES, Space};
use crate::child::cuda::{Grid, Part, Stream};
use crate::child::errors::{CudaError, Try};
use crate::child::session::Session;

type Done = Result<(), CudaError>;

/// A way: its queues, and what is put into them.
#[derive(Clone, Copy)]
pub(super) struct Way {
    queues: usize,
    queue: fn(&Session<'_>, &Space) -> Done,
}

/// All in one queue.
pub(super) const SERIAL: Way = Way { queues: 1, queue: |s, space| by_turns(s, space, 1) };
/// A queue a batch, by turns.
pub(super) const ROTATING: Way = Way { queues: QUEUES, queue: |s, space| by_turns(s, space, QUEUES) };
/// A queue for copies in, one for kernels and one for copies out.
pub(super) const SEPARATE: Way = Way { queues: 3, queue: separate };
/// Two kernels in one queue.
pub(super) const ONE_BY_ONE: Way = Way { queues: 1, queue: |s, space| two_kernels(s, space, 1) };
/// Two kernels in two queues.
pub(super) const AT_ONCE: Way = Way { queues: 2, queue: |s, space| two_kernels(s, space, 2) };

/// Events that ways need: two a batch, and one a queue for its end.
pub(super) const EVENTS: usize = 2 * BATCHES + QUEUES;

/// Takes a way: seconds from the begin of the first queue to the end of the last.
pub(super) fn take(s: &mut Session<'_>, space: &Space, way: Way) -> Try<f64> {
    s.poll.go_on()?;
    s.poll.watch.working(true);
    let done = queue(s, space, way);
    s.poll.watch.working(false);
    let seconds = done?;
    s.spend(seconds, seconds);
    Ok(seconds)
}

fn queue(s: &Session<'_>, space: &Space, way: Way) -> Result<f64, CudaError> {
    let (begin, end) = (&s.events.0, &s.events.1);
    let queues = &space.queues[..way.queues.min(space.queues.len())];
    let Some((first, others)) = queues.split_first() else { return Ok(0.0) };
    s.cuda.record(begin, first)?;
    for other in others {
        s.cuda.wait_for(other, begin)?;
    }
    (way.queue)(s, space)?;
    for (other, event) in others.iter().zip(&space.events[2 * BATCHES..]) {
        s.cuda.record(event, other)?;
        s.cuda.wait_for(first, event)?;
    }
    s.cuda.record(end, first)?;
    s.cuda.wait(first)?;
    s.cuda.elapsed(begin, end)
}

fn copy_in(s: &Session<'_>, space: &Space, batch: &Batch, queue: &Stream) -> Done {
    s.cuda.queue_in(batch.x, Part(&space.host, batch.host.0), queue)
}

fn work(s: &Session<'_>, space: &Space, batch: &Batch, queue: &Stream, grid: Grid) -> Done {
    s.cuda.launch(s.kernels.overlap, grid, queue, &space.args(batch))
}

fn copy_out(s: &Session<'_>, space: &Space, batch: &Batch, queue: &Stream) -> Done {
    s.cuda.queue_out(Part(&space.host, batch.host.1), batch.y, queue)
}

fn by_turns(s: &Session<'_>, space: &Space, queues: usize) -> Done {
    for (batch, queue) in space.batches.iter().zip(space.queues[..queues].iter().cycle()) {
        copy_in(s, space, batch, queue)?;
        work(s, space, batch, queue, space.whole)?;
        copy_out(s, space, batch, queue)?;
    }
    Ok(())
}

fn separate(s: &Session<'_>, space: &Space) -> Done {
    let [inwards, compute, outwards, ..] = &space.queues[..] else { return Ok(()) };
    for (batch, events) in space.batches.iter().zip(space.events.chunks_exact(2)) {
        copy_in(s, space, batch, inwards)?;
        s.cuda.record(&events[0], inwards)?;
        s.cuda.wait_for(compute, &events[0])?;
        work(s, space, batch, compute, space.whole)?;
        s.cuda.record(&events[1], compute)?;
        s.cuda.wait_for(outwards, &events[1])?;
        copy_out(s, space, batch, outwards)?;
    }
    Ok(())
}

fn two_kernels(s: &Session<'_>, space: &Space, queues: usize) -> Done {
    for (batch, queue) in space.batches.iter().take(2).zip(space.queues[..queues].iter().cycle()) {
        work(s, space, batch, queue, space.quarter)?;
    }
    Ok(())
}
