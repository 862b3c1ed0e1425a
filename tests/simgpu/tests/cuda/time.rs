//! Simulated time: what a launch, a copy and several streams at once take.

use crate::cuda::{Cuda, Handle, NULL, out};
use crate::kernels::H200;
use canary::abi::*;

fn pinned(cuda: &Cuda, bytes: usize) -> Handle {
    out(NULL, |out| cuda.cuMemHostAlloc(out, bytes, 0)).expect("pinned memory")
}

#[test]
fn copies_take_the_links_time() {
    let cuda = Cuda::with_context(H200);
    let bytes = 32 << 20;
    let (host, device) = (pinned(&cuda, bytes), cuda.allocate(bytes));
    let rate = |ms: f64| bytes as f64 / ms / 1e6;
    let to_gpu = rate(cuda.timed(|| cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, NULL).expect("a copy")));
    assert!((to_gpu / 55.3 - 1.0).abs() < 0.03, "{to_gpu} GB/s");
    let to_host = rate(cuda.timed(|| cuda.cuMemcpyDtoHAsync_v2(host, device, bytes, NULL).expect("a copy")));
    assert!((to_host / 54.8 - 1.0).abs() < 0.03, "{to_host} GB/s");
    let pageable = vec![0u8; bytes];
    let copy = || cuda.cuMemcpyHtoD_v2(device, pageable.as_ptr().cast(), bytes).expect("a copy");
    assert!(rate(cuda.timed(copy)) < 30.0, "memory that is not pinned is slower");
}

#[test]
fn an_empty_launch_takes_some_microseconds() {
    let cuda = Cuda::with_context(H200);
    let kernel = cuda.kernel(c"launch");
    let launch = || {
        for _ in 0..200 {
            cuda.run(kernel, 1, 32, 0, &LaunchArgs::default()).expect("it runs");
        }
    };
    let us = cuda.timed(launch) / 200.0 * 1e3;
    assert!((7.0..11.0).contains(&us), "{us} us");
}

/// What `overlap` does: batches of a copy in, a kernel twice as long, and a copy out.
#[test]
fn three_streams_hide_the_copies_behind_the_kernels() {
    let cuda = Cuda::with_context(H200);
    let (batches, count) = (8, 256 << 10);
    let bytes = count * 4;
    let host = pinned(&cuda, batches * bytes);
    let (x, y) = (cuda.allocate(batches * bytes), cuda.allocate(batches * bytes));
    let kernel = cuda.kernel(c"overlap");
    let at = |base: u64, batch: usize| base + (batch * bytes) as u64;
    let host_at = |batch: usize| host.wrapping_byte_add(batch * bytes);
    let copy_in = |batch, stream| {
        cuda.cuMemcpyHtoDAsync_v2(at(x, batch), host_at(batch), bytes, stream).expect("a copy")
    };
    let copy_out = |batch, stream| {
        cuda.cuMemcpyDtoHAsync_v2(host_at(batch), at(y, batch), bytes, stream).expect("a copy")
    };
    let work = |batch, turns, blocks, stream| {
        let args = OverlapArgs { x: at(x, batch), y: at(y, batch), count: count as u64, turns, reserved: 0 };
        cuda.start(kernel, blocks, OVERLAP_THREADS, 0, &args, stream).expect("a launch");
    };
    // As many turns as take twice the copy: the time is a constant and so much a turn.
    let copy = cuda.timed(|| copy_in(0, NULL));
    let (short, long) = (cuda.timed(|| work(0, 100, 132, NULL)), cuda.timed(|| work(0, 1100, 132, NULL)));
    let turns = (100.0 + (2.0 * copy - short) / ((long - short) / 1000.0)).max(1.0) as u32;
    let kernel_ms = cuda.timed(|| work(0, turns, 132, NULL));
    assert!((kernel_ms / copy - 2.0).abs() < 0.3, "{kernel_ms} and {copy}");
    let serial = cuda.timed(|| {
        for batch in 0..batches {
            copy_in(batch, NULL);
            work(batch, turns, 132, NULL);
            copy_out(batch, NULL);
        }
    });
    let streams: Vec<Handle> = (0..3).map(|_| cuda.stream()).collect();
    let rotating = cuda.timed(|| {
        for batch in 0..batches {
            let stream = streams[batch % 3];
            copy_in(batch, stream);
            work(batch, turns, 132, stream);
            copy_out(batch, stream);
        }
    });
    let gain = serial / rotating;
    assert!((1.5..2.0).contains(&gain), "{serial} to {rotating}");
    let event = || out(NULL, |out| cuda.cuEventCreate(out, 2)).expect("an event");
    let separate = cuda.timed(|| {
        for batch in 0..batches {
            let (loaded, worked) = (event(), event());
            copy_in(batch, streams[0]);
            cuda.cuEventRecord(loaded, streams[0]).expect("recorded");
            cuda.cuStreamWaitEvent(streams[1], loaded, 0).expect("waits");
            work(batch, turns, 132, streams[1]);
            cuda.cuEventRecord(worked, streams[1]).expect("recorded");
            cuda.cuStreamWaitEvent(streams[2], worked, 0).expect("waits");
            copy_out(batch, streams[2]);
        }
    });
    assert!((1.5..2.0).contains(&(serial / separate)), "{serial} to {separate}");
    // Two kernels that leave room for each other.
    let after = cuda.timed(|| (0..2).for_each(|batch| work(batch, turns, 60, streams[0])));
    let beside = cuda.timed(|| (0..2).for_each(|batch| work(batch, turns, 60, streams[batch])));
    assert!((1.7..2.1).contains(&(after / beside)), "{after} and {beside}");
}

