//! Names of pods and containers from the paths of the kubelet's logs, which combine them with the ids in a
//! process's control group. This needs no API and no permission except to list two folders:
//!
//! - `/var/log/containers/<pod>_<namespace>_<container>-<container id>.log`
//! - `/var/log/pods/<namespace>_<pod>_<pod uid>/<container>/`
//!
//! (Kubernetes, `pkg/kubelet/kuberuntime/legacy.go` and `helpers.go`.) None of the names can contain a `_`.

use std::fs;

use host::Host;

/// Maximum number of entries read of a folder. A node has hundreds of pods and up to tens of thousands of old
/// logs.
const MOST_ENTRIES: usize = 50_000;

/// Names of a pod and, if known, of one of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNames {
    /// Namespace of the pod.
    pub namespace: String,
    pub pod: String,
    pub container: Option<String>,
    /// UID of the pod, if the path has it.
    pub uid: Option<String>,
}

/// Finds the names of a pod (by its UID) and of a container (by its id). The pod takes precedence: the name of
/// a container is used only if its log belongs to the same pod, or if the pod has no folder.
pub fn look(host: &Host, pod_uid: Option<&str>, container_id: Option<&str>) -> Option<PodNames> {
    let of_container = container_id.and_then(|id| {
        let end = format!("-{id}.log");
        entries(host, "/var/log/containers").find_map(|name| container_log(&name, &end))
    });
    let of_pod = || {
        let uid = pod_uid?;
        let folder = entries(host, "/var/log/pods").find(|name| pod_folder(name, uid).is_some())?;
        let mut names = pod_folder(&folder, uid)?;
        let mut containers = entries(host, &format!("/var/log/pods/{folder}"));
        // With several containers it is unknown which one has the process.
        names.container = containers.next().filter(|_| containers.next().is_none());
        Some(names)
    };
    let Some(mut names) = of_pod() else { return of_container };
    if let Some(log) = of_container
        && (&log.namespace, &log.pod) == (&names.namespace, &names.pod)
    {
        names.container = log.container;
    }
    Some(names)
}

fn entries(host: &Host, folder: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(host.path(folder)).into_iter().flatten().take(MOST_ENTRIES).flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Parses `<pod>_<namespace>_<container>-<id>.log`. `end` is the text after the name of the container.
fn container_log(name: &str, end: &str) -> Option<PodNames> {
    let [pod, namespace, container] = parts(name.strip_suffix(end)?)?;
    Some(PodNames { namespace, pod, container: Some(container), uid: None })
}

/// Parses the folder name `<namespace>_<pod>_<uid>`.
fn pod_folder(name: &str, uid: &str) -> Option<PodNames> {
    let [namespace, pod] = parts(name.strip_suffix(uid)?.strip_suffix('_')?)?;
    Some(PodNames { namespace, pod, container: None, uid: Some(uid.to_owned()) })
}

fn parts<const N: usize>(name: &str) -> Option<[String; N]> {
    name.split('_').map(str::to_owned).collect::<Vec<_>>().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

    #[test]
    fn names_come_from_the_containers_log_and_else_from_the_pods_folder() {
        let root = tempfile::tempdir().unwrap();
        let id = "a".repeat(64);
        let folder = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
        folder("var/log/containers");
        folder(&format!("var/log/pods/ml_trainer-0_{UID}/main"));
        let log = format!("var/log/containers/web-7d9c_shop_nginx-{id}.log");
        fs::write(root.path().join(log), "").unwrap();
        let host = Host::new(root.path());
        let named = |uid, id| look(&host, uid, id).map(|n| (n.namespace, n.pod, n.container));
        let text = |text: &str| text.to_owned();
        let nginx = (text("shop"), text("web-7d9c"), Some(text("nginx")));
        assert_eq!(named(None, Some(&id)), Some(nginx));
        let main = (text("ml"), text("trainer-0"), Some(text("main")));
        assert_eq!(named(Some(UID), Some("b")), Some(main));
        folder(&format!("var/log/pods/ml_trainer-0_{UID}/sidecar"));
        assert_eq!(named(Some(UID), None), Some((text("ml"), text("trainer-0"), None)));
        assert_eq!(named(Some("1234"), None), None);
        assert_eq!(named(Some("1234"), Some(&id)).unwrap().1, "web-7d9c");
        let borrowed = named(Some(UID), Some(&id));
        assert_eq!(borrowed, Some((text("ml"), text("trainer-0"), None)), "the log is another pod's");
        assert_eq!(look(&Host::new("/nonexistent"), Some(UID), Some(&id)), None);
    }

    #[test]
    fn what_is_no_name_of_the_kubelets_is_none() {
        assert_eq!(container_log("a_b_c_d-x.log", "-x.log"), None);
        assert_eq!(container_log("-x.log", "-x.log"), None);
        assert_eq!(pod_folder("_x", "x"), None);
    }
}
