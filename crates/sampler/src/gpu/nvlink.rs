//! NVLink: number of links, state and remote end of every link, bytes and errors.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{self as sys, field_id};

use super::{KIBI, MEGA, ONE};
use crate::driver::CallName;
use crate::raw::fields::{ALL_PARTS, values_at};
use crate::raw::{link_error_counter, remote_device_type};
use crate::visit::{Field, LINK_TOLERANCE, NvmlNumber, Visit};
use model::catalog::schema::{KnownLabel, Label};
use model::catalog::{
    self as m, Direction, DropReason, Link, MetricId, NvLinkBitErrors, NvLinkError, NvLinkInfo,
    NvLinkLaneError, SymbolErrors,
};
use model::clock::Mono;
use model::pci::kernel_address;
use model::sample::{Gap, Missing, Row};

/// Maximum number of links in NVML. A larger number is not a number of links.
const MOST: u32 = 36;

const STATE: &str = "nvmlDeviceGetNvLinkState";
const ERROR_COUNTER: &str = "nvmlDeviceGetNvLinkErrorCounter";
const FIELDS: &str = "nvmlDeviceGetFieldValues";
const LINK_COUNT: (&str, u32) = (FIELDS, COUNT);
const COUNT: u32 = field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
const SPEED: u32 = field_id::NVML_FI_DEV_NVLINK_GET_SPEED;
const FAR_LINK: u32 = field_id::NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID;

/// Fields that are read in separate calls.
pub(super) const ONE_BY_ONE: [u32; 3] = [COUNT, SPEED, FAR_LINK];

/// Defines a field of one link, whose number is the scope of the field. `$decode` converts the number of the
/// driver to the value.
macro_rules! of_link {
    ($id:ident, $metric:ident, $labels:expr, $scale:expr $(, $decode:expr)?) => {
        Field::new(field_id::$id, m::$metric.id(), $scale, |rows, gpu, link, value| {
            let link = Link { gpu: gpu.gpu, uuid: gpu.uuid.clone(), link };
            $(let value = $decode(value);)?
            rows.entity(&link).record(&m::$metric, $labels, value)
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

macro_rules! link_errors {
    ($id:ident, $error:ident) => {
        of_link!($id, gpu_nvlink_link_errors_total, (NvLinkError::$error,), ONE)
    };
}

/// Fields of one link. The driver reads the bytes of a link in one step and its errors in another (0.9 ms each
/// on an H200). A call for one error counter costs as much as the fields for all three.
pub(super) static OF_LINKS: [Field; 5] = [
    of_link!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, gpu_nvlink_link_bytes_total, (Direction::Tx,), KIBI),
    of_link!(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, gpu_nvlink_link_bytes_total, (Direction::Rx,), KIBI),
    link_errors!(NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, Replay),
    link_errors!(NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, Recovery),
    link_errors!(NVML_FI_DEV_NVLINK_ERROR_DL_CRC, CrcFlit),
];

/// Decodes NVML's bit error ratio: the low byte has the negative decimal exponent, and the four bits above have
/// the mantissa.
fn bit_error_ratio(encoded: f64) -> f64 {
    let encoded = encoded as u32;
    let mantissa = encoded >> sys::NVML_NVLINK_BER_MANTISSA_SHIFT & sys::NVML_NVLINK_BER_MANTISSA_WIDTH;
    let exponent = encoded >> sys::NVML_NVLINK_BER_EXP_SHIFT & sys::NVML_NVLINK_BER_EXP_WIDTH;
    f64::from(mantissa) / 10f64.powi(exponent as i32)
}

macro_rules! ratio_5 {
    ($id:ident, $errors:ident) => {
        of_link!($id, gpu_nvlink_link_bit_error_ratio, (NvLinkBitErrors::$errors,), ONE, bit_error_ratio)
    };
}

macro_rules! words_5 {
    ($id:ident, $count:ident) => {
        of_link!($id, gpu_nvlink_link_fec_codewords_total, (SymbolErrors::$count,), ONE)
    };
}

/// Fields of an NVLink 5 link, which replace the counters of replays, recoveries and checksums.
pub(super) static OF_LINKS_5: [Field; 30] = [
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, MalformedPacket),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, BufferOverrun),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, Receive),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, ReceiveRemote),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, ReceiveGeneral),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, LocalLinkIntegrity),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, TransmitDiscard),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, RecoverySuccessful),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, RecoveryFailed),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, LinkRecovery),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, Effective),
    link_errors!(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, Symbol),
    ratio_5!(NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, Effective),
    ratio_5!(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, Symbol),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, S0),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_1, S1),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_2, S2),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_3, S3),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_4, S4),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_5, S5),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_6, S6),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_7, S7),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_8, S8),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_9, S9),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_10, S10),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_11, S11),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_12, S12),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_13, S13),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_14, S14),
    words_5!(NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15, S15),
];

