//! What is taken from the environment of a process: Slurm's job and step, where the control group is silent (a
//! cluster without its cgroup plugin, whose jobs live in `slurmd.service`), and the account a job is charged to,
//! which no control group tells. Pure. Nothing else of the environment is kept, and the command line is not read at
//! all: both hold secrets.

use super::cgroup::{Innermost, Membership, SlurmJob};

/// Most bytes read of an environment.
pub const MOST_BYTES: usize = 128 * 1024;

/// The variables that are looked at, by what they tell. `SLURM_STEPID` is the older name.
const JOB: &[&[u8]] = &[b"SLURM_JOB_ID", b"SLURM_JOBID"];
const STEP: &[&[u8]] = &[b"SLURM_STEP_ID", b"SLURM_STEPID"];
const ACCOUNT: &[&[u8]] = &[b"SLURM_JOB_ACCOUNT"];
/// Most bytes of an account's name.
const MOST_ACCOUNT_BYTES: usize = 128;

/// What an environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmEnvironment {
    /// The Slurm job it names.
    pub job: Option<SlurmJob>,
    /// The account that this job is charged to. The job's user can have changed it: good enough to find a contact, not
    /// to bill.
    pub account: Option<String>,
}

impl SlurmEnvironment {
    /// The account of this job; none if the environment is that of another one.
    pub fn account_of(&self, job: &SlurmJob) -> Option<&str> {
        self.account.as_deref().filter(|_| self.job.as_ref().is_some_and(|said| said.id == job.id))
    }
}

/// Whether the environment is asked at all: of what Slurm holds in a group of its own, for the account alone, and of
/// those whose job it may tell.
pub fn is_asked(membership: &Membership) -> bool {
    membership.job.is_some() || may_tell_job(membership)
}

/// Whether the environment may tell the job: only of processes that Slurm's own unit, or no group, holds. In a login
/// session, a container or another unit the variables prove nothing: anybody can set them there.
pub fn may_tell_job(membership: &Membership) -> bool {
    match membership.innermost {
        Innermost::Nothing => true,
        Innermost::Unit => membership.unit.as_deref().is_some_and(|unit| unit.starts_with("slurm")),
        _ => false,
    }
}

/// What an environment says.
pub fn said(environ: &[u8]) -> SlurmEnvironment {
    let environ = &environ[..environ.len().min(MOST_BYTES)];
    let account = text(environ, ACCOUNT).filter(|text| (1..=MOST_ACCOUNT_BYTES).contains(&text.len()));
    SlurmEnvironment { job: job(environ), account: account.map(str::to_owned) }
}

/// The first of these variables.
fn text<'a>(environ: &'a [u8], names: &[&[u8]]) -> Option<&'a str> {
    let of = |name: &[u8]| {
        environ.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(name)?.strip_prefix(b"="))
    };
    str::from_utf8(names.iter().find_map(|name| of(name))?).ok()
}

fn job(environ: &[u8]) -> Option<SlurmJob> {
    let number = |names: &[&[u8]]| {
        let text = text(environ, names)?;
        let fits = (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        fits.then(|| text.to_owned())
    };
    let id = number(JOB)?;
    // Batch scripts and others have numbers above 2^32 - 6 for steps, which say nothing to people.
    let step = number(STEP).filter(|step| step.parse::<u32>().is_ok_and(|step| step < 0xffff_fff0));
    Some(SlurmJob { id, step })
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
    fn the_account_is_that_of_the_job_and_of_no_other() {
        let said = said(b"SLURM_JOB_ID=42\0SLURM_JOB_ACCOUNT=vision\0");
        let job = |id: &str| SlurmJob { id: id.into(), step: None };
        assert_eq!(said.account_of(&job("42")), Some("vision"));
        assert_eq!(said.account_of(&job("43")), None, "left over from another job");
        let long = [&b"SLURM_JOB_ACCOUNT="[..], &[b'x'; MOST_ACCOUNT_BYTES + 1]].concat();
        for none in
            [&b"SLURM_JOB_ACCOUNT=\0"[..], b"SLURM_JOB_ACCOUNT=\xff\0", b"XSLURM_JOB_ACCOUNT=a\0", &long]
        {
            assert_eq!(super::said(none).account, None);
        }
    }

    #[test]
    fn it_is_asked_only_where_no_other_process_could_have_set_it() {
        let of = |path: &str| super::super::cgroup::membership(format!("0::{path}\n").as_bytes());
        assert!(may_tell_job(&of("/")) && may_tell_job(&of("/system.slice/slurmd.service")));
        let job = of("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0");
        assert!(is_asked(&job) && !may_tell_job(&job), "for the account alone");
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
