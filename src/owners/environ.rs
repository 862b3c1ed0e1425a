//! What is taken from the environment of a process: Slurm's job and step, where the control group is silent (a
//! cluster without its cgroup plugin, whose jobs live in `slurmd.service`). Pure. Nothing else of the environment
//! is kept, and the command line is not read at all: both hold secrets.

use super::cgroup::{Innermost, Job, Membership};

/// Most bytes read of an environment.
pub const MOST_BYTES: usize = 128 * 1024;

/// The variables that are looked at, by what they tell. `SLURM_STEPID` is the older name.
const JOB: &[&[u8]] = &[b"SLURM_JOB_ID", b"SLURM_JOBID"];
const STEP: &[&[u8]] = &[b"SLURM_STEP_ID", b"SLURM_STEPID"];

/// Whether the environment is asked at all: only of processes that Slurm's own unit, or no group, holds. In a login
/// session, a container or another unit the variables prove nothing: anybody can set them there.
pub fn is_asked(membership: &Membership) -> bool {
    match membership.innermost {
        Innermost::Nothing => true,
        Innermost::Unit => membership.unit.as_deref().is_some_and(|unit| unit.starts_with("slurm")),
        _ => false,
    }
}

/// The Slurm job that an environment names.
pub fn job(environ: &[u8]) -> Option<Job> {
    let environ = &environ[..environ.len().min(MOST_BYTES)];
    let number = |names: &[&[u8]]| {
        let of = |name: &[u8]| {
            environ.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name)?.strip_prefix(b"="))
        };
        let text = str::from_utf8(names.iter().find_map(|name| of(name))?).ok()?;
        let fits = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| text.to_owned())
    };
    let id = number(JOB)?;
    // Batch scripts and others have numbers above 2^32 - 6 for steps, which say nothing to people.
    let step = number(STEP).filter(|step| step.parse::<u32>().is_ok_and(|step| step < 0xffff_fff0));
    Some(Job { id, step })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_job_is_found_among_other_things() {
        let found = job(b"SECRET=x\0XSLURM_JOB_ID=9\0SLURM_JOB_ID=42\0SLURM_STEP_ID=0\0").unwrap();
        assert_eq!((found.id.as_str(), found.step.as_deref()), ("42", Some("0")));
        let batch = job(b"SLURM_JOBID=7\0SLURM_STEPID=4294967291\0").unwrap();
        assert_eq!((batch.id.as_str(), batch.step), ("7", None));
        for none in [&b""[..], b"SLURM_JOB_ID=\0", b"SLURM_JOB_ID=4\n2\0", b"SLURM_JOB_ID=42x\0"] {
            assert_eq!(job(none), None);
        }
    }

    #[test]
    fn it_is_asked_only_where_nobody_else_could_have_set_it() {
        let of = |path: &str| super::super::cgroup::membership(format!("0::{path}\n").as_bytes());
        assert!(is_asked(&of("/")) && is_asked(&of("/system.slice/slurmd.service")));
        for silent in ["/user.slice/user-1000.slice/session-1.scope", "/system.slice/vllm.service"] {
            assert!(!is_asked(&of(silent)), "{silent}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut environ = b"SLURM_JOB_ID=".to_vec();
            environ.extend(bytes);
            if let Some(job) = job(&environ) {
                prop_assert!(job.id.len() <= 20 && job.id.bytes().all(|byte| byte.is_ascii_digit()));
            }
        }
    }
}
