//! NVLink: number of links, state and remote end of each, bytes and errors.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{self as sys, field_id};

use super::{KIBI, MEGA, ONE};
use crate::raw::fields::{ALL_PARTS, values_at};
use crate::raw::{link_error_counter, remote_device_type};
use crate::visit::{Field, NvmlNumber, Visit};
use model::catalog::schema::{KnownLabel, Label};
use model::catalog::{
    self as m, Direction, DropReason, Link, MetricId, NvLinkError, NvLinkInfo, NvLinkLaneError,
};
use model::pci::kernel_address;
use model::sample::Row;

/// NVML's most links of a GPU: more is no number of links.
const MOST: u32 = 36;

const STATE: &str = "nvmlDeviceGetNvLinkState";
const ERROR_COUNTER: &str = "nvmlDeviceGetNvLinkErrorCounter";
const LINK_COUNT: (&str, u32) = ("nvmlDeviceGetFieldValues", COUNT);
const COUNT: u32 = field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
const SPEED: u32 = field_id::NVML_FI_DEV_NVLINK_GET_SPEED;
const FAR_LINK: u32 = field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID;

/// Fields that are asked in calls of their own.
pub(super) const ONE_BY_ONE: [u32; 3] = [COUNT, SPEED, FAR_LINK];

/// A field of one link; its number is the field's scope.
macro_rules! of_link {
    ($id:ident, $metric:ident, $labels:expr, $scale:expr) => {
        Field::new(field_id::$id, m::$metric.id(), $scale, |rows, gpu, link, value| {
            let link = Link { gpu: gpu.gpu, uuid: gpu.uuid.clone(), link };
            rows.of(&link).put(&m::$metric, $labels, value)
        })
    };
}

/// Fields of all links together.
pub(super) static TOTALS: [Field; 4] = [
    field!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, gpu_nvlink_bytes_total, (Direction::Tx,), KIBI),
    field!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, gpu_nvlink_bytes_total, (Direction::Rx,), KIBI),
    field!(NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, gpu_nvlink_raw_bytes_total, (Direction::Tx,), KIBI),
    field!(NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, gpu_nvlink_raw_bytes_total, (Direction::Rx,), KIBI),
];

/// The driver reads bytes of one link in one go and its errors in another (0.9 ms each on an H200); a call for
/// each error counter costs as much as the field for all three.
pub(super) static OF_LINKS: [Field; 5] = [
    of_link!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, gpu_nvlink_link_bytes_total, (Direction::Tx,), KIBI),
    of_link!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, gpu_nvlink_link_bytes_total, (Direction::Rx,), KIBI),
    of_link!(NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, gpu_nvlink_link_errors_total, (NvLinkError::Replay,), ONE),
    of_link!(
        NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
        gpu_nvlink_link_errors_total,
        (NvLinkError::Recovery,),
        ONE
    ),
    of_link!(NVML_FI_DEV_NVLINK_ERROR_DL_CRC, gpu_nvlink_link_errors_total, (NvLinkError::CrcFlit,), ONE),
];

