//! Reads Slurm variables from the environment of a process: job and step, if the control group does not show
//! them (in a cluster without the cgroup plugin all jobs are in `slurmd.service`), and the account, user and
//! GPUs of the job, which no control group has. The functions are pure. Nothing else from the environment is
//! kept, and the command line is never read, because both contain secrets.

use super::cgroup::{Innermost, Membership, SlurmJob};

/// Maximum number of bytes read of an environment.
pub const MOST_BYTES: usize = 64 * 1024;

/// Variables by content. `SLURM_STEPID` is the older name.
const JOB: &[&[u8]] = &[b"SLURM_JOB_ID", b"SLURM_JOBID"];
const STEP: &[&[u8]] = &[b"SLURM_STEP_ID", b"SLURM_STEPID"];
const ACCOUNT: &[&[u8]] = &[b"SLURM_JOB_ACCOUNT"];
const USER: &[&[u8]] = &[b"SLURM_JOB_USER"];
const NODES: &[&[u8]] = &[b"SLURM_JOB_NUM_NODES", b"SLURM_NNODES"];
const JOB_GPUS: &[&[u8]] = &[b"SLURM_JOB_GPUS"];
const STEP_GPUS: &[&[u8]] = &[b"SLURM_STEP_GPUS"];
const VISIBLE: &[&[u8]] = &[b"CUDA_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL"];
/// Maximum length of the name of an account or user in bytes.
const MOST_NAME_BYTES: usize = 128;
/// Maximum number of devices in a list, and maximum length of a device name in bytes.
const MOST_DEVICES: usize = 64;
const MOST_DEVICE_BYTES: usize = 64;

/// Slurm variables of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmEnvironment {
    /// Slurm job and step.
    pub job: Option<SlurmJob>,
    /// Account that the job is charged to. The user of the job can change the variable, so it is good enough to
    /// find a contact but not for billing.
    pub account: Option<String>,
}

impl SlurmEnvironment {
    /// Returns the account of this job, or `None` if the environment belongs to another job.
    pub fn account_of(&self, job: &SlurmJob) -> Option<&str> {
        self.account.as_deref().filter(|_| self.job.as_ref().is_some_and(|said| said.id == job.id))
    }
}

/// Allocation of a Slurm job on this node, from the environment of one of its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmAllocation {
    /// Account that the job is charged to.
    pub account: Option<String>,
    /// Login name of the job's user.
    pub user: Option<String>,
    /// Whether the allocation covers the whole job, or only the step of the process.
    pub whole_job: bool,
    /// GPU numbers in Slurm's list of the GPUs of the node, which is ordered by PCI address.
    pub numbers: Vec<u32>,
    /// Devices in CUDA's terms: UUIDs or numbers. The numbers count all GPUs of the node or, if Slurm
    /// constrains devices, only those of the job.
    pub visible: Vec<String>,
}

/// Returns whether the environment is read at all: for processes in a group of a Slurm job, to get the account,
/// and for processes whose environment may name their job.
pub fn is_asked(membership: &Membership) -> bool {
    membership.job.is_some() || may_tell_job(membership)
}

/// Returns whether the environment may name the job. This is true only for processes in Slurm's own unit or in
/// no group. In a login session, a container or another unit the variables prove nothing, because anyone can
/// set them there.
pub fn may_tell_job(membership: &Membership) -> bool {
    match membership.innermost {
        Innermost::Nothing => true,
        Innermost::Unit => membership.unit.as_deref().is_some_and(|unit| unit.starts_with("slurm")),
        _ => false,
    }
}

/// Returns the Slurm job and account in an environment.
pub fn said(environ: &[u8]) -> SlurmEnvironment {
    let environ = whole(environ);
    SlurmEnvironment { job: job(environ), account: name(environ, ACCOUNT) }
}

/// Returns the devices of the job from the environment of a process in this job and step, or `None` if the
/// environment belongs to another job or to none.
pub fn allocation(environ: &[u8], job_id: &str, step: &str) -> Option<SlurmAllocation> {
    let environ = whole(environ);
    job(environ).filter(|said| said.id == job_id)?;
    let numbers = |names| numbers(text(environ, names)?);
    let of_job = || numbers(JOB_GPUS);
    // Steps on other nodes inherit the variables of the batch script, but their GPUs have other numbers.
    let one_node = || text(environ, NODES).is_some_and(|nodes| nodes == "1");
    let (whole_job, numbers) = match step {
        "batch" | "interactive" => (true, of_job()),
        _ => match one_node().then(of_job).flatten() {
            Some(all) => (true, Some(all)),
            None => (false, numbers(STEP_GPUS)),
        },
    };
    Some(SlurmAllocation {
        account: name(environ, ACCOUNT),
        user: name(environ, USER),
        whole_job,
        numbers: numbers.unwrap_or_default(),
        visible: text(environ, VISIBLE).map(visible).unwrap_or_default(),
    })
}

/// Returns the environment without a variable that was cut off at the end.
fn whole(environ: &[u8]) -> &[u8] {
    if environ.len() < MOST_BYTES {
        return environ;
    }
    let environ = &environ[..MOST_BYTES];
    &environ[..environ.iter().rposition(|byte| *byte == 0).unwrap_or(0)]
}

