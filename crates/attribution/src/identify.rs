//! Derives the owner of a process from all evidence. The functions are pure.

use super::cgroup::{Container, Innermost, Membership, SlurmJob};
use super::environ::SlurmEnvironment;
use super::names::PodNames;
use super::text::label;
use model::catalog::schema::KnownLabel;
use model::catalog::{OwnerInfo, OwnerKind};
use model::owners::Owner;

/// Evidence about the owner of a process.
#[derive(Clone, Debug, Default)]
pub struct OwnerEvidence {
    /// Owner parts from the control groups.
    pub membership: Membership,
    /// Slurm variables of the environment, which count only if the control groups show no job.
    pub environment: SlurmEnvironment,
    /// Names of the pod and the container.
    pub names: Option<PodNames>,
    /// Login name or UID of the user that owns the slice or job of the process, or else the process.
    pub user: Option<String>,
    /// Whether the control group exists, so that usage can be read from its path.
    pub group_exists: bool,
}

/// Returns the owner of the process.
pub fn owner(found: &OwnerEvidence) -> Owner {
    let Membership { innermost, pod_uid, container, job, unit, path, .. } = &found.membership;
    let said = &found.environment;
    let hinted = said.job.as_ref().filter(|_| super::environ::may_tell_job(&found.membership));
    let user = found.user.as_deref().unwrap_or("");
    let mut info = OwnerInfo { pod_uid: text(pod_uid.as_deref()), ..OwnerInfo::default() };
    if let Some(names) = &found.names {
        (info.namespace, info.pod) = (label(&names.namespace), label(&names.pod));
        if info.pod_uid.is_empty() {
            info.pod_uid = text(names.uid.as_deref());
        }
    }
    if let Some(Container { runtime, id }) = container {
        info.container_id = label(id);
        info.runtime = text(*runtime);
    }
    if let Some(job @ SlurmJob { id, step }) = job.as_ref().or(hinted) {
        (info.slurm_job, info.slurm_step) = (label(id), text(step.as_deref()));
        info.slurm_account = text(said.account_of(job));
    }
    info.unit = text(unit.as_deref());
    // UIDs within a container do not belong to the host.
    let of_host = found.membership.user.is_some() || *innermost < Innermost::Container;
    if of_host {
        info.user = label(user);
    }
    let (kind, id) = match innermost {
        Innermost::Pod => pod(found, &mut info),
        // The kubelet's logs name the container, so it belongs to a pod whose group is hidden from another
        // container.
        Innermost::Container
            if found.names.is_some() && pod_uid.is_none() && !found.membership.is_nested() =>
        {
            pod(found, &mut info)
        }
        Innermost::Container => (OwnerKind::Container, nested(&found.membership, &info)),
        Innermost::Job => (OwnerKind::Slurm, slurm(&info)),
        _ if hinted.is_some() => (OwnerKind::Slurm, slurm(&info)),
        // Two users can have services with the same name.
        Innermost::Unit if found.membership.user.is_some() => {
            (OwnerKind::Unit, format!("unit/{user}/{}", unit.as_deref().unwrap_or("")))
        }
        Innermost::Unit => (OwnerKind::Unit, format!("unit/{}", unit.as_deref().unwrap_or(""))),
        Innermost::User | Innermost::Nothing if !user.is_empty() => (OwnerKind::User, format!("user/{user}")),
        Innermost::User | Innermost::Nothing => return Owner::unknown(),
    };
    // A job that only the environment names shares Slurm's own group with other jobs, so it has no group of its
    // own.
    let own = found.group_exists && !(hinted.is_some() && job.is_none());
    let cgroup = if own { path.as_str() } else { "" };
    info.kind = kind.known().into();
    Owner { id: label(&id).into(), kind, info, cgroup: cgroup.into() }
}

/// Returns the id of a container that is no pod's own, below the pod or container that started it.
fn nested(membership: &Membership, info: &OwnerInfo) -> String {
    let runtime = if info.runtime.is_empty() { "container" } else { &info.runtime };
    // The id of a nested container is chosen by the outer container.
    let outer = match (&membership.pod_uid, &membership.outermost_container) {
        (Some(uid), _) => format!("pod/{uid}/"),
        (None, Some(outer)) if membership.is_nested() => format!("container/{outer:.12}/"),
        _ => String::new(),
    };
    format!("{outer}{runtime}/{}", info.container_id)
}

fn pod(found: &OwnerEvidence, info: &mut OwnerInfo) -> (OwnerKind, String) {
    let id = match &found.names {
        Some(PodNames { namespace, pod, container: Some(container), .. }) => {
            info.container = label(container);
            format!("pod/{namespace}/{pod}/{container}")
        }
        Some(PodNames { namespace, pod, .. }) => {
            let short = info.container_id.get(..12).unwrap_or(&info.container_id);
            format!("pod/{namespace}/{pod}/{short}")
        }
        None => format!("pod/{}/{}", info.pod_uid, info.container_id),
    };
    (OwnerKind::Pod, id.trim_end_matches('/').to_owned())
}

fn slurm(info: &OwnerInfo) -> String {
    match &*info.slurm_step {
        "" => format!("slurm/{}", info.slurm_job),
        step => format!("slurm/{}.{step}", info.slurm_job),
    }
}

