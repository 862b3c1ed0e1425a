//! Devices that the kubelet has assigned, by resource and pod, read every 10 s over the pod-resources socket. While the
//! kubelet does not answer, the interval grows. No other thread waits for this collector. Names in the kubelet's
//! responses are cut to a bounded length.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::owners::claims::DRIVER;
use super::{Context, Turns, lifetime};
use attribution::kubelet::api::{
    AllocatableResponse, ClaimResource, ContainerDevices, DynamicResource, ListResponse,
};
use attribution::kubelet::{self as pod_resources, KubeletAnswer, KubeletFailure};
use attribution::pods::{Claim, Claims, DynamicClaim, KubeletStatus, Pods, device_id};
use host::Host;
use host::stop::Stop;
use model::catalog::schema::KnownLabel;
use model::catalog::{self as m, CollectorName, KubeletError, Node, Resource};
use model::clock::{Mono, nanos};
use model::sample::{Batch, Rows};
use model::text::clean;
use settings::Config;

/// Time between two requests.
const EVERY: Duration = Duration::from_secs(10);
/// Maximum pause while the kubelet does not answer, in intervals.
const MOST_PAUSED: u32 = 6;
/// Time between two checks for the stop signal.
const LOOK: Duration = Duration::from_millis(100);
/// Time after which the last answer expires.
const FORGOTTEN: Duration = Duration::from_secs(35);
/// Time in which a kubelet without a socket may be restarting. Pods keep their devices during a restart.
const REPLACED: Duration = Duration::from_secs(600);

/// Maximum length of a name in bytes.
const MAX_NAME: usize = 128;
/// Maximum number of resources with series.
const MAX_RESOURCES: usize = 64;
/// Maximum number of claims, far above the number of containers on a node.
const MAX_CLAIMS: usize = 4096;

pub(crate) fn run(context: Context, pods: Arc<Pods>, runtime: Runtime) {
    let configured = context.config().owners.kubelet_socket.clone();
    let is_relayed = configured != Config::default().owners.kubelet_socket;
    let Some(socket) = configured else {
        pods.set_status(KubeletStatus::Off);
        return context.switched_off(CollectorName::Kubelet, "owners.kubelet_socket");
    };
    let socket = Host::new(&context.config().host.root).path(socket);
    let mut collector = KubeletCollector {
        is_relayed,
        context: &context,
        pods,
        runtime,
        socket,
        errors: [0; KubeletError::ALL.len()],
        answer: None,
        answered: None,
        failed: 0,
        unavailable: None,
        took: Duration::ZERO,
    };
    collector.run();
}

/// Returns the time between two requests.
fn every(config: &Config) -> Duration {
    EVERY.min(config.sampler.slow_interval)
}

struct KubeletCollector<'a> {
    context: &'a Context,
    pods: Arc<Pods>,
    runtime: Runtime,
    socket: PathBuf,
    /// Whether the socket is not at the kubelet's default path. A missing socket then does not show that there is no
    /// kubelet, and a GPU may be assigned.
    is_relayed: bool,
    errors: [u64; KubeletError::ALL.len()],
    /// Last answer and its time.
    answer: Option<(KubeletAnswer, Mono)>,
    answered: Option<Mono>,
    /// Number of failed requests in a row.
    failed: u32,
    unavailable: Option<String>,
    /// Duration of the last request.
    took: Duration,
}