fn name(environ: &[u8], names: &[&[u8]]) -> Option<String> {
    let text = text(environ, names).filter(|text| (1..=MOST_NAME_BYTES).contains(&text.len()));
    text.map(str::to_owned)
}

/// Parses a list such as `0,2`. Any other text is no list.
fn numbers(text: &str) -> Option<Vec<u32>> {
    let numbers = text.split(',').take(MOST_DEVICES).map(|one| one.trim().parse().ok());
    numbers.collect()
}

/// Parses the variable as CUDA does, up to the first invalid device.
fn visible(text: &str) -> Vec<String> {
    let device = |one: &&str| {
        let uuid = one.starts_with("GPU-") || one.starts_with("MIG-");
        let plain = one.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/'));
        one.len() <= MOST_DEVICE_BYTES && plain && (uuid || one.parse::<u32>().is_ok())
    };
    text.split(',').take(MOST_DEVICES).map(str::trim).take_while(device).map(str::to_owned).collect()
}

/// Returns the value of the first of these variables that is set.
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
    // Batch scripts and other special steps have numbers above 2^32 - 6, which mean nothing to people.
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
        let long = [&b"SLURM_JOB_ACCOUNT="[..], &[b'x'; MOST_NAME_BYTES + 1]].concat();
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

    fn given(environ: &[&str], step: &str) -> Option<SlurmAllocation> {
        let common = ["SLURM_JOB_ID=42", "SLURM_JOB_ACCOUNT=vision", "SLURM_JOB_USER=alice", "SECRET=x"];
        let environ: Vec<_> = common.iter().chain(environ).map(|one| format!("{one}\0")).collect();
        allocation(environ.concat().as_bytes(), "42", step)
    }

    #[test]
    fn the_numbers_of_a_job_are_those_of_the_node_whatever_is_visible() {
        let batch = given(&["SLURM_JOB_GPUS=2,3", "CUDA_VISIBLE_DEVICES=0,1"], "batch").unwrap();
        let expected = SlurmAllocation {
            account: Some("vision".into()),
            user: Some("alice".into()),
            whole_job: true,
            numbers: vec![2, 3],
            visible: vec!["0".into(), "1".into()],
        };
        assert_eq!(batch, expected);
        let none = given(&["SLURM_JOB_NUM_NODES=1"], "batch").unwrap();
        assert_eq!((none.whole_job, none.numbers, none.visible), (true, vec![], vec![]));
        assert_eq!(allocation(b"SLURM_JOB_ID=43\0SLURM_JOB_GPUS=0\0", "42", "batch"), None, "another job");
        assert_eq!(allocation(b"SLURM_JOB_GPUS=0\0", "42", "batch"), None);
    }

    #[test]
    fn a_step_on_another_node_has_its_own_numbers() {
        let environ = ["SLURM_JOB_GPUS=0,1", "SLURM_STEP_GPUS=6,7", "SLURM_JOB_NUM_NODES=2"];
        let far = given(&environ, "0").unwrap();
        assert_eq!((far.whole_job, far.numbers), (false, vec![6, 7]));
        let silent = given(&[environ[0], environ[2]], "0").unwrap();
        assert_eq!((silent.whole_job, silent.numbers), (false, vec![]), "the numbers of the first node");
        let near = given(&["SLURM_JOB_GPUS=0,1", "SLURM_STEP_GPUS=1", "SLURM_NNODES=1"], "0").unwrap();
        assert_eq!((near.whole_job, near.numbers), (true, vec![0, 1]));
    }

    #[test]
    fn only_names_of_devices_are_taken() {
        let visible = |text: &str| given(&[&format!("GPU_DEVICE_ORDINAL={text}")], "0").unwrap().visible;
        assert_eq!(visible("MIG-a, GPU-1/0 ,3"), ["MIG-a", "GPU-1/0", "3"]);
        assert_eq!(visible("1,-1,2"), ["1"]);
        for none in ["NoDevFiles", "", "GPU-\u{202e}", "password", &format!("GPU-{}", "1".repeat(99))] {
            assert!(visible(none).is_empty(), "{none}");
        }
        assert!(given(&["SLURM_JOB_GPUS=0,x"], "batch").unwrap().numbers.is_empty());
    }

    #[test]
    fn a_variable_that_was_cut_is_none() {
        let padding = "x".repeat(MOST_BYTES - 20);
        let environ = format!("SLURM_JOB_ID=42\0A={padding}\0SLURM_JOB_GPUS=0,1,2,3,4,5,6,7\0");
        assert_eq!(allocation(environ.as_bytes(), "42", "batch").map(|said| said.numbers), Some(vec![]));
    }

    proptest! {
        #[test]
        fn any_allocation_is_bounded(text in "(SLURM_JOB_GPUS|CUDA_VISIBLE_DEVICES|SLURM_JOB_USER|=|,|[0-9]{1,12}|GPU-|\0|\\PC){0,60}") {
            let environ = format!("SLURM_JOB_ID=42\0{text}");
            if let Some(said) = allocation(environ.as_bytes(), "42", "batch") {
                prop_assert!(said.numbers.len() <= MOST_DEVICES && said.visible.len() <= MOST_DEVICES);
                prop_assert!(said.visible.iter().all(|one| one.len() <= MOST_DEVICE_BYTES && one.is_ascii()));
            }
        }

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