fn text(text: Option<&str>) -> String {
    label(text.unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::membership;
    use super::super::text::MOST_BYTES;
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";
    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn found(path: &str) -> OwnerEvidence {
        let membership = membership(format!("0::{path}\n").as_bytes());
        OwnerEvidence {
            membership,
            user: Some("alice".into()),
            group_exists: true,
            ..OwnerEvidence::default()
        }
    }

    fn names(container: Option<&str>) -> Option<PodNames> {
        let container = container.map(str::to_owned);
        Some(PodNames { namespace: "ml".into(), pod: "trainer-0".into(), container, uid: None })
    }

    #[test]
    fn each_kind_has_its_identity_and_its_parts() {
        let pod_path = format!("/kubepods/pod{UID}/{ID}");
        let id = |found: OwnerEvidence| owner(&found).id.to_string();
        assert_eq!(
            id(OwnerEvidence { names: names(Some("main")), ..found(&pod_path) }),
            "pod/ml/trainer-0/main"
        );
        assert_eq!(
            id(OwnerEvidence { names: names(None), ..found(&pod_path) }),
            "pod/ml/trainer-0/9bca8d63d5fa"
        );
        assert_eq!(id(found(&pod_path)), format!("pod/{UID}/{ID}"));
        assert_eq!(id(found(&format!("/docker/{ID}"))), format!("docker/{ID}"));
        assert_eq!(id(found(&format!("/batch/{ID}"))), format!("container/{ID}"));
        assert_eq!(id(found("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0")), "slurm/42.0");
        assert_eq!(id(found("/system.slice/vllm.service")), "unit/vllm.service");
        let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service";
        assert_eq!(id(found(own)), "unit/alice/vllm.service");
        assert_eq!(id(found("/user.slice/user-1000.slice/session-1.scope")), "user/alice");
        assert_eq!(id(found("/")), "user/alice");
        assert_eq!(id(OwnerEvidence { user: None, ..found("/") }), "unknown");
    }

    #[test]
    fn a_pod_stays_known_and_a_containers_user_is_none_of_the_hosts() {
        let dind = owner(&OwnerEvidence {
            names: names(Some("main")),
            ..found(&format!("/kubepods/pod{UID}/{ID}/docker/{}", ID.replace('9', "8")))
        });
        assert_eq!(
            (dind.kind, &*dind.info.pod, &*dind.info.runtime),
            (OwnerKind::Container, "trainer-0", "docker")
        );
        assert_eq!((&*dind.info.user, &*dind.info.pod_uid), ("", UID));
        let rootless = found(&format!("/user.slice/user-1000.slice/user@1000.service/libpod-{ID}.scope"));
        assert_eq!(&*owner(&rootless).info.user, "alice");
    }

    #[test]
    fn a_container_that_the_kubelets_logs_name_is_a_pods() {
        let beside = OwnerEvidence {
            names: names(Some("main")),
            group_exists: false,
            ..found(&format!("/../crio-{ID}.scope"))
        };
        let beside = owner(&beside);
        assert_eq!((beside.kind, &*beside.id), (OwnerKind::Pod, "pod/ml/trainer-0/main"));
        assert_eq!(&*beside.cgroup, "");
    }

    #[test]
    fn the_environment_speaks_only_where_the_group_is_silent() {
        let job = Some(SlurmJob { id: "42".into(), step: None });
        let environment = SlurmEnvironment { job, account: Some("vision".into()) };
        let with = |path| owner(&OwnerEvidence { environment: environment.clone(), ..found(path) });
        let in_slurmd = with("/system.slice/slurmd.service");
        assert_eq!((&*in_slurmd.id, &*in_slurmd.cgroup), ("slurm/42", ""));
        assert_eq!(&*in_slurmd.info.slurm_account, "vision");
        let session = with("/user.slice/user-1000.slice/session-1.scope");
        assert_eq!((&*session.id, &*session.info.slurm_job), ("user/alice", ""));
        assert_eq!(&*session.info.slurm_account, "");
        let in_group = with("/system.slice/slurmstepd.scope/job_42/step_1/user/task_0");
        assert_eq!((&*in_group.id, &*in_group.info.slurm_account), ("slurm/42.1", "vision"));
        let other = with("/system.slice/slurmstepd.scope/job_43/step_1/user/task_0");
        assert_eq!((&*other.id, &*other.info.slurm_account), ("slurm/43.1", ""), "the group's word counts");
    }

    proptest! {
        #[test]
        fn whatever_is_found_the_labels_are_bounded(
            path in "(/(kubepods|docker|slurm|job_[a-z\n]{1,5}|[a-f0-9]{64}|\\PC{0,40}(.service|.scope)?)){0,8}",
            user in prop::option::of("\\PC{0,300}"), pod in "\\PC{0,300}", container in prop::option::of(".{0,300}"),
        ) {
            let names = Some(PodNames { namespace: pod.clone(), pod, container, uid: None });
            let owner = owner(&OwnerEvidence { names, user, ..found(&path) });
            let i = &owner.info;
            let labels = [&owner.id.to_string(), &i.kind, &i.namespace, &i.pod, &i.pod_uid, &i.container, &i.container_id,
                &i.runtime, &i.slurm_job, &i.slurm_step, &i.slurm_account, &i.unit, &i.user];
            for label in labels {
                prop_assert!(label.len() <= MOST_BYTES && !label.chars().any(char::is_control), "{:?}", label);
            }
        }
    }
}
