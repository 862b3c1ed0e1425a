//! Labels of the page's series, which identify the entity, the driver and the pod that the GPU is allocated to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use model::catalog::{self as m, AllocatedGpu, Subject};
use model::snapshot::{Family, Snapshot};

use super::entities::{Entities, PageEntity};
use super::number;
use super::values::{family, info, number as value_of};
use super::{PageConfig, PageLabel, values};
use crate::fields::{FieldFormat, FieldSource, Level};
use crate::list::Column;

/// Labels of one series, and the text that determines its order within the family in dcgm-exporter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SampleLabels {
    pub key: String,
    pub text: String,
}

/// Labels of all entities of one page.
pub(crate) struct Labels<'a> {
    entities: &'a Entities,
    /// Labels of series whose family adds none, which is the usual case.
    plain: BTreeMap<PageEntity, Vec<SampleLabels>>,
    /// Label with the host name, if it is enabled.
    hostname: Option<PageLabel<'a>>,
    /// Labels with the PCI address and model of every GPU.
    boards: Vec<Vec<PageLabel<'a>>>,
    /// Labels from fields, by entity. A family's own labels are inserted among them.
    fields: BTreeMap<PageEntity, Vec<PageLabel<'a>>>,
    /// Attribute sets of the owners of a GPU or GPU instance; empty if it has no owner.
    owners: BTreeMap<(usize, Option<usize>), Vec<Vec<PageLabel<'a>>>>,
}

impl<'a> Labels<'a> {
    pub fn new(config: &'a PageConfig, snapshot: &'a Snapshot, entities: &'a Entities) -> Labels<'a> {
        let named = !config.hostname.is_empty() && !config.hostname_label.is_empty();
        let hostname = named.then(|| PageLabel::new(&*config.hostname_label, &*config.hostname));
        let boards = entities.0.iter().map(|gpu| {
            let identity = |label| snapshot.info(&m::gpu_info, &gpu.gpu, label).unwrap_or("");
            vec![
                PageLabel::new("pci_bus_id", pci_bus_id(identity("pci_address"))),
                PageLabel::new("device", format!("nvidia{}", gpu.gpu.gpu)),
                PageLabel::new("modelName", identity("model")),
            ]
        });
        let mut labels = Labels {
            entities,
            plain: BTreeMap::new(),
            hostname,
            boards: boards.collect(),
            fields: BTreeMap::new(),
            owners: BTreeMap::new(),
        };
        for column in &config.fields.labels {
            labels.add_field(config, column, snapshot);
        }
        labels.fields.values_mut().for_each(|list| list.sort());
        labels.add_owners(config, snapshot);
        let all = LEVELS.into_iter().flat_map(|level| entities.at(level, false));
        labels.plain = all.map(|entity| (entity, labels.with(entity, &[], &[]))).collect();
        labels
    }

    /// Adds the label of a field to every entity.
    fn add_field(&mut self, config: &PageConfig, column: &'a Column, snapshot: &'a Snapshot) {
        for level in LEVELS {
            for entity in self.entities.at(level, false) {
                let Some(text) = self.field_text(config, column, snapshot, entity) else { continue };
                let labels = self.fields.entry(entity).or_default();
                if labels.iter().all(|label| label.name != column.name) {
                    labels.push(PageLabel::new(&*column.name, text));
                }
            }
        }
    }

    fn field_text(
        &self,
        config: &PageConfig,
        column: &Column,
        snapshot: &'a Snapshot,
        entity: PageEntity,
    ) -> Option<Cow<'a, str>> {
        let field = column.field;
        if let FieldSource::Info { metric, label, .. } = field.source
            && field.format == FieldFormat::Text
        {
            let family = family(snapshot, metric)?;
            let subjects = self.entities.subjects(
                PageEntity { instance: None, compute: None, ..entity },
                Level::Board,
                false,
            );
            let series = family.series.iter().find(|series| subjects.contains(&series.subject.subject))?;
            let text = info(family, series, label)?;
            return Some(if label == "pci_address" { pci_bus_id(text).into() } else { text.into() });
        }
        let samples = values::samples(field, config.corrected(), snapshot, self.entities);
        let of_gpu = |one: &&super::PageSample| {
            one.entity == entity || one.entity == PageEntity { instance: None, compute: None, ..entity }
        };
        let sample = samples.iter().find(of_gpu)?;
        number::text(sample.value, field.format).map(Cow::from)
    }