/// Error counters of a link, for GPUs that lack the field.
const ERRORS: [(ErrorCounter, NvLinkError, u32); 3] = [
    (ErrorCounter::DlReplay, NvLinkError::Replay, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY),
    (ErrorCounter::DlRecovery, NvLinkError::Recovery, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
    (ErrorCounter::DlCrcFlit, NvLinkError::CrcFlit, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
];

/// Error counters of its lanes.
const LANE_ERRORS: [(u32, NvLinkLaneError); 2] = [
    (sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA, NvLinkLaneError::CrcData),
    (sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_ECC_DATA, NvLinkLaneError::EccData),
];

/// How many links there are.
pub(super) fn once(v: &mut Visit<'_>) {
    let metrics = [m::gpu_nvlink_links.id()];
    if let Some(links) = links(v, &metrics) {
        v.put(LINK_COUNT, &m::gpu_nvlink_links, (), links, ONE);
    }
}

/// Bytes of all links together, and the state of each.
pub(super) fn slow(v: &mut Visit<'_>) {
    let totals = [m::gpu_nvlink_bytes_total.id(), m::gpu_nvlink_raw_bytes_total.id()];
    if links(v, &totals).is_some() {
        v.fields(&TOTALS.map(|field| field.of(ALL_PARTS)));
    }
    let Some(states) = states(v) else { return };
    for (link, up) in (0..).zip(&states) {
        let Some(up) = *up else { continue };
        let entity = Link { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), link };
        v.put_for(&entity, (STATE, link), &m::gpu_nvlink_up, (), up, ONE);
    }
    // A number that leaves out links whose state could not be read would be wrong.
    if states.iter().all(Option::is_some) {
        v.put(STATE, &m::gpu_nvlink_links_up, (), working(&states).len(), ONE);
    }
    v.state.links_up = Some(working(&states));
}

/// Whether each link is up, by its number; `None` where that could not be read.
fn states(v: &mut Visit<'_>) -> Option<Vec<Option<bool>>> {
    // The latter two are read only of links that are up.
    let metrics = [
        m::gpu_nvlink_up.id(),
        m::gpu_nvlink_links_up.id(),
        m::gpu_nvlink_info.id(),
        m::gpu_nvlink_speed_bytes_per_second.id(),
    ];
    let links = links(v, &metrics)?;
    let read = |link| v.read((STATE, link), &metrics, |d| d.link_wrapper_for(link).is_active());
    Some((0..links).map(read).collect())
}

/// The numbers of those that are up.
fn working(states: &[Option<bool>]) -> Vec<u32> {
    (0..).zip(states).filter(|(_, up)| **up == Some(true)).map(|(link, _)| link).collect()
}

/// Each link that is up: its speed and its other end.
pub(super) fn rare(v: &mut Visit<'_>) {
    let metrics = [m::gpu_nvlink_info.id(), m::gpu_nvlink_speed_bytes_per_second.id()];
    if links(v, &metrics).is_none() {
        return;
    }
    let known = v.state.links_up.clone();
    // None before the first slow visit.
    let Some(up) = known.or_else(|| Some(working(&states(v)?))) else { return };
    if up.is_empty() {
        return;
    }
    speed(v, &up);
    if let Some(far) = far_links(v, &up) {
        for (link, far) in up.into_iter().zip(far) {
            info(v, &Link { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), link }, far);
        }
    }
}

/// Bytes and errors of each link.
pub(super) fn links_tier(v: &mut Visit<'_>) {
    let metrics = [
        m::gpu_nvlink_link_bytes_total.id(),
        m::gpu_nvlink_errors_total.id(),
        m::gpu_nvlink_link_errors_total.id(),
        m::gpu_nvlink_lane_errors_total.id(),
    ];
    let Some(links) = links(v, &metrics) else { return };
    let fields: Vec<Field> =
        (0..links).flat_map(|link| OF_LINKS.iter().map(move |field| field.of(link))).collect();
    v.fields(&fields);
    errors(v, links);
    sum_up(v, links);
    lane_errors(v, links);
}

/// How many links there are, asked once a handle. `None` if that is not known, or if there are none: then
/// these metrics are unsupported.
fn links(v: &mut Visit<'_>, metrics: &[MetricId]) -> Option<u32> {
    if !v.wants(metrics) {
        return None;
    }
    let links = match v.state.links {
        Some(links) => links,
        None => {
            // Not supported: there are none.
            let links = v.read(LINK_COUNT, metrics, |d| one_field(d, COUNT, &[0]))?.pop().flatten();
            let links = links.filter(|links| *links <= MOST).unwrap_or(0);
            v.state.links = Some(links);
            links
        }
    };
    if links == 0 {
        v.unsupported(LINK_COUNT, metrics);
        return None;
    }
    Some(links)
}

/// Speed of the slowest of these links.
fn speed(v: &mut Visit<'_>, links: &[u32]) {
    let metric = &m::gpu_nvlink_speed_bytes_per_second;
    let call = ("nvmlDeviceGetFieldValues", SPEED);
    let Some(speeds) = v.read(call, &[metric.id()], |d| one_field(d, SPEED, links)) else { return };
    let slowest = speeds.into_iter().flatten().min();
    match slowest {
        Some(slowest) => v.put(call, metric, (), slowest, MEGA),
        None => v.unsupported(call, &[metric.id()]),
    }
}

/// Numbers of the links at the other ends, by position; empty where the driver gives none.
fn far_links(v: &mut Visit<'_>, links: &[u32]) -> Option<Vec<String>> {
    let feeds = [m::gpu_nvlink_info.id()];
    let numbers =
        v.read(("nvmlDeviceGetFieldValues", FAR_LINK), &feeds, |d| one_field(d, FAR_LINK, links))?;
    Some(numbers.into_iter().map(|far| far.map(|n| n.to_string()).unwrap_or_default()).collect())
}

/// One field of several links, by position; `None` where it is not supported or not available.
fn one_field(device: &Device<'static>, id: u32, links: &[u32]) -> Result<Vec<Option<u32>>, NvmlError> {
    let asked: Vec<_> = links.iter().map(|link| (id, *link)).collect();
    let number = |answer| match answer {
        Ok(SampleValue::U32(n)) => Ok(Some(n).filter(|n| *n != u32::MAX)),
        Ok(_) | Err(NvmlError::NotSupported) => Ok(None),
        Err(error) => Err(error),
    };
    values_at(device, &asked)?.into_iter().map(number).collect()
}

