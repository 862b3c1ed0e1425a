//! Spends its time in three functions with names, and says by its own timers how much in each: `name milliseconds` a line.
//! `hot ROUNDS`, each always the same work; the tests compile
//! it with frame pointers.

use std::hint::black_box;
use std::time::Duration;

#[inline(never)]
fn trigonometry(x: f64) -> f64 {
    (0..40_000).fold(x, |sum, at| sum + sine(sum * 1e-3 + f64::from(at)) * sine(sum * 1e-3 + 1.5))
}

/// Taylor's: the C library's is a function of its own.
#[inline(always)]
fn sine(x: f64) -> f64 {
    let x = x - (x / std::f64::consts::TAU) as i32 as f64 * std::f64::consts::TAU;
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
    (0..20).fold(0, |sum: u64, by| {
        values.iter().fold(sum, |sum, value| (sum ^ value).wrapping_mul(31).rotate_left(by))
    })
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

/// Runs work so many times, one after the other: a function has the CPU for some tens of milliseconds at a time.
#[inline(never)]
fn timed(timer: &mut Duration, times: u32, mut work: impl FnMut()) {
    let started = cpu_time();
    (0..times).for_each(|_| work());
    *timer += cpu_time() - started;
}

fn main() {
    let rounds: u32 = std::env::args().nth(1).map_or(1, |text| text.parse().unwrap());
    let mut values = vec![0_u64; 30_000];
    let mut timers = [Duration::ZERO; 3];
    for _ in 0..rounds {
        timed(&mut timers[0], 45, || {
            black_box(trigonometry(black_box(0.5)));
        });
        timed(&mut timers[1], 30, || {
            let mut state = 88172645463325252_u64;
            values.iter_mut().for_each(|value| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                *value = state;
            });
            sort(&mut values);
        });
        timed(&mut timers[2], 50, || {
            black_box(accumulate(black_box(&values)));
        });
    }
    for (name, timer) in ["trigonometry", "sort", "accumulate"].iter().zip(timers) {
        println!("{name} {}", timer.as_secs_f64() * 1e3);
    }
}
