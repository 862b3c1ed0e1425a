//! What the control groups of a process say of its owner. Pure: the bytes of `/proc/PID/cgroup` in, parts
//! out. `tests/data/cgroups/README.md` names the sources of the path shapes.
//!
//! Paths are read from the outside in. The innermost part that means something wins: a container in a pod's
//! container is its own owner, a Slurm job in a pod is a job. The pod stays known all the same. Three things bound
//! what a path can claim: below a user's own slice, where the user may make groups of any name, neither pods nor
//! Slurm jobs are taken; and inside a container nothing is taken for a systemd unit of the host, inside a pod
//! nothing for another pod.

use std::borrow::Cow;

/// Most bytes looked at; the kernel's own paths are at most 4096 bytes a line.
const MOST_BYTES: usize = 64 * 1024;
/// Most lines looked at; version 1 has some 13 controllers.
const MOST_LINES: usize = 64;
/// Most parts of one path.
const MOST_PARTS: usize = 64;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Who runs it, as a label and in an owner's identity; `None` where the path does not tell (the cgroupfs driver).
    pub runtime: Option<&'static str>,
    /// Its id; of LXC its name.
    pub id: String,
}

/// A Slurm job or one of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    /// The job id.
    pub id: String,
    /// The step: `0`, `batch`, `extern`, `interactive`.
    pub step: Option<String>,
}

/// What the innermost part that means something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Innermost {
    /// There is none.
    #[default]
    Nothing,
    /// A user's slice.
    User,
    /// A systemd unit.
    Unit,
    /// A Slurm job or step.
    Job,
    /// A container of no pod, or one within a pod's container.
    Container,
    /// A pod, or a container of it.
    Pod,
}

/// What the control groups of a process say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// What it is first of all.
    pub innermost: Innermost,
    /// UID of the pod.
    pub pod_uid: Option<String>,
    /// The innermost container.
    pub container: Option<Container>,
    /// Id of the outermost container, of a pod the one that the kubelet knows. A process in it may name further
    /// groups below as other pods' containers are named.
    pub outermost_container: Option<String>,
    /// The Slurm job.
    pub job: Option<SlurmJob>,
    /// The systemd unit.
    pub unit: Option<String>,
    /// Number of the user whose slice or job it is.
    pub user: Option<u32>,
    /// Path of the group of the innermost part, as `/kubepods.slice/…`; empty if there is none or it is no text.
    pub path: String,
    /// Whether the path began with `..`: it is seen from another cgroup namespace, and `path` holds what was left.
    pub relative: bool,
}

impl Membership {
    /// Whether the innermost container was started within another one.
    pub fn is_nested(&self) -> bool {
        self.container
            .as_ref()
            .is_some_and(|container| self.outermost_container.as_ref() != Some(&container.id))
    }
}

/// Reads the bytes of `/proc/PID/cgroup`.
pub fn membership(bytes: &[u8]) -> Membership {
    let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
    let lines = bytes.split(|byte| *byte == b'\n').take(MOST_LINES);
    let mut best: Option<((Innermost, u8), Membership)> = None;
    for line in lines {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let found = walk(path);
        // Version 1 tells a path for each controller; a batch system may manage only some of them.
        let rank = (found.innermost, preference(controllers));
        if best.as_ref().is_none_or(|(best, _)| rank > *best) {
            best = Some((rank, found));
        }
    }
    best.map(|(_, found)| found).unwrap_or_default()
}

/// Where the group of a path that began with `..` may be: what is missing in front follows from systemd's rule that
/// `a-b.slice` is in `a.slice` (systemd.slice(5)), or is the kubelet's own. The caller looks which one exists.
pub fn absolute(path: &str) -> Vec<String> {
    let mut all = vec![path.to_owned()];
    let first = path.split('/').nth(1).unwrap_or("");
    if let Some(name) = first.strip_suffix(".slice") {
        let above = name.match_indices('-').map(|(at, _)| format!("/{}.slice", &name[..at]));
        all.push(format!("{}{path}", above.take(MOST_PARTS).collect::<String>()));
    }
    all.extend(
        ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"].map(|above| format!("{above}{path}")),
    );
    all
}