/// The link and its other end. Left out if a call failed: with a hole it would be another link.
fn info(v: &mut Visit<'_>, link: &Link, remote_link: String) {
    let feeds = [m::gpu_nvlink_info.id()];
    if !v.wants(&feeds) {
        return;
    }
    let number = link.link;
    let failures = v.failures();
    let version =
        v.read(("nvmlDeviceGetNvLinkVersion", number), &feeds, |d| d.link_wrapper_for(number).version());
    let remote =
        v.read(("nvmlDeviceGetNvLinkRemoteDeviceType", number), &feeds, |d| remote_device_type(d, number));
    let address = v.read(("nvmlDeviceGetNvLinkRemotePciInfo_v2", number), &feeds, |d| {
        d.link_wrapper_for(number).remote_pci_info().map(|pci| pci.bus_id)
    });
    if v.failures() > failures {
        return;
    }
    let info = NvLinkInfo {
        version: version.map(|n| n.to_string()).unwrap_or_default(),
        remote_type: remote.map(remote_type).unwrap_or("unknown").to_owned(),
        remote_pci_address: address.map(|a| remote_address(&a)).unwrap_or_default(),
        remote_link,
    };
    v.rows.of(link).info(&m::gpu_nvlink_info, info);
}

fn remote_type(kind: u32) -> &'static str {
    match kind {
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => "gpu",
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU => "ibmnpu",
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => "switch",
        _ => "unknown",
    }
}

/// A virtual machine does not see the switches: the driver then gives `FFFFFFFF:FF:FF.0`.
fn remote_address(bus_id: &str) -> String {
    match bus_id.to_lowercase().contains("ffff:ff:ff") {
        true => String::new(),
        false => kernel_address(bus_id),
    }
}

fn errors(v: &mut Visit<'_>, links: u32) {
    let metric = &m::gpu_nvlink_link_errors_total;
    for link in 0..links {
        let entity = Link { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), link };
        for (counter, error, field) in ERRORS {
            let call = (ERROR_COUNTER, [link, counter.as_c()]);
            if v.supports(("nvmlDeviceGetFieldValues", [field, link])) {
                continue;
            }
            if let Some(n) = v.read(call, &[metric.id()], |d| link_error_counter(d, link, counter.as_c())) {
                v.put_for(&entity, call, metric, (error,), n, ONE);
            }
        }
    }
}

/// Adds up the errors of the links, and leaves out links without any. A sum that leaves out a link would step
/// back, so there is none then.
fn sum_up(v: &mut Visit<'_>, links: u32) {
    let of_links = m::gpu_nvlink_link_errors_total.id();
    for error in NvLinkError::ALL {
        let of = |row: &Row| row.metric == of_links && row.labels == [error.text()];
        let counts: Vec<f64> = v
            .rows
            .groups()
            .iter()
            .flat_map(|(_, rows)| rows)
            .filter(|row| of(row))
            .map(|row| row.value)
            .collect();
        if counts.len() as u32 == links {
            let sum = SampleValue::F64(counts.iter().sum());
            v.put(ERROR_COUNTER, &m::gpu_nvlink_errors_total, (*error,), sum, ONE);
        }
    }
    v.rows.retain(|row| row.metric != of_links || row.value > 0.0);
}

/// As [`sum_up`], of the lanes.
fn lane_errors(v: &mut Visit<'_>, links: u32) {
    let metric = &m::gpu_nvlink_lane_errors_total;
    for (counter, error) in LANE_ERRORS {
        let mut sum = Some(0.0);
        for link in 0..links {
            let call = (ERROR_COUNTER, [link, counter]);
            let count = v.read(call, &[metric.id()], |d| link_error_counter(d, link, counter));
            let number = count.and_then(NvmlNumber::number);
            if count.is_some() && number.is_none() {
                v.dropped(call, metric.id(), DropReason::Blank);
            }
            sum = sum.zip(number).map(|(sum, n)| sum + n);
        }
        if let Some(sum) = sum {
            v.put(ERROR_COUNTER, metric, (error,), SampleValue::F64(sum), ONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_other_end_has_no_address() {
        assert_eq!(remote_address("FFFFFFFF:FF:FF.0"), "");
        assert_eq!(remote_address("FFFFFFF:FF:FF.0"), "");
        assert_eq!(remote_address("00000000:C1:00.0"), "0000:c1:00.0");
    }
}