impl KubeletCollector<'_> {
    fn run(&mut self) {
        let mut turns = Turns::new(self.context);
        let mut again = Mono::default();
        while !self.context.stop.stopped() {
            let now = Mono::now();
            if turns.is_due(every) {
                if now >= again {
                    self.visit();
                    self.took = Mono::now().since(now);
                    again = Mono::now() + pause(self.failed, every(&turns.config));
                }
                self.publish();
            }
            turns.wait_until(turns.next());
        }
    }

    /// Requests the assigned devices and handles the answer.
    fn visit(&mut self) {
        let outcome = match pod_resources::look(&self.socket) {
            Ok(false) if self.is_relayed => Err(KubeletFailure {
                error: Some(KubeletError::NoSocket),
                text: "there is no socket; does its relay run?".into(),
            }),
            Ok(false) => {
                (self.answer, self.failed) = (None, 0);
                self.pods.set_claims(Claims::default());
                self.pods.set_status(absent(self.answered, Mono::now()));
                return self.set_unavailable(None);
            }
            Ok(true) => {
                let (socket, deadline) = (&self.socket, self.context.config().owners.read_timeout);
                let stop = &self.context.stop;
                let asked = self.runtime.block_on(async {
                    tokio::select! {
                        answer = pod_resources::ask(socket, deadline) => Some(answer),
                        () = stopped(stop) => None,
                    }
                });
                let Some(answer) = asked else { return };
                answer
            }
            Err(failure) => Err(failure),
        };
        match outcome {
            Ok(answer) => {
                self.failed = 0;
                let trouble = answer.allocatable.as_ref().err().and_then(|failure| self.count(failure));
                self.set_unavailable(trouble);
                let now = Mono::now();
                self.pods.set_claims(Claims { listed_at: Some(now), all: claims(&answer.pods) });
                self.pods.set_status(KubeletStatus::Answers);
                self.answer = Some((answer, now));
                self.answered = Some(now);
            }
            Err(failure) => {
                self.failed = self.failed.saturating_add(1);
                // A server that does not implement this request counts as failed, because every kubelet implements it.
                let known =
                    KubeletFailure { error: failure.error.or(Some(KubeletError::Refused)), ..failure };
                let text = self.count(&known).unwrap_or(known.text);
                self.pods.set_status(KubeletStatus::Silent(text.clone()));
                self.set_unavailable(Some(text));
            }
        }
    }

    /// Counts a failure and returns its text; `None` if it is not an error.
    fn count(&mut self, failure: &KubeletFailure) -> Option<String> {
        let error = failure.error?;
        self.errors[error as usize] += 1;
        Some(format!("{}: {}", self.socket.display(), failure.text))
    }

    fn set_unavailable(&mut self, why: Option<String>) {
        if self.unavailable != why {
            if let Some(why) = &why {
                tracing::warn!(error = %why, "failed to read the devices that the kubelet has assigned");
            }
            self.context.unavailable(CollectorName::Kubelet, why.clone());
            self.unavailable = why;
        }
    }

    fn publish(&mut self) {
        let now = Mono::now();
        if self
            .answer
            .as_ref()
            .is_some_and(|(_, at)| now.since(*at) > FORGOTTEN.max(every(&self.context.config()) * 3))
        {
            self.answer = None;
            self.pods.set_claims(Claims::default());
        }
        let mut rows = Rows::default();
        for (error, count) in KubeletError::ALL.iter().zip(self.errors) {
            let _ =
                rows.entity(&Node {}).record(&m::gpu_exporter_kubelet_errors_total, (*error,), count as f64);
        }
        if let Some((answer, _)) = &self.answer {
            device_rows(&answer.pods, answer.allocatable.as_ref().ok(), &mut rows);
        }
        let lifetime =
            lifetime(every(&self.context.config())) + self.context.config().owners.read_timeout * 3;
        self.context.inbox.batch(Batch {
            nanos: nanos(self.took),
            // The absence of a kubelet counts as an answer.
            answered: self.failed == 0,
            ..Batch::of_node(CollectorName::Kubelet, now, Some(lifetime), rows)
        });
    }
}

