//! What identifies a series: labels of the entity, of the driver, of the pod that was given it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use model::catalog::{self as m, AllocatedGpu, Subject};
use model::snapshot::{Family, Snapshot};

use super::entities::{Entities, Entity};
use super::number;
use super::values::{family, info, number as value_of};
use super::{PageConfig, values};
use crate::fields::{Format, Level, Source};
use crate::list::Column;

/// A label with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label<'a> {
    pub name: Cow<'a, str>,
    pub value: Cow<'a, str>,
}

impl<'a> Label<'a> {
    pub fn new(name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Label<'a> {
        Label { name: name.into(), value: value.into() }
    }
}

/// The labels of every entity of one page.
pub struct Labels<'a> {
    entities: &'a Entities,
    /// The host's name, if it is a label.
    hostname: Option<Label<'a>>,
    /// PCI address and model of each GPU.
    boards: Vec<Vec<Label<'a>>>,
    /// Labels of fields, by entity; a family's own labels come among them.
    fields: BTreeMap<Entity, Vec<Label<'a>>>,
    /// The owners of a GPU or GPU instance: a set of attributes each. Empty: it has none.
    owners: BTreeMap<(usize, Option<usize>), Vec<Vec<Label<'a>>>>,
}

impl<'a> Labels<'a> {
    pub fn new(config: &'a PageConfig, snapshot: &'a Snapshot, entities: &'a Entities) -> Labels<'a> {
        let named = !config.hostname.is_empty() && !config.hostname_label.is_empty();
        let hostname = named.then(|| Label::new(&*config.hostname_label, &*config.hostname));
        let boards = entities.0.iter().map(|gpu| {
            let identity = |label| snapshot.info(&m::gpu_info, &gpu.gpu, label).unwrap_or("");
            vec![
                Label::new("pci_bus_id", pci_bus_id(identity("pci_address"))),
                Label::new("device", format!("nvidia{}", gpu.gpu.gpu)),
                Label::new("modelName", identity("model")),
            ]
        });
        let mut labels = Labels {
            entities,
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
        labels
    }

    /// Adds the label of a field to every entity.
    fn add_field(&mut self, config: &PageConfig, column: &'a Column, snapshot: &'a Snapshot) {
        // A level for each kind of entity: the label is on all of them.
        for level in [Level::Whole, Level::GpuInstance, Level::ComputeInstance] {
            for entity in self.entities.at(level, false) {
                let Some(text) = self.field_text(config, column, snapshot, entity) else { continue };
                let labels = self.fields.entry(entity).or_default();
                if labels.iter().all(|label| label.name != column.name) {
                    labels.push(Label::new(&*column.name, text));
                }
            }
        }
    }

    fn field_text(
        &self,
        config: &PageConfig,
        column: &Column,
        snapshot: &'a Snapshot,
        entity: Entity,
    ) -> Option<Cow<'a, str>> {
        let field = column.field;
        if let Source::Info { metric, label, .. } = field.source
            && field.format == Format::Text
        {
            let family = family(snapshot, metric)?;
            let subjects = self.entities.subjects(
                Entity { instance: None, compute: None, ..entity },
                Level::Board,
                false,
            );
            let series = family.series.iter().find(|series| subjects.contains(&series.subject.subject))?;
            let text = info(family, series, label)?;
            return Some(if label == "pci_address" { pci_bus_id(text).into() } else { text.into() });
        }
        let samples = values::samples(field, config.corrected(), snapshot, self.entities);
        let of_gpu = |one: &&super::Sample| {
            one.entity == entity || one.entity == Entity { instance: None, compute: None, ..entity }
        };
        let sample = samples.iter().find(of_gpu)?;
        number::text(sample.value, field.format).map(Cow::from)
    }

    /// Adds pods, claims and jobs.
    fn add_owners(&mut self, config: &PageConfig, snapshot: &'a Snapshot) {
        if !config.pods && !config.jobs {
            return;
        }
        let allocations = family(snapshot, m::gpu_allocation_info.id());
        let claims = by_name(snapshot, "gpu_claim_info").filter(|_| config.pods);
        for (gpu, entity) in self.entities.0.iter().enumerate() {
            let parts = (0..entity.instances.len()).map(Some);
            for instance in std::iter::once(None).chain(parts) {
                let id = instance.map(|at| entity.instances[at].id);
                let given = Subject::AllocatedGpu(AllocatedGpu::new(&entity.gpu, id));
                let mut pods = Vec::new();
                if config.pods {
                    pods.extend(of_subject(allocations, &given, &PODS).filter(|pod| !pod.is_empty()));
                }
                let mut claims: Vec<Claim<'a>> = claims_of(claims, &given).collect();
                if let Some(id) = id {
                    let uuid = mig_uuid(snapshot, &entity.gpu, id);
                    claims.iter_mut().for_each(|claim| claim.add_uuid(uuid));
                }
                let mut owners = with_claims(pods, &claims);
                if !config.corrected() && owners.len() > 1 {
                    // dcgm-exporter keeps one pod of a GPU: the last that the kubelet lists.
                    owners.drain(..owners.len() - 1);
                }
                if config.jobs {
                    let mut jobs: Vec<Vec<Label<'a>>> = of_subject(allocations, &given, &JOB).collect();
                    let files = by_name(snapshot, "gpu_hpc_job_info");
                    jobs.extend(of_subject(files, &given, &[("hpc_job", "hpc_job")]));
                    jobs.retain(|job| !job.is_empty());
                    owners = crossed(owners, jobs);
                }
                owners.iter_mut().for_each(|owner| owner.sort());
                if !owners.is_empty() {
                    self.owners.insert((gpu, instance), owners);
                }
            }
        }
    }

    /// The label sets of a sample: one for each owner of the entity. Each with the key by which dcgm-exporter orders the
    /// samples of a family.
    pub fn of(&self, entity: Entity, own: &[Label<'_>], attributes: &[Label<'_>]) -> Vec<(String, String)> {
        let gpu = &self.entities.0[entity.gpu];
        let index = gpu.gpu.gpu.to_string();
        let mut labels: Vec<Label<'_>> = vec![Label::new("gpu", &*index), Label::new("UUID", &*gpu.gpu.uuid)];
        labels.extend(self.boards[entity.gpu].iter().cloned());
        if let Some(instance) = entity.instance.map(|at| &gpu.instances[at]) {
            labels.push(Label::new("GPU_I_PROFILE", &*instance.profile));
            labels.push(Label::new("GPU_I_ID", instance.id.to_string()));
            if let Some(compute) = entity.compute {
                labels.push(Label::new("GPU_CI_ID", compute.to_string()));
            }
        }
        labels.extend(self.hostname.clone());
        let mut block: Vec<Label<'_>> = self.fields.get(&entity).cloned().unwrap_or_default();
        block.extend(own.iter().cloned());
        block.sort();
        labels.extend(block);
        let nobody = [Vec::new()];
        let owners = self.owners.get(&(entity.gpu, entity.instance)).map_or(&nobody[..], |owners| owners);
        let with = |owner: &Vec<Label<'a>>| {
            let mut labels = labels.clone();
            let mut attributes: Vec<Label<'_>> = attributes.iter().chain(owner).cloned().collect();
            attributes.sort();
            labels.extend(attributes);
            // A list may name a label that the entity has.
            let mut seen: Vec<Cow<'_, str>> = Vec::new();
            labels.retain(|label| {
                let new = !seen.contains(&label.name);
                seen.push(label.name.clone());
                new
            });
            (key(&labels), text(&labels))
        };
        owners.iter().map(with).collect()
    }
}