/// Which of several lines that say the same is taken: the one whose path figures are read from.
fn preference(controllers: &[u8]) -> u8 {
    let has = |name: &[u8]| controllers.split(|byte| *byte == b',').any(|one| one == name);
    match () {
        () if has(b"memory") => 4,
        () if controllers.is_empty() => 3,
        () if has(b"name=systemd") => 2,
        () if has(b"cpuacct") => 1,
        () => 0,
    }
}

/// Reads one path.
fn walk(path: &[u8]) -> Membership {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let mut parts: Vec<Cow<'_, str>> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let above = parts.iter().take_while(|part| *part == "..").count();
    parts.drain(..above);
    parts.truncate(MOST_PARTS);
    let mut walk =
        Walk { found: Membership { relative: above > 0, ..Membership::default() }, ..Walk::default() };
    let mut parent = if above > 0 { ".." } else { "" };
    for (at, part) in parts.iter().enumerate() {
        if walk.enter(parent, part) {
            walk.end = Some(at);
        }
        parent = part;
    }
    if walk.found.innermost == Innermost::Nothing
        && let Some(slice) = parts.last().filter(|part| part.ends_with(".slice"))
    {
        walk.found.unit = Some(slice.to_string());
        walk.found.innermost = Innermost::Unit;
        walk.end = Some(parts.len() - 1);
    }
    let own = walk.end.map_or(&[][..], |end| &parts[..=end]);
    // A name that is no text was changed above, and one that leads elsewhere is no path of a group.
    let usable = own.iter().all(|part| part != ".." && part != "." && !part.contains('\u{fffd}'));
    if usable && !own.is_empty() {
        walk.found.path = format!("/{}", own.join("/"));
    }
    walk.found
}

/// What is known on the way in.
#[derive(Debug, Default)]
struct Walk {
    found: Membership,
    /// Index of the innermost part that means something.
    end: Option<usize>,
    /// Whether a user may have made what comes now.
    below_user: bool,
    /// Whether Slurm has made what comes now.
    below_slurm: bool,
}

impl Walk {
    /// Takes in one part below `parent`. Whether it means something.
    fn enter(&mut self, parent: &str, part: &str) -> bool {
        let slice = user(part, "user-", ".slice");
        // The user's own service manager.
        let manager = || user(part, "user@", ".service").filter(|_| self.found.user.is_none());
        if let Some(user) = slice.or_else(manager) {
            // The slice of a user in a container is none of this host's.
            let of_host = self.found.innermost <= Innermost::User;
            if of_host {
                (self.found.user, self.found.innermost, self.below_user) =
                    (Some(user), Innermost::User, true);
            }
            return of_host;
        }
        let may_be_pod = !self.below_user && self.found.pod_uid.is_none();
        if let Some((uid, container)) = pod(parent, part).filter(|_| may_be_pod) {
            let found = &mut self.found;
            found.innermost = Innermost::Pod;
            found.outermost_container = container.as_ref().map(|container| container.id.clone());
            (found.pod_uid, found.container, found.unit, found.job) = (Some(uid), container, None, None);
            return true;
        }
        if let Some(container) = container(parent, part) {
            let first_of_pod = self.found.innermost == Innermost::Pod && self.found.container.is_none();
            self.found.innermost = if first_of_pod { Innermost::Pod } else { Innermost::Container };
            self.found.outermost_container.get_or_insert_with(|| container.id.clone());
            self.found.container = Some(container);
            self.below_slurm = false;
            return true;
        }
        self.slurm(parent, part) || self.unit(part)
    }

    fn slurm(&mut self, parent: &str, part: &str) -> bool {
        if self.below_user {
            return false;
        }
        if !self.below_slurm {
            let unit = [".service", ".scope", ".slice"].iter().any(|end| part.ends_with(end));
            let version_1 = part == "slurm" || (part.starts_with("slurm_") && !unit);
            let version_2 = part == "slurmstepd.scope" || part.ends_with("_slurmstepd.scope");
            self.below_slurm = version_1 || version_2;
            return false;
        }
        let found = &mut self.found;
        if let Some(user) = part.strip_prefix("uid_").and_then(|text| text.parse().ok()) {
            found.user = Some(user);
        } else if let Some(id) = part.strip_prefix("job_").and_then(slurm_id).filter(|_| found.job.is_none())
        {
            found.job = Some(SlurmJob { id, step: None });
            (found.innermost, found.unit) = (Innermost::Job, None);
            return true;
        } else if let Some(step) = part.strip_prefix("step_").and_then(slurm_id)
            && parent.starts_with("job_")
            && let Some(job) = &mut found.job
        {
            job.step = Some(step);
            return true;
        }
        false
    }