    /// Adds the labels of pods, claims and jobs.
    fn add_owners(&mut self, config: &PageConfig, snapshot: &'a Snapshot) {
        if !config.pods && !config.jobs && !config.job_files {
            return;
        }
        let allocations = family(snapshot, m::gpu_allocation_info.id());
        let claims = family(snapshot, m::gpu_claim_info.id()).filter(|_| config.pods);
        let files = family(snapshot, m::gpu_hpc_job_info.id()).filter(|_| config.job_files);
        let uids = if config.pod_uids { pod_uids(snapshot) } else { BTreeMap::new() };
        for (gpu, entity) in self.entities.0.iter().enumerate() {
            let parts = (0..entity.instances.len()).map(Some);
            for instance in std::iter::once(None).chain(parts) {
                let id = instance.map(|at| entity.instances[at].id);
                let given = Subject::AllocatedGpu(AllocatedGpu::new(&entity.gpu, id));
                let mut pods = Vec::new();
                if config.pods {
                    pods.extend(of_subject(allocations, &given, &PODS).filter(|pod| !pod.is_empty()));
                }
                let claims: Vec<ClaimLabels<'a>> = claims_of(claims, &given).collect();
                let mut owners = with_claims(pods, &claims);
                if !config.corrected() {
                    keep_one_without_claim(&mut owners);
                }
                for owner in &mut owners {
                    let uid = uids.get(&pod_name(owner)).copied().flatten();
                    owner.extend(uid.map(|uid| PageLabel::new("pod_uid", uid)));
                }
                let environments = allocations.filter(|_| config.jobs);
                let mut jobs: Vec<Vec<PageLabel<'a>>> = of_subject(environments, &given, &JOB).collect();
                jobs.extend(of_subject(files, &given, &JOB_FILE));
                jobs.retain(|job| !job.is_empty());
                owners = crossed(owners, jobs);
                owners.iter_mut().for_each(|owner| owner.sort());
                if !owners.is_empty() {
                    self.owners.insert((gpu, instance), owners);
                }
            }
        }
    }

    /// Returns the label sets of a sample, one per owner of the entity.
    pub fn for_sample(
        &self,
        entity: PageEntity,
        own: &[PageLabel<'_>],
        attributes: &[PageLabel<'_>],
    ) -> Cow<'_, [SampleLabels]> {
        match self.plain.get(&entity) {
            Some(plain) if own.is_empty() && attributes.is_empty() => Cow::Borrowed(plain),
            _ => Cow::Owned(self.with(entity, own, attributes)),
        }
    }

    fn with(
        &self,
        entity: PageEntity,
        own: &[PageLabel<'_>],
        attributes: &[PageLabel<'_>],
    ) -> Vec<SampleLabels> {
        let gpu = &self.entities.0[entity.gpu];
        let index = gpu.gpu.gpu.to_string();
        let mut labels: Vec<PageLabel<'_>> =
            vec![PageLabel::new("gpu", &*index), PageLabel::new("UUID", &*gpu.gpu.uuid)];
        labels.extend(self.boards[entity.gpu].iter().cloned());
        if let Some(instance) = entity.instance.map(|at| &gpu.instances[at]) {
            labels.push(PageLabel::new("GPU_I_PROFILE", &*instance.profile));
            labels.push(PageLabel::new("GPU_I_ID", instance.id.to_string()));
            if let Some(compute) = entity.compute {
                labels.push(PageLabel::new("GPU_CI_ID", compute.to_string()));
            }
        }
        labels.extend(self.hostname.clone());
        let mut block: Vec<PageLabel<'_>> = self.fields.get(&entity).cloned().unwrap_or_default();
        block.extend(own.iter().cloned());
        block.sort();
        labels.extend(block);
        let no_owner = [Vec::new()];
        let owners = self.owners.get(&(entity.gpu, entity.instance)).map_or(&no_owner[..], |owners| owners);
        let with = |owner: &Vec<PageLabel<'a>>| {
            let mut labels = labels.clone();
            let mut attributes: Vec<PageLabel<'_>> = attributes.iter().chain(owner).cloned().collect();
            attributes.sort();
            labels.extend(attributes);
            // A list may name a label that the entity already has.
            let mut seen: Vec<Cow<'_, str>> = Vec::new();
            labels.retain(|label| {
                let new = !seen.contains(&label.name);
                seen.push(label.name.clone());
                new
            });
            SampleLabels { key: key(&labels), text: text(&labels) }
        };
        owners.iter().map(with).collect()
    }
}

/// Levels for the three kinds of entities.
const LEVELS: [Level; 3] = [Level::Whole, Level::GpuInstance, Level::ComputeInstance];

/// Formats labels as `{a="b",c="d"}`.
fn text(labels: &[PageLabel<'_>]) -> String {
    let mut out = String::from("{");
    for (at, label) in labels.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&label.name);
        out.push_str("=\"");
        number::escape(&mut out, &label.value, true);
        out.push('"');
    }
    out.push('}');
    out
}

/// Returns the labels by name with the lengths of names and values. dcgm-exporter orders samples by this text.
fn key(labels: &[PageLabel<'_>]) -> String {
    let mut sorted: Vec<&PageLabel<'_>> = labels.iter().collect();
    sorted.sort();
    let part = |label: &&PageLabel<'_>| {
        format!("{}:{}={}:{};", label.name.len(), label.name, label.value.len(), label.value)
    };
    sorted.iter().map(part).collect()
}

/// Converts a PCI address such as `0000:1a:00.0` to NVML's form, with a domain of eight digits and upper case.
fn pci_bus_id(address: &str) -> String {
    match address.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_uppercase(),
        None => String::new(),
    }
}