/// `{a="b",c="d"}`.
fn text(labels: &[Label<'_>]) -> String {
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

/// The labels by name, each with the lengths of name and value: dcgm-exporter orders samples by this text.
fn key(labels: &[Label<'_>]) -> String {
    let mut sorted: Vec<&Label<'_>> = labels.iter().collect();
    sorted.sort();
    let part = |label: &&Label<'_>| {
        format!("{}:{}={}:{};", label.name.len(), label.name, label.value.len(), label.value)
    };
    sorted.iter().map(part).collect()
}

/// `0000:1a:00.0` as NVML spells it: eight digits of domain, in upper case.
fn pci_bus_id(address: &str) -> String {
    match address.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_uppercase(),
        None => String::new(),
    }
}

/// Our label and dcgm-exporter's.
const PODS: [(&str, &str); 3] = [("container", "container"), ("namespace", "namespace"), ("pod", "pod")];
const JOB: [(&str, &str); 1] = [("slurm_job", "hpc_job")];
const CLAIMS: [(&str, &str); 6] = [
    ("claim", "dra_claim_name"),
    ("claim_namespace", "dra_claim_namespace"),
    ("driver", "dra_driver_name"),
    ("pool", "dra_pool_name"),
    ("device", "dra_device_name"),
    ("mig_profile", "dra_mig_profile"),
];

/// The labels of each series about this subject, by dcgm-exporter's names; empty ones are left out.
fn of_subject<'a>(
    family: Option<&'a Family>,
    subject: &Subject,
    names: &'static [(&str, &str)],
) -> impl Iterator<Item = Vec<Label<'a>>> {
    let series =
        family.into_iter().flat_map(|family| family.series.iter().map(move |series| (family, series)));
    let own =
        series.filter(|(_, series)| series.subject.subject == *subject && value_of(series) == Some(1.0));
    own.map(|(family, series)| {
        let label = |(ours, theirs): &(&'static str, &'static str)| {
            Some(Label::new(*theirs, info(family, series, ours)?))
        };
        names.iter().filter_map(label).collect()
    })
}