#[test]
fn a_stream_is_not_done_before_its_time() {
    let cuda = Cuda::with_context(H200);
    let bytes = 8 << 20;
    let (host, device, stream) = (pinned(&cuda, bytes), cuda.allocate(bytes), cuda.stream());
    cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, stream).expect("a copy");
    assert_eq!(cuda.cuStreamQuery(stream), Err(600));
    cuda.cuStreamSynchronize(stream).expect("synchronised");
    assert_eq!(cuda.cuStreamQuery(stream), Ok(()));
    cuda.cuMemFreeHost(host).expect("freed");
    assert_eq!(cuda.cuStreamDestroy_v2(stream), Ok(()));
    assert_eq!(cuda.cuStreamQuery(stream), Err(400));
}

#[test]
fn paced_work_takes_its_time_in_earnest() {
    let cuda = Cuda::with_context(&format!("paced = true\n{H200}"));
    let bytes = 64 << 20;
    let device = cuda.allocate(bytes);
    let host = pinned(&cuda, bytes);
    let begun = std::time::Instant::now();
    for _ in 0..10 {
        cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, NULL).expect("a copy");
    }
    cuda.cuCtxSynchronize().expect("synchronised");
    assert!(begun.elapsed().as_secs_f64() >= 0.0115, "{:?}", begun.elapsed());
    // From the launch's return on: whatever the CPU took for the kernel is no part of its time. A busy machine may stop the test
    // just then, but not five times.
    let stamps = cuda.upload(&vec![SmStamp::default(); 132]);
    let bad = cuda.upload(&[BadLanes::default()]);
    let args = SmRateArgs { stamps, bad, turns: 24_000, ..Default::default() };
    let mut seen = Vec::new();
    let waits = (0..5).any(|_| {
        cuda.start(cuda.kernel(c"sm_rate"), 132, SM_RATE_THREADS, crate::kernels::ALONE, &args, NULL)
            .expect("a launch");
        let handed_over = std::time::Instant::now();
        cuda.cuCtxSynchronize().expect("synchronised");
        let waited = handed_over.elapsed().as_secs_f64();
        let stamp = cuda.download::<SmStamp>(stamps, 1)[0];
        let kernel = (stamp.end_ns - stamp.begin_ns) as f64 / 1e9;
        seen.push((waited, kernel));
        waited > 0.8 * kernel
    });
    assert!(waits, "{seen:?}");
}
