//! Contexts.

use std::ffi::{c_int, c_uint};

use super::device::{Handle, linked, put};
use super::driver::{Driver, current, stack};
use super::result::cu;
use crate::call::cuda;
use crate::value::Answer;

/// Gives a primary context back as often as it was retained, or by force.
fn release(driver: &mut Driver, ordinal: usize, by_force: bool) -> Answer<()> {
    let primary = &mut driver.primaries[ordinal];
    let Some(context) = primary.context else { return Err(cu::INVALID_CONTEXT) };
    primary.retained = if by_force { 0 } else { primary.retained - 1 };
    if primary.retained > 0 {
        return Ok(());
    }
    primary.context = None;
    driver.destroy(context)
}

cuda! {
    on ordinal fn cuDevicePrimaryCtxRetain(out: *mut Handle, ordinal: c_int) |driver| {
        let ordinal = driver.ordinal(ordinal)?;
        let context = match driver.primaries[ordinal].context {
            Some(context) => context,
            None => driver.create(ordinal)?,
        };
        driver.primaries[ordinal].context = Some(context);
        driver.primaries[ordinal].retained += 1;
        put(out, context)
    }

    on ordinal fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) |driver| {
        let ordinal = driver.ordinal(ordinal)?;
        release(driver, ordinal, false)
    }

    on ordinal fn cuDevicePrimaryCtxReset_v2(ordinal: c_int) |driver| {
        let ordinal = driver.ordinal(ordinal)?;
        release(driver, ordinal, true)
    }

    on ordinal fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, flags: c_uint) |driver| {
        let ordinal = driver.ordinal(ordinal)?;
        driver.primaries[ordinal].flags = flags;
        Ok(())
    }

    on ordinal fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) |driver| {
        let primary = &driver.primaries[driver.ordinal(ordinal)?];
        put(flags, primary.flags)?;
        put(active, c_int::from(primary.context.is_some()))
    }

    on ordinal fn cuCtxCreate_v2(out: *mut Handle, _flags: c_uint, ordinal: c_int) |driver| {
        let context = driver.create(driver.ordinal(ordinal)?)?;
        stack(|stack| stack.push(context));
        put(out, context)
    }

    fn cuCtxDestroy_v2(context: Handle) |driver| {
        driver.contexts.get(context)?;
        if driver.primaries.iter().any(|p| p.context == Some(context)) {
            return Err(cu::INVALID_CONTEXT);
        }
        driver.destroy(context)?;
        // What was current before is current again.
        stack(|stack| if stack.last().is_some_and(|c| c.is_null()) { stack.pop(); });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) |driver| {
        driver.contexts.get(context)?;
        stack(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: *mut Handle) |_driver| {
        let context = stack(|stack| stack.pop()).ok_or(cu::INVALID_CONTEXT)?;
        if out.is_null() { Ok(()) } else { put(out, context) }
    }

    fn cuCtxSetCurrent(context: Handle) |driver| {
        if !context.is_null() {
            driver.contexts.get(context)?;
        }
        stack(|stack| {
            stack.pop();
            if !context.is_null() {
                stack.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(out: *mut Handle) |_driver| {
        put(out, current().unwrap_or(std::ptr::null_mut()))
    }

    fn cuCtxGetDevice(out: *mut c_int) |driver| {
        put(out, driver.contexts.get(current()?)?.device as c_int)
    }

    fn cuCtxSynchronize() |driver| {
        let end = driver.contexts.get(current()?)?.end;
        driver.wait_until(end);
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |driver| {
        driver.here()?;
        put(least, 0)?;
        put(greatest, -5)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) |driver| {
        let (own, device) = driver.here()?;
        let other = driver.device(driver.contexts.get(peer)?.device)?;
        if own == peer || !linked(&device) || !linked(&other) {
            return Err(cu::PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut driver.contexts.get_mut(own)?.peers;
        if peers.contains(&peer) {
            return Err(cu::PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: Handle) |driver| {
        let peers = &mut driver.contexts.get_mut(current()?)?.peers;
        let at = peers.iter().position(|p| *p == peer).ok_or(cu::PEER_ACCESS_NOT_ENABLED)?;
        peers.remove(at);
        Ok(())
    }
}