/// A claim of dynamic resource allocation, with the pods it is for where these are known.
#[derive(Clone, Debug)]
struct Claim<'a> {
    labels: Vec<Label<'a>>,
    pod: Vec<Label<'a>>,
}

impl<'a> Claim<'a> {
    /// Whether it is this pod's: by name where the claim names its pod, else by namespace.
    fn is_of(&self, pod: &[Label<'_>]) -> bool {
        if !self.pod.is_empty() {
            return self.pod.iter().all(|label| pod.contains(label));
        }
        let of = |labels: &[Label<'_>], name: &str| {
            labels.iter().find(|label| label.name == name).map(|label| label.value.clone().into_owned())
        };
        of(&self.labels, "dra_claim_namespace")
            .is_none_or(|namespace| of(pod, "namespace") == Some(namespace))
    }

    fn add_uuid(&mut self, uuid: Option<&'a str>) {
        if let Some(uuid) = uuid {
            self.labels.push(Label::new("dra_mig_device_uuid", uuid));
        }
    }
}

fn claims_of<'a>(family: Option<&'a Family>, subject: &Subject) -> impl Iterator<Item = Claim<'a>> {
    let labels = of_subject(family, subject, &CLAIMS);
    let pods = of_subject(family, subject, &PODS);
    labels.zip(pods).filter(|(labels, _)| !labels.is_empty()).map(|(labels, pod)| Claim { labels, pod })
}

/// The pods, each with its claims; the claims alone where no pod is known.
fn with_claims<'a>(pods: Vec<Vec<Label<'a>>>, claims: &[Claim<'a>]) -> Vec<Vec<Label<'a>>> {
    if pods.is_empty() {
        return claims.iter().map(|claim| claim.labels.iter().chain(&claim.pod).cloned().collect()).collect();
    }
    let with = |pod: Vec<Label<'a>>| {
        let own: Vec<&Claim<'a>> = claims.iter().filter(|claim| claim.is_of(&pod)).collect();
        match own.is_empty() {
            true => vec![pod],
            false => {
                own.into_iter().map(|claim| pod.iter().chain(&claim.labels).cloned().collect()).collect()
            }
        }
    };
    pods.into_iter().flat_map(with).collect()
}

/// Each of the first with each of the second.
fn crossed<'a>(one: Vec<Vec<Label<'a>>>, two: Vec<Vec<Label<'a>>>) -> Vec<Vec<Label<'a>>> {
    match (one.is_empty(), two.is_empty()) {
        (_, true) => one,
        (true, _) => two,
        _ => one
            .iter()
            .flat_map(|first| two.iter().map(move |second| first.iter().chain(second).cloned().collect()))
            .collect(),
    }
}

/// The family of a metric that the catalogue may have: other builds lack it.
fn by_name<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a Family> {
    snapshot.families.iter().find(|family| family.def.name == name)
}

/// The UUID of the MIG device, where the instance has one alone.
fn mig_uuid<'a>(snapshot: &'a Snapshot, gpu: &m::Gpu, id: u32) -> Option<&'a str> {
    let family = family(snapshot, m::gpu_mig_info.id())?;
    let mut devices = family.series.iter().filter(|series| match &series.subject.subject {
        Subject::ComputeInstance(c) => c.gpu == gpu.gpu && c.uuid == gpu.uuid && c.gpu_instance == id,
        _ => false,
    });
    let device = devices.next()?;
    devices.next().is_none().then(|| info(family, device, "mig_uuid"))?
}
