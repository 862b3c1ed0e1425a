//! Streams and events.

use std::ffi::{c_int, c_uint};

use super::device::{Handle, put};
use super::driver::{Driver, current, is_null};
use super::result::cu;
use crate::call::cuda;
use crate::value::Answer;

/// A stream.
pub struct Stream {
    /// Its context.
    pub context: Handle,
    /// The end of its work.
    pub end: u64,
    /// Whether it waits for the stream without a handle, and that for it.
    pub blocking: bool,
}

/// An event.
pub struct Event {
    /// Its context.
    pub context: Handle,
    /// When it happens, once it is recorded.
    pub at: Option<u64>,
    /// Whether it takes the time.
    pub timing: bool,
}

const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;

fn add_stream(driver: &mut Driver, out: *mut Handle, flags: c_uint) -> Answer<()> {
    let (context, _) = driver.here()?;
    let blocking = flags & NON_BLOCKING == 0;
    let stream = driver.streams.add(Stream { context, end: 0, blocking });
    put(out, stream)
}

/// When all that was given to a stream is done.
fn stream_end(driver: &Driver, stream: Handle) -> Answer<u64> {
    if is_null(stream) {
        let context = driver.contexts.get(current()?)?;
        return Ok(context.null_end.max(context.blocking_end));
    }
    Ok(driver.streams.get(stream)?.end)
}

/// Not ready, before its time; the caller who asks again and again comes nearer to it.
fn reached(driver: &mut Driver, end: u64) -> Answer<()> {
    driver.now += 1000;
    if driver.now >= end { Ok(()) } else { Err(cu::NOT_READY) }
}

cuda! {
    fn cuStreamCreate(out: *mut Handle, flags: c_uint) |driver| {
        add_stream(driver, out, flags)
    }

    fn cuStreamCreateWithPriority(out: *mut Handle, flags: c_uint, _priority: c_int) |driver| {
        add_stream(driver, out, flags)
    }

    fn cuStreamDestroy_v2(stream: Handle) |driver| {
        driver.streams.take(stream).map(|_| ())
    }

    fn cuStreamSynchronize(stream: Handle) |driver| {
        let end = stream_end(driver, stream)?;
        driver.wait_until(end);
        Ok(())
    }

    fn cuStreamQuery(stream: Handle) |driver| {
        let end = stream_end(driver, stream)?;
        reached(driver, end)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |driver| {
        let at = driver.events.get(event)?.at.unwrap_or(0);
        if is_null(stream) {
            let context = driver.contexts.get_mut(current()?)?;
            context.null_end = context.null_end.max(at);
        } else {
            let stream = driver.streams.get_mut(stream)?;
            stream.end = stream.end.max(at);
        }
        Ok(())
    }

    fn cuEventCreate(out: *mut Handle, flags: c_uint) |driver| {
        let (context, _) = driver.here()?;
        let event = Event { context, at: None, timing: flags & DISABLE_TIMING == 0 };
        let event = driver.events.add(event);
        put(out, event)
    }

    fn cuEventDestroy_v2(event: Handle) |driver| {
        driver.events.take(event).map(|_| ())
    }

    fn cuEventRecord(event: Handle, stream: Handle) |driver| {
        driver.now += 1000;
        let now = driver.now;
        // It happens when the stream comes to it.
        let at = driver.ready(current()?, stream)?.0.max(now);
        driver.events.get_mut(event)?.at = Some(at);
        Ok(())
    }

    fn cuEventQuery(event: Handle) |driver| {
        let at = driver.events.get(event)?.at.unwrap_or(0);
        reached(driver, at)
    }

    fn cuEventSynchronize(event: Handle) |driver| {
        let at = driver.events.get(event)?.at.unwrap_or(0);
        driver.wait_until(at);
        Ok(())
    }

    fn cuEventElapsedTime(out: *mut f32, first: Handle, second: Handle) |driver| {
        let (first, second) = (driver.events.get(first)?, driver.events.get(second)?);
        if !first.timing || !second.timing {
            return Err(cu::INVALID_HANDLE);
        }
        let (Some(from), Some(to)) = (first.at, second.at) else { return Err(cu::INVALID_HANDLE) };
        if driver.now < from.max(to) {
            return Err(cu::NOT_READY);
        }
        put(out, ((to as f64 - from as f64) / 1e6) as f32)
    }
}