/// Pairs of our label and dcgm-exporter's label.
const PODS: [(&str, &str); 3] = [("container", "container"), ("namespace", "namespace"), ("pod", "pod")];
const JOB: [(&str, &str); 1] = [("slurm_job", "hpc_job")];
const JOB_FILE: [(&str, &str); 1] = [("hpc_job", "hpc_job")];
const CLAIMS: [(&str, &str); 7] = [
    ("claim", "dra_claim_name"),
    ("claim_namespace", "dra_claim_namespace"),
    ("driver", "dra_driver_name"),
    ("pool", "dra_pool_name"),
    ("device", "dra_device_name"),
    ("mig_profile", "dra_mig_profile"),
    ("mig_uuid", "dra_mig_device_uuid"),
];

/// Returns the label sets of the series about this subject, with dcgm-exporter's names and without empty labels.
fn of_subject<'a>(
    family: Option<&'a Family>,
    subject: &Subject,
    names: &'static [(&str, &str)],
) -> impl Iterator<Item = Vec<PageLabel<'a>>> {
    let series =
        family.into_iter().flat_map(|family| family.series.iter().map(move |series| (family, series)));
    let own =
        series.filter(|(_, series)| series.subject.subject == *subject && value_of(series) == Some(1.0));
    own.map(|(family, series)| {
        let label = |(ours, theirs): &(&'static str, &'static str)| {
            Some(PageLabel::new(*theirs, info(family, series, ours)?))
        };
        names.iter().filter_map(label).collect()
    })
}

/// Namespace and name of a pod.
type PodName = [Option<String>; 2];

fn pod_name(labels: &[PageLabel<'_>]) -> PodName {
    ["namespace", "pod"].map(|name| {
        labels.iter().find(|label| label.name == name).map(|label| label.value.clone().into_owned())
    })
}

/// Returns the UIDs of pods with processes on GPUs. A name that two pods have used has no UID.
fn pod_uids(snapshot: &Snapshot) -> BTreeMap<PodName, Option<&str>> {
    let mut uids = BTreeMap::new();
    let owners = family(snapshot, m::gpu_owner_info.id());
    for (family, series) in owners.into_iter().flat_map(|all| all.series.iter().map(move |one| (all, one))) {
        let name = ["namespace", "pod"].map(|label| info(family, series, label).map(str::to_owned));
        let Some(uid) = info(family, series, "pod_uid").filter(|_| name.iter().all(Option::is_some)) else {
            continue;
        };
        let known = uids.entry(name).or_insert(Some(uid));
        *known = known.filter(|known| *known == uid);
    }
    uids
}

/// Claim of dynamic resource allocation, with the pods that use it if they are known.
#[derive(Clone, Debug)]
struct ClaimLabels<'a> {
    labels: Vec<PageLabel<'a>>,
    pod: Vec<PageLabel<'a>>,
}

impl<'a> ClaimLabels<'a> {
    /// Returns true if the claim belongs to the pod, by name if the claim names its pods and otherwise by namespace.
    fn is_of(&self, pod: &[PageLabel<'_>]) -> bool {
        if !self.pod.is_empty() {
            return self.pod.iter().all(|label| pod.contains(label));
        }
        let of = |labels: &[PageLabel<'_>], name: &str| {
            labels.iter().find(|label| label.name == name).map(|label| label.value.clone().into_owned())
        };
        of(&self.labels, "dra_claim_namespace")
            .is_none_or(|namespace| of(pod, "namespace") == Some(namespace))
    }
}

fn claims_of<'a>(family: Option<&'a Family>, subject: &Subject) -> impl Iterator<Item = ClaimLabels<'a>> {
    let labels = of_subject(family, subject, &CLAIMS);
    let pods = of_subject(family, subject, &PODS);
    labels.zip(pods).filter(|(labels, _)| !labels.is_empty()).map(|(labels, pod)| ClaimLabels { labels, pod })
}