    fn unit(&mut self, part: &str) -> bool {
        let service = part.ends_with(".service");
        let found = &mut self.found;
        match found.innermost {
            // What a user starts by hand gets scopes of passing names; only services have one that lasts.
            Innermost::User if service && !part.starts_with("user@") => {}
            Innermost::Nothing if (service || part.ends_with(".scope")) && part != "init.scope" => {}
            _ => return false,
        }
        found.unit = Some(part.to_owned());
        found.innermost = Innermost::Unit;
        true
    }
}

/// The user's number between two texts, as in `user-1000.slice`.
fn user(part: &str, before: &str, after: &str) -> Option<u32> {
    part.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// A pod's group: `kubepods-burstable-pod<uid>.slice`, `pod<uid>`, and what containerd makes of the former when it
/// is given systemd's form without using systemd: `kubepods-pod<uid>.slice:cri-containerd:<id>`.
fn pod(parent: &str, part: &str) -> Option<(String, Option<Container>)> {
    let (slice, scope) = part.split_once(".slice:").map_or((part, None), |(slice, rest)| (slice, Some(rest)));
    let slice = slice.strip_suffix(".slice").unwrap_or(slice);
    if part != slice {
        // The kubelet may have a slice of its own around them: `kubelet-kubepods-pod<uid>`.
        let (before, uid) = slice.rsplit_once("pod")?;
        if !(before.contains("kubepods") && before.ends_with('-')) {
            return None;
        }
        let uid = pod_uid(uid)?;
        let container = scope.and_then(|scope| {
            let (runtime, id) = scope.split_once(':')?;
            prefixed(&format!("{runtime}-{id}"))
        });
        return Some((uid, container));
    }
    let known = matches!(parent, "besteffort" | "burstable" | "guaranteed" | ".." | "kubepods")
        || parent.ends_with("kubepods");
    known.then(|| pod_uid(part.strip_prefix("pod")?)).flatten().map(|uid| (uid, None))
}

/// A pod's UID: a UUID, in which systemd's names have `_` for `-`, or the hash of a static pod.
fn pod_uid(text: &str) -> Option<String> {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let others = text.len() - digits;
    let separators = text.bytes().filter(|byte| matches!(byte, b'-' | b'_')).count();
    ((16..=64).contains(&digits) && others == separators && separators <= 4).then(|| text.replace('_', "-"))
}

/// A container's group.
fn container(parent: &str, part: &str) -> Option<Container> {
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(Container { runtime: Some("lxc"), id: name.to_owned() });
    }
    if parent == "lxc" && !part.starts_with("lxc.monitor") {
        return Some(Container { runtime: Some("lxc"), id: part.to_owned() });
    }
    if let Some(container) = prefixed(part.strip_suffix(".scope").unwrap_or(part)) {
        return Some(container);
    }
    let id = container_id(part).filter(|id| id.len() == 64)?;
    let runtime = match parent {
        "docker" | "moby" => Some("docker"),
        "default" | "k8s.io" => Some("containerd"),
        _ => None,
    };
    Some(Container { runtime, id })
}

/// `docker-<id>` and the like. Monitors (conmon) are groups beside the container's.
fn prefixed(name: &str) -> Option<Container> {
    const PREFIXES: [(&str, &str); 8] = [
        ("cri-containerd-", "containerd"),
        ("containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
        ("cri-o-", "cri-o"),
        ("docker-", "docker"),
        ("libpod-payload-", "podman"),
        ("libpod-", "podman"),
    ];
    PREFIXES.iter().find_map(|(prefix, runtime)| {
        let id = container_id(name.strip_prefix(prefix)?)?;
        Some(Container { runtime: Some(*runtime), id })
    })
}

fn container_id(text: &str) -> Option<String> {
    let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (hex && (12..=64).contains(&text.len())).then(|| text.to_owned())
}

/// A job or step as Slurm writes it: `42`, `batch`, `0+1` of a heterogeneous job.
pub(crate) fn slurm_id(text: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_');
    ((1..=32).contains(&text.len()) && text.bytes().all(fits)).then(|| text.to_owned())
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