/// Error counters of a link, for GPUs that lack the fields.
const ERRORS: [(ErrorCounter, NvLinkError, u32); 3] = [
    (ErrorCounter::DlReplay, NvLinkError::Replay, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY),
    (ErrorCounter::DlRecovery, NvLinkError::Recovery, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
    (ErrorCounter::DlCrcFlit, NvLinkError::CrcFlit, field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC),
];

/// Error counters of the lanes of a link.
const LANE_ERRORS: [(u32, NvLinkLaneError); 2] = [
    (sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA, NvLinkLaneError::CrcData),
    (sys::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_ECC_DATA, NvLinkLaneError::EccData),
];

/// Reads the number of links.
pub(super) fn once(v: &mut Visit<'_>) {
    let metrics = [m::gpu_nvlink_links.id()];
    if let Some(links) = links(v, &metrics) {
        v.add(LINK_COUNT, &m::gpu_nvlink_links, (), links, ONE);
    }
}

/// Reads the bytes of all links together and the state of every link.
pub(super) fn slow(v: &mut Visit<'_>) {
    let totals = [m::gpu_nvlink_bytes_total.id(), m::gpu_nvlink_raw_bytes_total.id()];
    // The states are read first, because the bytes are judged by the links that are up.
    let states = states(v);
    if let Some(states) = &states {
        take_in(v, working(states));
    }
    if links(v, &totals).is_some() {
        v.fields(&TOTALS.map(|field| field.scoped(ALL_PARTS)));
        leave_out_impossible(v);
    }
    let Some(states) = states else { return };
    for (link, up) in (0..).zip(&states) {
        let Some(up) = *up else { continue };
        let entity = Link { gpu: v.gpu.gpu, uuid: v.gpu.uuid.clone(), link };
        v.add_for(&entity, (STATE, link), &m::gpu_nvlink_up, (), up, ONE);
    }
    // A count that leaves out unreadable links would be wrong.
    if states.iter().all(Option::is_some) {
        v.add(STATE, &m::gpu_nvlink_links_up, (), working(&states).len(), ONE);
    }
}

/// Records which links are up. A link that came up may support more than before, and the total rate of the
/// links is unknown until the next rare visit.
fn take_in(v: &mut Visit<'_>, up: Vec<u32>) {
    let known = v.state.links_up.take();
    if known.as_ref().is_some_and(|known| *known != up) {
        v.state.link_rates.nvlink = v.state.link_rates.nvlink.and(Some(None));
    }
    let before = known.unwrap_or_default();
    let came_up = |link: &u32| up.contains(link) && !before.contains(link);
    if up.iter().any(came_up) {
        v.ask_again(|call| about(call).is_some_and(|link| came_up(&link)));
        v.state.nvlink5.take_if(|there| !*there);
    }
    v.state.links_up = Some(up);
}

/// Returns the link that a call is about.
fn about(call: &CallName) -> Option<u32> {
    let of_link = |id| OF_LINKS.iter().chain(&OF_LINKS_5).any(|field| field.id() == id);
    match (call.function, call.args) {
        (FIELDS, [Some(id), link, _]) => link.filter(|_| of_link(id)),
        (function, [link, ..]) => link.filter(|_| function.starts_with("nvmlDeviceGetNvLink")),
    }
}

/// Withholds byte counters that grew by more than all links can carry, until they are plausible again. The
/// limit allows one extra second, because the driver may count late.
fn leave_out_impossible(v: &mut Visit<'_>) {
    let now = Mono::now();
    let rate = v.state.link_rates.nvlink.flatten();
    let totals = [m::gpu_nvlink_bytes_total.id(), m::gpu_nvlink_raw_bytes_total.id()];
    let mut impossible = Vec::new();
    let mut rates = Vec::new();
    let served = &mut v.state.nvlink_bytes;
    v.rows.retain(|row| {
        if !totals.contains(&row.metric) {
            return true;
        }
        let key = (row.metric, row.labels.first().cloned());
        let before = served.get(&key).copied();
        let most = |at: Mono, rate: f64| rate * LINK_TOLERANCE * (now.since(at).as_secs_f64() + 1.0);
        let possible = before.zip(rate).is_none_or(|((at, bytes), rate)| row.value - bytes <= most(at, rate));
        if possible {
            if let Some((at, bytes)) = before.filter(|_| row.metric == m::gpu_nvlink_bytes_total.id()) {
                rates.push((row.labels.clone(), (row.value - bytes) / now.since(at).as_secs_f64()));
            }
            served.insert(key, (now, row.value));
        } else {
            impossible.push(row.metric);
        }
        possible
    });
    for metric in impossible {
        v.dropped(FIELDS, metric, DropReason::OutOfRange);
    }
    for (labels, rate) in rates {
        let direction = Direction::ALL.iter().find(|direction| labels == [direction.text()]);
        // A lower value means that the driver has restarted the count.
        if let Some(direction) = direction.filter(|_| rate >= 0.0) {
            v.add(FIELDS, &m::gpu_nvlink_bytes_per_second, (*direction,), Some(rate), ONE);
        }
    }
}

/// Reads whether the links are up, by number. An unreadable state is `None`.
fn states(v: &mut Visit<'_>) -> Option<Vec<Option<bool>>> {
    // The last two metrics are read only for links that are up.
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

/// Returns the numbers of the links that are up.
fn working(states: &[Option<bool>]) -> Vec<u32> {
    (0..).zip(states).filter(|(_, up)| **up == Some(true)).map(|(link, _)| link).collect()
}

/// Reads the speed and the remote end of every link that is up.
pub(super) fn rare(v: &mut Visit<'_>) {
    let metrics = [m::gpu_nvlink_info.id(), m::gpu_nvlink_speed_bytes_per_second.id()];
    v.state.link_rates.nvlink.get_or_insert(None);
    if links(v, &metrics).is_none() {
        return;
    }
    let known = v.state.links_up.clone();
    // The states are unknown before the first slow visit.
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

/// Reads the bytes and errors of every link.
pub(super) fn links_tier(v: &mut Visit<'_>) {
    let metrics = [
        m::gpu_nvlink_link_bytes_total.id(),
        m::gpu_nvlink_errors_total.id(),
        m::gpu_nvlink_link_errors_total.id(),
        m::gpu_nvlink_lane_errors_total.id(),
        m::gpu_nvlink_link_bit_error_ratio.id(),
        m::gpu_nvlink_link_fec_codewords_total.id(),
    ];
    let Some(links) = links(v, &metrics) else { return };
    let fields: Vec<Field> =
        (0..links).flat_map(|link| OF_LINKS.iter().map(move |field| field.scoped(link))).collect();
    v.fields(&fields);
    match nvlink5(v) {
        // One call per link, because all links together have about 500 values.
        true => (0..links).for_each(|link| v.fields(&OF_LINKS_5.map(|field| field.scoped(link)))),
        false => {
            errors(v, links);
            v.unsupported(LINK_COUNT, &OF_NVLINK_5);
        }
    }
    sum_up(v, links);
    lane_errors(v, links);
}

/// Metrics that links before NVLink 5 lack.
const OF_NVLINK_5: [MetricId; 2] =
    [m::gpu_nvlink_link_bit_error_ratio.id(), m::gpu_nvlink_link_fec_codewords_total.id()];

/// Returns whether the links have the counters of NVLink 5. It is read from the first link that is up, once per
/// handle if there is one. Drivers that lack a field answer in several ways, so any valid answer counts.
fn nvlink5(v: &mut Visit<'_>) -> bool {
    if let Some(known) = v.state.nvlink5 {
        return known;
    }
    let up = v.state.links_up.as_ref().and_then(|up| up.first().copied());
    let link = up.unwrap_or(0);
    let asked = OF_LINKS_5.each_ref().map(|field| (field.id(), link));
    let feeds = [m::gpu_nvlink_link_errors_total.id(), OF_NVLINK_5[0], OF_NVLINK_5[1]];
    let Some(answers) = v.read(FIELDS, &feeds, |d| values_at(d, &asked)) else {
        return false;
    };
    let there = answers.iter().any(Result::is_ok);
    // A link that is down may not have its counters yet.
    v.state.nvlink5 = (there || up.is_some()).then_some(there);
    there
}

/// Returns the number of links, which is read once per handle. Returns `None` if the number is unknown, or if
/// there are no links; in that case the metrics are unsupported.
fn links(v: &mut Visit<'_>, metrics: &[MetricId]) -> Option<u32> {
    if !v.wants(metrics) {
        return None;
    }
    let links = match v.state.links {
        Some(links) => links,
        None => {
            // An unsupported field means that there are no links.
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

/// Reads the speed of the slowest of these links.
fn speed(v: &mut Visit<'_>, links: &[u32]) {
    let metric = &m::gpu_nvlink_speed_bytes_per_second;
    let call = (FIELDS, SPEED);
    let Some(speeds) = v.read(call, &[metric.id()], |d| one_field(d, SPEED, links)) else { return };
    let known = speeds.iter().flatten().map(|megabytes| f64::from(*megabytes) * 1e6);
    v.state.link_rates.nvlink = Some(speeds.iter().all(Option::is_some).then(|| known.sum()));
    let slowest = speeds.into_iter().flatten().min();
    match slowest {
        Some(slowest) => v.add(call, metric, (), slowest, MEGA),
        None => v.unsupported(call, &[metric.id()]),
    }
}

/// Returns the numbers of the remote links, in the order of `links`. A number that the driver lacks is empty.
fn far_links(v: &mut Visit<'_>, links: &[u32]) -> Option<Vec<String>> {
    let feeds = [m::gpu_nvlink_info.id()];
    let numbers = v.read((FIELDS, FAR_LINK), &feeds, |d| one_field(d, FAR_LINK, links))?;
    Some(numbers.into_iter().map(|far| far.map(|n| n.to_string()).unwrap_or_default()).collect())
}

/// Reads one field of several links, in their order. A value that is not supported or not available is `None`.
fn one_field(device: &Device<'static>, id: u32, links: &[u32]) -> Result<Vec<Option<u32>>, NvmlError> {
    let asked: Vec<_> = links.iter().map(|link| (id, *link)).collect();
    let number = |answer| match answer {
        Ok(SampleValue::U32(n)) => Ok(Some(n).filter(|n| *n != u32::MAX)),
        Ok(_) | Err(NvmlError::NotSupported) => Ok(None),
        Err(error) => Err(error),
    };
    values_at(device, &asked)?.into_iter().map(number).collect()
}

/// Adds the labels of a link and its remote end. The row is left out if a call failed, because incomplete
/// labels would identify another link.
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
    v.rows.entity(link).info(&m::gpu_nvlink_info, info);
}

fn remote_type(kind: u32) -> &'static str {
    match kind {
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => "gpu",
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU => "ibmnpu",
        sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => "switch",
        _ => "unknown",
    }
}

/// Returns the address of the remote end. In a virtual machine the switches are hidden, and the driver reports
/// `FFFFFFFF:FF:FF.0`.
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
            if v.supports((FIELDS, [field, link])) {
                continue;
            }
            if let Some(n) = v.read(call, &[metric.id()], |d| link_error_counter(d, link, counter.as_c())) {
                v.add_for(&entity, call, metric, (error,), n, ONE);
            }
        }
    }
}

/// Sums the errors of the links, and drops the rows of links without errors. A sum that leaves out a link would
/// decrease, so it is published only if it is complete. Errors that one generation of links does not count are
/// unsupported only if no kind is counted.
fn sum_up(v: &mut Visit<'_>, links: u32) {
    let of_links = m::gpu_nvlink_link_errors_total.id();
    let unsupported = |gap: &Gap| gap.missing == Missing::Unsupported && gap.metrics == [of_links];
    let counted = v.rows.all().any(|row| row.metric == of_links);
    if counted {
        v.gaps.retain(|gap| !unsupported(gap));
    } else if v.gaps.iter().any(unsupported) {
        v.unsupported(ERROR_COUNTER, &[m::gpu_nvlink_errors_total.id()]);
    }
    for error in NvLinkError::ALL {
        let of = |row: &Row| row.metric == of_links && row.labels == [error.text()];
        let counts: Vec<f64> = v.rows.all().filter(|row| of(row)).map(|row| row.value).collect();
        if counts.len() as u32 == links {
            let sum = SampleValue::F64(counts.iter().sum());
            v.add(ERROR_COUNTER, &m::gpu_nvlink_errors_total, (*error,), sum, ONE);
        }
    }
    v.rows.retain(|row| row.metric != of_links || row.value > 0.0);
}

/// Sums the lane errors like [`sum_up`].
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
            v.add(ERROR_COUNTER, metric, (error,), SampleValue::F64(sum), ONE);
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

    #[test]
    fn a_bit_error_ratio_is_a_mantissa_and_a_decimal_exponent() {
        assert_eq!(bit_error_ratio(f64::from(3 << 8 | 9)), 3e-9);
        assert_eq!(bit_error_ratio(f64::from(1 << 8 | 15)), 1e-15);
        assert_eq!(bit_error_ratio(255.0), 0.0, "no mantissa, no errors");
        assert!(bit_error_ratio(f64::from(u32::MAX)) < 1e-250);
    }

    #[test]
    fn a_call_about_one_link_names_it() {
        let of = |call: CallName| about(&call);
        assert_eq!(of((FIELDS, [OF_LINKS_5[0].id(), 5]).into()), Some(5));
        assert_eq!(of((ERROR_COUNTER, [5, 1]).into()), Some(5));
        assert_eq!(of((STATE, 5).into()), Some(5));
        assert_eq!(of((FIELDS, [field_id::NVML_FI_DEV_POWER_AVERAGE, 1]).into()), None);
        assert_eq!(of(LINK_COUNT.into()), None);
    }

    #[test]
    fn each_kind_of_error_and_codeword_has_one_field() {
        let old = OF_LINKS.iter().filter(|field| field.metric() == m::gpu_nvlink_link_errors_total.id());
        let of = |metric| OF_LINKS_5.iter().filter(move |field| field.metric() == metric).count();
        let new = of(m::gpu_nvlink_link_errors_total.id());
        assert_eq!(old.count() + new, NvLinkError::ALL.len());
        assert_eq!(of(m::gpu_nvlink_link_bit_error_ratio.id()), NvLinkBitErrors::ALL.len());
        assert_eq!(of(m::gpu_nvlink_link_fec_codewords_total.id()), SymbolErrors::ALL.len());
        let mut ids: Vec<u32> = OF_LINKS.iter().chain(&OF_LINKS_5).map(Field::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), OF_LINKS.len() + OF_LINKS_5.len());
    }
}