/// Combines every pod with its claims. If no pod is known, the result has only the claims.
fn with_claims<'a>(pods: Vec<Vec<PageLabel<'a>>>, claims: &[ClaimLabels<'a>]) -> Vec<Vec<PageLabel<'a>>> {
    if pods.is_empty() {
        return claims.iter().map(|claim| claim.labels.iter().chain(&claim.pod).cloned().collect()).collect();
    }
    let with = |pod: Vec<PageLabel<'a>>| {
        let own: Vec<&ClaimLabels<'a>> = claims.iter().filter(|claim| claim.is_of(&pod)).collect();
        match own.is_empty() {
            true => vec![pod],
            false => {
                own.into_iter().map(|claim| pod.iter().chain(&claim.labels).cloned().collect()).collect()
            }
        }
    };
    pods.into_iter().flat_map(with).collect()
}

/// Keeps only the last pod in the kubelet's list among pods without a claim, as dcgm-exporter does for GPUs from the
/// device plugin. All pods and containers with a claim are kept.
fn keep_one_without_claim(owners: &mut Vec<Vec<PageLabel<'_>>>) {
    let is_plain = |owner: &Vec<PageLabel<'_>>| owner.iter().all(|label| !label.name.starts_with("dra_"));
    let last = owners.iter().rposition(is_plain);
    let mut at = 0..;
    owners.retain(|owner| at.next() == last || !is_plain(owner));
}

/// Returns all combinations of both lists. If one list is empty, the other is returned unchanged.
fn crossed<'a>(one: Vec<Vec<PageLabel<'a>>>, two: Vec<Vec<PageLabel<'a>>>) -> Vec<Vec<PageLabel<'a>>> {
    match (one.is_empty(), two.is_empty()) {
        (_, true) => one,
        (true, _) => two,
        _ => one
            .iter()
            .flat_map(|first| two.iter().map(move |second| first.iter().chain(second).cloned().collect()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(of: &[(&'static str, &'static str)]) -> Vec<PageLabel<'static>> {
        of.iter().map(|(name, value)| PageLabel::new(*name, *value)).collect()
    }

    fn claim(
        name: &'static str,
        namespace: &'static str,
        pod: &[(&'static str, &'static str)],
    ) -> ClaimLabels<'static> {
        let claim = labels(&[("dra_claim_name", name), ("dra_claim_namespace", namespace)]);
        ClaimLabels { labels: claim, pod: labels(pod) }
    }

    /// Returns pod and claim of every owner.
    fn owners(
        pods: &[&[(&'static str, &'static str)]],
        claims: &[ClaimLabels<'static>],
    ) -> Vec<(String, String)> {
        let pods = pods.iter().map(|pod| labels(pod)).collect();
        let text = |owner: &[PageLabel<'_>], name: &str| {
            owner.iter().find(|label| label.name == name).map(|l| l.value.to_string()).unwrap_or_default()
        };
        let owners = with_claims(pods, claims);
        owners.iter().map(|owner| (text(owner, "pod"), text(owner, "dra_claim_name"))).collect()
    }

    const A: &[(&str, &str)] = &[("namespace", "ml"), ("pod", "a")];
    const B: &[(&str, &str)] = &[("namespace", "web"), ("pod", "b")];

    #[test]
    fn a_pod_has_its_own_claim() {
        let pair = |pod: &str, claim: &str| (pod.to_owned(), claim.to_owned());
        assert_eq!(owners(&[A], &[]), [pair("a", "")]);
        assert_eq!(owners(&[A], &[claim("one", "ml", &[])]), [pair("a", "one")]);
        let two = [claim("one", "ml", &[]), claim("two", "web", &[])];
        assert_eq!(owners(&[A, B], &two), [pair("a", "one"), pair("b", "two")]);
        let named = [claim("one", "ml", B), claim("two", "ml", A)];
        assert_eq!(owners(&[A, B], &named), [pair("a", "two"), pair("b", "one")]);
    }

    #[test]
    fn a_claim_that_pods_share_is_on_each_and_one_without_a_pod_is_there_too() {
        let pair = |pod: &str, claim: &str| (pod.to_owned(), claim.to_owned());
        let other: &[(&str, &str)] = &[("namespace", "ml"), ("pod", "c")];
        assert_eq!(owners(&[A, other], &[claim("one", "ml", &[])]), [pair("a", "one"), pair("c", "one")]);
        assert_eq!(owners(&[], &[claim("one", "ml", &[])]), [pair("", "one")]);
        assert_eq!(owners(&[], &[claim("one", "ml", A)]), [pair("a", "one")]);
    }

    #[test]
    fn addresses_are_as_nvml_spells_them() {
        assert_eq!(pci_bus_id("0000:1a:00.0"), "00000000:1A:00.0");
        assert_eq!(pci_bus_id("00010000:1a:00.0"), "00010000:1A:00.0");
        assert_eq!(pci_bus_id(""), "");
    }
}