/// Resolves when the daemon stops. Polled only during a request.
async fn stopped(stop: &Stop) {
    while !stop.stopped() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns the status without a socket, depending on the time of the last answer.
fn absent(answered: Option<Mono>, now: Mono) -> KubeletStatus {
    match answered {
        Some(at) if now.since(at) <= REPLACED => KubeletStatus::Silent("its socket is gone".into()),
        _ => KubeletStatus::Absent,
    }
}

/// Returns the pause after this number of failures in a row.
fn pause(failed: u32, every: Duration) -> Duration {
    match failed {
        0 => Duration::ZERO,
        n => (every * 2u32.saturating_pow(n - 1)).min(every * MOST_PAUSED),
    }
}

/// Returns whether a device-plugin resource is NVIDIA's, such as `nvidia.com/gpu`, `nvidia.com/gpu.shared` or
/// `nvidia.com/mig-1g.10gb`.
fn is_ours(resource: &str) -> bool {
    resource.starts_with("nvidia.com/")
}

/// Returns the assignments of NVIDIA devices to containers.
fn claims(list: &ListResponse) -> Vec<Claim> {
    let mut claims = Vec::new();
    for pod in &list.pod_resources {
        let (namespace, name) = (text(&pod.namespace), text(&pod.name));
        for container in &pod.containers {
            let container_name = text(&container.name);
            let mut add = |resource: &str, devices: Vec<Arc<str>>, dynamic: Option<DynamicClaim>| {
                if claims.len() < MAX_CLAIMS {
                    claims.push(Claim {
                        namespace: Arc::clone(&namespace),
                        pod: Arc::clone(&name),
                        container: Arc::clone(&container_name),
                        resource: text(resource),
                        devices,
                        dynamic,
                    });
                }
            };
            for devices in container.devices.iter().filter(|devices| is_ours(&devices.resource_name)) {
                let ids: Vec<_> = devices.device_ids.iter().map(|id| text(device_id(id))).collect();
                if !ids.is_empty() {
                    add(&devices.resource_name, ids, None);
                }
            }
            for dynamic in &container.dynamic_resources {
                for resource in &dynamic.claim_resources {
                    for claim in dynamic_claims(dynamic, resource) {
                        let device = (*claim.driver == *DRIVER).then(|| Arc::clone(&claim.device));
                        add(&dynamic.claim_name, device.into_iter().collect(), Some(claim));
                    }
                }
            }
        }
    }
    claims
}

/// Returns the devices of a dynamic claim. Before Kubernetes 1.31 only the CDI name identifies them, which is known
/// only for NVIDIA's driver.
fn dynamic_claims(dynamic: &DynamicResource, resource: &ClaimResource) -> Vec<DynamicClaim> {
    let claim = |driver: &str, device: &str, uid: &str| DynamicClaim {
        claim: text(&dynamic.claim_name),
        namespace: text(&dynamic.claim_namespace),
        driver: text(driver),
        pool: text(&resource.pool_name),
        device: text(device),
        uid: text(uid),
    };
    let names = resource.cdi_devices.iter().filter_map(|device| device.name.split_once('='));
    let mut ours = names.filter(|(kind, _)| kind.contains(DRIVER) || *kind == "nvidia.com/gpu");
    let (driver, device) = (&resource.driver_name, &resource.device_name);
    if driver.is_empty() && device.is_empty() {
        return ours
            .map(|(_, name)| {
                let (uid, device) = of_claim(name).unwrap_or(("", name));
                claim(DRIVER, device, uid)
            })
            .collect();
    }
    let uid = ours.find_map(|(_, name)| name.strip_suffix(device.as_str())?.strip_suffix('-'));
    vec![claim(driver, device, uid.unwrap_or(""))]
}

/// Splits a name such as `<uid>-gpu-0` into the UID of the claim and the device.
fn of_claim(name: &str) -> Option<(&str, &str)> {
    let at = name.find("-gpu-").filter(|at| *at > 0)?;
    Some((&name[..at], &name[at + 1..]))
}

/// Adds rows with the number of devices by resource.
fn device_rows(list: &ListResponse, allocatable: Option<&AllocatableResponse>, rows: &mut Rows) {
    let containers = || list.pod_resources.iter().flat_map(|pod| &pod.containers);
    let mut given = count(containers().flat_map(|container| &container.devices));
    let dynamic = containers().flat_map(|container| &container.dynamic_resources);
    let all = dynamic.flat_map(|of| of.claim_resources.iter().flat_map(|one| dynamic_claims(of, one)));
    let devices: BTreeSet<Arc<str>> =
        all.filter(|claim| *claim.driver == *DRIVER).map(|claim| claim.device).collect();
    if !devices.is_empty() {
        given.insert(DRIVER.into(), devices.len());
    }
    let all = allocatable.map(|answer| count(&answer.devices)).unwrap_or_default();
    let mut of = rows.entity(&Node {});
    for (resource, devices) in all.iter().take(MAX_RESOURCES) {
        // A resource without assignments has the value 0.
        given.entry(Arc::clone(resource)).or_insert(0);
        let _ = of.record(
            &m::gpu_kubelet_allocatable_devices,
            (Resource(Arc::clone(resource)),),
            *devices as f64,
        );
    }
    for (resource, devices) in given.iter().take(MAX_RESOURCES) {
        let _ =
            of.record(&m::gpu_kubelet_allocated_devices, (Resource(Arc::clone(resource)),), *devices as f64);
    }
}

/// Counts distinct devices by resource. A device that several containers of a pod share counts once.
fn count<'a>(devices: impl IntoIterator<Item = &'a ContainerDevices>) -> BTreeMap<Arc<str>, usize> {
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for devices in devices.into_iter().filter(|devices| is_ours(&devices.resource_name)) {
        ids.entry(&devices.resource_name).or_default().extend(devices.device_ids.iter().map(String::as_str));
    }
    ids.into_iter().map(|(resource, ids)| (text(resource), ids.len())).collect()
}

