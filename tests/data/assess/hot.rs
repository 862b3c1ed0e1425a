//! Spends its time in three functions with names, and says by its own timers how much in each: `name milliseconds` a line.
//! `hot SECONDS` of CPU time; the tests compile it with
//! frame pointers.

use std::hint::black_box;
use std::time::Duration;

#[inline(never)]
fn trigonometry(x: f64) -> f64 {
    (0..40_000).fold(x, |sum, at| sum + sine(sum * 1e-3 + f64::from(at)) * sine(sum * 1e-3 + 1.5))
}

/// Taylor's: the C library's is a function of its own.
#[inline(always)]
fn sine(x: f64) -> f64 {
    let x = x % std::f64::consts::TAU;
    let square = x * x;
    (1..12).rev().fold(1.0, |sum, at| 1.0 - sum * square / f64::from(2 * at * (2 * at + 1))) * x
}

#[inline(never)]
fn sort(values: &mut [u64]) {
    // Shell's: all of its time is in this function.
    let mut gap = values.len() / 2;
    while gap > 0 {
        for at in gap..values.len() {
            let (value, mut to) = (values[at], at);
            while to >= gap && values[to - gap] > value {
                values[to] = values[to - gap];
                to -= gap;
            }
            values[to] = value;
        }
        gap /= 2;
    }
}

#[inline(never)]
fn accumulate(values: &[u64]) -> u64 {
    (0..20).fold(0, |sum: u64, by| values.iter().fold(sum, |sum, value| (sum ^ value).wrapping_mul(31).rotate_left(by)))
}

#[inline(never)]
fn timed<T>(timer: &mut Duration, work: impl FnOnce() -> T) {
    let started = cpu_time();
    black_box(work());
    *timer += cpu_time() - started;
}

/// CPU time of this process, so that waiting for a CPU is not counted.
fn cpu_time() -> Duration {
    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanos: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    }
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: fills the struct that it is given; 2 is CLOCK_PROCESS_CPUTIME_ID.
    unsafe { clock_gettime(2, &mut time) };
    Duration::new(time.seconds as u64, time.nanos as u32)
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(1.0, |text| text.parse().unwrap());
    let mut state = 88172645463325252_u64;
    let mut values = vec![0_u64; 30_000];
    let mut timers = [Duration::ZERO; 3];
    while cpu_time().as_secs_f64() < seconds {
        values.iter_mut().for_each(|value| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *value = state;
        });
        for _ in 0..2 {
            timed(&mut timers[0], || trigonometry(state as f64 * 1e-19));
        }
        timed(&mut timers[1], || sort(&mut values));
        for _ in 0..2 {
            timed(&mut timers[2], || accumulate(&values));
        }
    }
    for (name, timer) in ["trigonometry", "sort", "accumulate"].iter().zip(timers) {
        println!("{name} {}", timer.as_secs_f64() * 1e3);
    }
}
