//! Derives the owner of a process from its control groups. The functions are pure: they parse the bytes of
//! `/proc/PID/cgroup`. `tests/data/cgroups/README.md` names the sources of the path shapes.
//!
//! Paths are parsed from the outermost part to the innermost, and the innermost meaningful part wins: a
//! container within a pod's container is an owner of its own, and a Slurm job in a pod is a job. The pod is
//! kept as a label in either case. Three rules limit what a path can claim. Below a user's own slice, where the
//! user can create groups with any name, pods and Slurm jobs are ignored. Inside a container, systemd units are
//! ignored. Inside a pod, other pods are ignored.

use std::borrow::Cow;

/// Maximum number of bytes parsed; the kernel's own paths have at most 4096 bytes per line.
const MOST_BYTES: usize = 64 * 1024;
/// Maximum number of lines parsed; version 1 has about 13 controllers.
const MOST_LINES: usize = 64;
/// Maximum number of parts of a path.
const MOST_PARTS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Container runtime, as a label and in the owner's identity; `None` if the path does not show it (cgroupfs
    /// driver).
    pub runtime: Option<&'static str>,
    /// Id of the container; its name in LXC.
    pub id: String,
}

/// A Slurm job or one of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    pub id: String,
    /// Step: `0`, `batch`, `extern` or `interactive`.
    pub step: Option<String>,
}

/// Kind of the innermost meaningful part of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Innermost {
    /// No part is meaningful.
    #[default]
    Nothing,
    User,
    Unit,
    /// A Slurm job or step.
    Job,
    /// A container outside any pod, or one within a pod's container.
    Container,
    /// A pod or one of its containers.
    Pod,
}

/// Owner parts found in the control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Kind of the innermost meaningful part.
    pub innermost: Innermost,
    pub pod_uid: Option<String>,
    pub container: Option<Container>,
    /// Id of the outermost container, which in a pod is the one that the kubelet lists. A process in it can
    /// create further groups with names like those of other pods' containers.
    pub outermost_container: Option<String>,
    pub job: Option<SlurmJob>,
    pub unit: Option<String>,
    /// UID of the user that owns the slice or job.
    pub user: Option<u32>,
    /// Path of the group of the innermost meaningful part, for example `/kubepods.slice/…`; empty if there is
    /// none or if it is not valid text.
    pub path: String,
    /// Whether the path began with `..`, because it belongs to another cgroup namespace. `path` has the rest.
    pub relative: bool,
}

impl Membership {
    /// Returns whether the innermost container was started within another one.
    pub fn is_nested(&self) -> bool {
        self.container
            .as_ref()
            .is_some_and(|container| self.outermost_container.as_ref() != Some(&container.id))
    }
}

/// Parses the bytes of `/proc/PID/cgroup`.
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
        // Version 1 has a path per controller, and a batch system may manage only some of them.
        let rank = (found.innermost, preference(controllers));
        if best.as_ref().is_none_or(|(best, _)| rank > *best) {
            best = Some((rank, found));
        }
    }
    best.map(|(_, found)| found).unwrap_or_default()
}

/// Returns candidates for the absolute path of a group whose path began with `..`. The missing parents follow
/// from systemd's rule that `a-b.slice` is in `a.slice` (systemd.slice(5)), or are the kubelet's own. The
/// caller checks which candidate exists.
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

/// Returns the preference among lines with the same meaning. The preferred line has the path from which usage
/// is read.
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

/// Parses the path of one line.
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
    // Invalid text was replaced above, and `..` or `.` would lead elsewhere.
    let usable = own.iter().all(|part| part != ".." && part != "." && !part.contains('\u{fffd}'));
    if usable && !own.is_empty() {
        walk.found.path = format!("/{}", own.join("/"));
    }
    walk.found
}

/// State while a path is parsed inwards.
#[derive(Debug, Default)]
struct Walk {
    found: Membership,
    /// Index of the innermost meaningful part.
    end: Option<usize>,
    /// Whether a user may have created the following parts.
    below_user: bool,
    /// Whether Slurm has created the following parts.
    below_slurm: bool,
}

impl Walk {
    /// Adds the part below `parent`. Returns whether the part is meaningful.
    fn enter(&mut self, parent: &str, part: &str) -> bool {
        let slice = user(part, "user-", ".slice");
        // The user's own service manager.
        let manager = || user(part, "user@", ".service").filter(|_| self.found.user.is_none());
        if let Some(user) = slice.or_else(manager) {
            // A user slice within a container does not belong to this host.
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
            // Programs that a user starts by hand get scopes with temporary names; only services keep their
            // name.
            Innermost::User if service && !part.starts_with("user@") => {}
            Innermost::Nothing if (service || part.ends_with(".scope")) && part != "init.scope" => {}
            _ => return false,
        }
        found.unit = Some(part.to_owned());
        found.innermost = Innermost::Unit;
        true
    }
}

/// Returns the UID between two texts, as in `user-1000.slice`.
fn user(part: &str, before: &str, after: &str) -> Option<u32> {
    part.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// Parses the group of a pod: `kubepods-burstable-pod<uid>.slice`, `pod<uid>`, or
/// `kubepods-pod<uid>.slice:cri-containerd:<id>`, which containerd creates from the systemd form when it does
/// not use systemd.
fn pod(parent: &str, part: &str) -> Option<(String, Option<Container>)> {
    let (slice, scope) = part.split_once(".slice:").map_or((part, None), |(slice, rest)| (slice, Some(rest)));
    let slice = slice.strip_suffix(".slice").unwrap_or(slice);
    if part != slice {
        // The kubelet may have an outer slice of its own: `kubelet-kubepods-pod<uid>`.
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

/// Parses a pod's UID: a UUID, in which systemd's names replace `-` by `_`, or the hash of a static pod.
fn pod_uid(text: &str) -> Option<String> {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let others = text.len() - digits;
    let separators = text.bytes().filter(|byte| matches!(byte, b'-' | b'_')).count();
    ((16..=64).contains(&digits) && others == separators && separators <= 4).then(|| text.replace('_', "-"))
}

/// Parses the group of a container.
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

/// Parses `docker-<id>` and similar names. Monitors (conmon) have groups next to the container's.
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

/// Parses a job or step in Slurm's spelling: `42`, `batch`, or `0+1` of a heterogeneous job.
pub(crate) fn slurm_id(text: &str) -> Option<String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-' | b'_');
    ((1..=32).contains(&text.len()) && text.bytes().all(fits)).then(|| text.to_owned())
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