fn text(text: &str) -> Arc<str> {
    clean(text, MAX_NAME).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use attribution::kubelet::api::{CdiDevice, ContainerResources, PodResources};
    use proptest::prelude::*;

    #[test]
    fn one_whose_socket_went_away_lately_may_come_back() {
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        assert_eq!(absent(None, at(1)), KubeletStatus::Absent);
        assert!(matches!(absent(Some(at(1)), at(600)), KubeletStatus::Silent(_)));
        assert_eq!(absent(Some(at(1)), at(602)), KubeletStatus::Absent);
    }

    #[test]
    fn a_kubelet_that_does_not_answer_is_asked_ever_less_often() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 40].map(|n| pause(n, EVERY).as_secs()).into();
        assert_eq!(pauses, [0, 10, 20, 40, 60, 60]);
    }

    fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        ContainerDevices { resource_name: resource.into(), device_ids }
    }

    fn list(containers: Vec<ContainerResources>) -> ListResponse {
        let pod = PodResources { name: "train-0".into(), namespace: "ml".into(), containers };
        ListResponse { pod_resources: vec![pod] }
    }

    fn container(devices: Vec<ContainerDevices>) -> ContainerResources {
        ContainerResources { name: "main".into(), devices, dynamic_resources: Vec::new() }
    }

    fn rows_of(list: &ListResponse, allocatable: Option<&AllocatableResponse>) -> Vec<String> {
        let mut rows = Rows::default();
        device_rows(list, allocatable, &mut rows);
        assert!(rows.conform());
        let row = |row: &model::sample::Row| {
            let def = m::def(row.metric).unwrap();
            format!("{} {} {}", def.name, row.labels[0].text(&def.labels[0]), row.value)
        };
        rows.groups().iter().flat_map(|(_, rows)| rows).map(row).collect()
    }

    #[test]
    fn devices_are_counted_by_resource() {
        let list = list(vec![
            container(vec![devices("nvidia.com/gpu", &["GPU-1"]), devices("intel.com/qat", &["q"])]),
            container(vec![
                devices("nvidia.com/gpu", &["GPU-1"]),
                devices("nvidia.com/gpu.shared", &["GPU-2::0", "GPU-2::1"]),
            ]),
        ]);
        let allocatable = AllocatableResponse {
            devices: vec![
                devices("nvidia.com/gpu", &["GPU-1"]),
                devices("nvidia.com/gpu", &["GPU-3"]),
                devices("nvidia.com/gpu.shared", &["GPU-2::0", "GPU-2::1", "GPU-2::2", "GPU-2::3"]),
                devices("nvidia.com/mig-1g.10gb", &["MIG-1", "MIG-2"]),
                devices("intel.com/qat", &["q"]),
            ],
        };
        assert_eq!(
            rows_of(&list, Some(&allocatable)),
            [
                "gpu_kubelet_allocatable_devices nvidia.com/gpu 2",
                "gpu_kubelet_allocatable_devices nvidia.com/gpu.shared 4",
                "gpu_kubelet_allocatable_devices nvidia.com/mig-1g.10gb 2",
                "gpu_kubelet_allocated_devices nvidia.com/gpu 1",
                "gpu_kubelet_allocated_devices nvidia.com/gpu.shared 2",
                "gpu_kubelet_allocated_devices nvidia.com/mig-1g.10gb 0",
            ]
        );
        assert_eq!(rows_of(&list, None).len(), 2, "an old kubelet lists only what it has given out");
        let claims = claims(&list);
        assert_eq!(claims.len(), 3);
        assert_eq!(
            (&*claims[0].namespace, &*claims[0].pod, &*claims[0].container),
            ("ml", "train-0", "main")
        );
        assert_eq!(claims[2].devices, ["GPU-2".into(), "GPU-2".into()]);
    }

    #[test]
    fn dynamic_claims_name_the_gpus_of_nvidias_driver() {
        let of = |driver: &str, device: &str, cdi: &str| ClaimResource {
            cdi_devices: vec![CdiDevice { name: cdi.into() }],
            driver_name: driver.into(),
            pool_name: "node7".into(),
            device_name: device.into(),
            share_id: None,
        };
        let dynamic = DynamicResource {
            claim_name: "gpus".into(),
            claim_namespace: "ml".into(),
            claim_resources: vec![
                of("gpu.nvidia.com", "gpu-1", "k8s.gpu.nvidia.com/claim=77-ab-gpu-1"),
                of("compute-domain.nvidia.com", "channel-0", "k8s.compute-domain.nvidia.com/channel=0"),
                of("", "", "k8s.gpu.nvidia.com/claim=0a1b-gpu-2"),
                of("", "", "vendor.com/net=x"),
            ],
        };
        let list =
            list(vec![ContainerResources { dynamic_resources: vec![dynamic], ..container(Vec::new()) }]);
        let claims = claims(&list);
        let seen: Vec<_> = claims
            .iter()
            .map(|claim| {
                let of = claim.dynamic.as_ref().unwrap();
                assert_eq!(
                    (&*claim.resource, &*of.claim, &*of.namespace, &*of.pool),
                    ("gpus", "gpus", "ml", "node7")
                );
                (claim.devices.len(), &*of.driver, &*of.device, &*of.uid)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (1, "gpu.nvidia.com", "gpu-1", "77-ab"),
                (0, "compute-domain.nvidia.com", "channel-0", ""),
                (1, "gpu.nvidia.com", "gpu-2", "0a1b"),
            ],
            "of another driver no device is NVML's"
        );
        assert_eq!(rows_of(&list, None), ["gpu_kubelet_allocated_devices gpu.nvidia.com 2"]);
    }

    proptest! {
        #[test]
        fn hostile_names_are_bounded(name in "\\PC{0,300}|[\\n\"\\\\]{0,9}", ids in prop::collection::vec(".{0,200}", 0..5)) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let mut list = list(vec![container(vec![devices(&format!("nvidia.com/{name}"), &ids)])]);
            list.pod_resources[0].name = name;
            rows_of(&list, None);
            for claim in claims(&list) {
                for text in claim.devices.iter().chain([&claim.pod, &claim.resource]) {
                    prop_assert!(text.len() <= MAX_NAME && !text.chars().any(char::is_control));
                }
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(list) = <ListResponse as prost::Message>::decode(&bytes[..]) {
                rows_of(&list, None);
                claims(&list);
            }
        }
    }
}
