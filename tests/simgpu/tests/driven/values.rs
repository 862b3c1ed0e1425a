//! What a node answers when nothing is wrong.

use nvml_wrapper::enum_wrappers::device::{
    Clock, EncoderType, GpuVirtualizationMode, HostVgpuMode, PerformanceState, Sampling,
};
use nvml_wrapper::enum_wrappers::vgpu::VmId;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::Sample;
use nvml_wrapper_sys::bindings as sys;
use simgpu::Function;

use crate::node::*;

#[test]
fn every_function_is_exported() {
    let path = simgpu::library_path().expect("the library is built");
    let path = std::ffi::CString::new(path.to_str().expect("a plain path")).expect("a C string");
    // SAFETY: loading the library runs no code of it.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    for function in Function::ALL {
        let name = std::ffi::CString::new(function.name()).expect("a C string");
        // SAFETY: the library is loaded.
        assert!(!unsafe { libc::dlsym(library, name.as_ptr()) }.is_null(), "{}", function.name());
    }
}

#[test]
fn a_still_node_answers_as_recorded() {
    let node = node("still-8xh200.toml");
    assert_eq!(node.nvml.device_count().said(), Ok(8));
    assert_eq!(node.nvml.sys_driver_version().expect("version"), "580.159.04");
    let gpu = node.nvml.device_by_index(3).expect("a device");
    assert_eq!(gpu.name().expect("name"), "NVIDIA H200");
    assert_eq!(gpu.uuid().expect("uuid"), "GPU-00000000-0000-4000-8000-000000000004");
    assert_eq!(gpu.pci_info().expect("pci").bus_id, "00000000:00:09.0");
    assert_eq!(gpu.power_usage().said(), Ok(77525));
    assert_eq!(gpu.clock_info(Clock::SM).said(), Ok(345));
    assert_eq!(gpu.fan_speed(0).said(), no("InvalidArg"));
    assert_eq!(gpu.total_energy_consumption().said(), Ok(4071042));
    let memory = gpu.memory_info().expect("memory");
    assert_eq!((memory.total, memory.reserved, memory.used), (150754820096, 644939776, 0));
    for same in [
        node.nvml.device_by_pci_bus_id("0000:00:09.0").expect("by address"),
        node.nvml.device_by_uuid("GPU-00000000-0000-4000-8000-000000000004").expect("by uuid"),
    ] {
        assert_eq!(same.index().said(), Ok(3));
    }
    assert_eq!(node.nvml.device_by_index(8).said().err(), Some("InvalidArg".into()));
    assert_eq!(gpu.samples(Sampling::Power, None).expect("samples").len(), 119);
}

#[test]
fn field_values_come_by_position() {
    let node = node("still-8xh200.toml");
    let values = raw_fields(&node, 0, &[(83, 0), (7, 0), (82, 0), (251, 0), (269, 0), (193, 0), (999, 0)]);
    let codes: Vec<u32> = values.iter().map(|v| v.nvmlReturn).collect();
    assert_eq!(codes, [0, 3, 0, 3, 0, 0, 2]);
    // SAFETY: the types say which member is written.
    unsafe {
        assert_eq!((values[0].valueType, values[0].value.ullVal), (3, 3908481));
        assert_eq!((values[2].valueType, values[2].value.uiVal), (1, 35));
        assert_eq!((values[5].valueType, values[5].value.siVal), (5, -8));
    }
    assert!(values.windows(2).all(|w| w[0].timestamp <= w[1].timestamp && w[0].timestamp > 0));
}

#[test]
fn mig_devices_are_devices_of_their_own() {
    let node = node("still-a100-mig.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.mig_mode().expect("mode").current, 1);
    assert_eq!(gpu.utilization_rates().said(), no("NotSupported"));
    assert!(gpu.power_usage().is_ok());
    let names: Vec<String> =
        (0..7).map_while(|i| gpu.mig_device_by_index(i).ok()).map(|d| d.name().expect("a name")).collect();
    let model = "NVIDIA A100-SXM4-80GB MIG";
    let expected = ["3g.40gb", "1c.2g.20gb", "1c.2g.20gb", "1g.10gb"].map(|p| format!("{model} {p}"));
    assert_eq!(names, expected);
    let second = gpu.mig_device_by_index(1).expect("a MIG device");
    assert!(second.uuid().expect("uuid").starts_with("MIG-"));
    assert_eq!(second.mig_parent_device().expect("parent").index().said(), Ok(0));
    assert_eq!(second.attributes().expect("attributes").multiprocessor_count, 14);
    assert_eq!(second.memory_info().expect("memory").used, 4 << 30);
    assert_eq!(second.power_usage().said(), no("NotSupported"));
    let owners: Vec<_> = gpu
        .running_compute_processes()
        .expect("processes")
        .iter()
        .map(|p| (p.pid, p.gpu_instance_id, p.compute_instance_id))
        .collect();
    let expected = [(4200001, 1, 0), (4200002, 5, 0), (4200003, 5, 1), (4200004, 13, 0)];
    assert_eq!(owners, expected.map(|(pid, gi, ci)| (pid, Some(gi), Some(ci))));
}

#[test]
fn a_busy_gpu_agrees_with_itself() {
    let node = node("node-8xh200.toml");
    let held = node.nvml.device_by_index(3).expect("a device");
    assert_eq!(held.enforced_power_limit().said(), Ok(450_000));
    assert!(held.power_usage().expect("power") <= 450_000);
    let before = held.total_energy_consumption().expect("energy");
    until("more energy", || held.total_energy_consumption().is_ok_and(|e| e > before));
    let samples = held.samples(Sampling::Power, None).expect("samples");
    assert_eq!(samples.len(), 119);
    assert!(samples.windows(2).all(|w| (19_999..=20_001).contains(&(w[1].timestamp - w[0].timestamp))));
    let last = samples[118].timestamp;
    let mut newer = Vec::new();
    until("newer samples", || match held.samples(Sampling::Power, Some(last)) {
        Ok(list) => {
            newer = list;
            true
        }
        Err(e) => {
            assert!(matches!(e, NvmlError::NotFound));
            false
        }
    });
    assert!(newer.iter().all(|s| s.timestamp > last) && newer.len() < 119);
    let sick = node.nvml.device_by_index(5).expect("a device");
    assert!(sick.running_compute_processes().expect("processes").iter().all(|p| p.pid > 4_194_304));
    assert_eq!(raw_fields(&node, 5, &[(144, 0)])[0].nvmlReturn, 0);
}

#[test]
fn power_samples_show_what_averages_hide() {
    // The third GPU's phase brings its first spike 0.4 s after the start.
    let node = node_from("[[gpu]]\nmodel = 'H200'\ncount = 3\nload = 'spikes'\n");
    let gpu = node.nvml.device_by_index(2).expect("a device");
    let mut samples = Vec::new();
    until("a spike", || {
        let since = samples.last().map(|s: &Sample| s.timestamp);
        match gpu.samples(Sampling::Power, since) {
            Ok(newer) => samples.extend(newer),
            Err(e) => assert!(matches!(e, NvmlError::NotFound)),
        }
        assert!(gpu.power_usage().is_ok_and(|p| p < 92_000));
        node.state.scenario_seconds() > 0.6
    });
    assert!(samples.windows(2).all(|w| w[1].timestamp > w[0].timestamp));
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_micros() as u64;
    assert!((0..10_000_000).contains(&(since_1970 - samples[samples.len() - 1].timestamp)));
    let watts = |s: &Sample| match s.value {
        SampleValue::U32(milliwatts) => milliwatts / 1000,
        _ => 0,
    };
    let high: Vec<u32> = samples.iter().map(watts).filter(|w| *w > 100).collect();
    assert!(high.len() == 1 && (689..=690).contains(&high[0]), "{high:?}");
}

#[test]
fn clocks_as_text_are_as_recorded() {
    let node = node("still-8xh200.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let states = gpu.supported_performance_states().expect("states");
    assert_eq!(states, [PerformanceState::Two, PerformanceState::Zero]);
    let text = |text: [std::ffi::c_char; 2048]| -> String {
        text.iter().map_while(|c| (*c != 0).then_some(*c as u8 as char)).collect()
    };
    let mut now = sys::nvmlDeviceCurrentClockFreqs_t { version: 2052 | 1 << 24, str_: [0; 2048] };
    let mut modes = sys::nvmlDevicePerfModes_t { version: 2052 | 1 << 24, str_: [0; 2048] };
    // SAFETY: the handle is the device's and the structs are valid.
    unsafe {
        let lib = node.nvml.lib();
        assert_eq!(lib.nvmlDeviceGetCurrentClockFreqs.as_ref().expect("exported")(gpu.handle(), &mut now), 0);
        assert_eq!(
            lib.nvmlDeviceGetPerformanceModes.as_ref().expect("exported")(gpu.handle(), &mut modes),
            0
        );
    }
    let graphics = "nvclock=345, nvclockmin=345, nvclockmax=1980, nvclockeditable=0";
    let memory = |mhz: u32, rate: u32| {
        format!(
            "memclock={mhz}, memclockmin={mhz}, memclockmax={mhz}, memclockeditable=0, memTransferRate={rate}, \
             memTransferRatemin={rate}, memTransferRatemax={rate}, memTransferRateeditable=0"
        )
    };
    let (low, high) = (memory(2201, 4402), memory(3201, 6402));
    assert_eq!(text(now.str_), format!("{graphics}, {high}"));
    assert_eq!(text(modes.str_), format!("perf=0, {graphics}, {low} ; perf=1, {graphics}, {high}"));
}

#[test]
fn video_sessions_are_counted_and_listed() {
    let node = node_from(
        "still = true\n[[gpu]]\nmodel = 'L4'\nencoder_sessions = 3\nfbc_sessions = 1\n\
         processes = [{ pid = 11, memory = '1GiB', type = 'graphics' }, { pid = 12, memory = '1GiB' }]\n\
         [[gpu]]\nmodel = 'H200'\n",
    );
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let stats = gpu.encoder_stats().expect("stats");
    assert_eq!((stats.session_count, stats.average_fps, stats.average_latency), (3, 30, 5000));
    let sessions = gpu.encoder_sessions().expect("sessions");
    let read: Vec<_> = sessions.iter().map(|s| (s.session_id, s.pid, s.average_fps)).collect();
    assert_eq!(read, [(1, 11, 30), (2, 12, 30), (3, 11, 30)]);
    assert_eq!(gpu.fbc_stats().expect("stats").sessions_count, 1);
    assert_eq!(gpu.fbc_sessions_info().expect("sessions").len(), 1);
    assert_eq!(gpu.encoder_capacity(EncoderType::H264).said(), Ok(100));
    let without = node.nvml.device_by_index(1).expect("a device");
    assert_eq!(without.encoder_stats().expect("stats").session_count, 0);
    assert!(without.encoder_sessions().is_ok_and(|s| s.is_empty()));
    assert!(without.fbc_sessions_info().is_ok_and(|s| s.is_empty()));
    assert_eq!(without.encoder_capacity(EncoderType::H264).said(), no("NotSupported"));
}

#[test]
fn vgpus_are_reported_by_their_host() {
    let node = node_from(
        "still = true\n[[gpu]]\nmodel = 'H200'\n[[gpu]]\nmodel = 'L4'\nvgpus = [\
         { uuid = 'a', type = 'NVIDIA L4-6Q', vm = 'vm-1', memory = '2GiB', sm = 40, licensed = true }, \
         { uuid = 'b', type = 'NVIDIA L4-6Q', vm = 'vm-2', memory = '1GiB' }]\n",
    );
    let without = node.nvml.device_by_index(0).expect("a device");
    assert!(without.active_vgpus().is_err_and(|e| matches!(e, NvmlError::NotSupported)));
    assert!(without.vgpu_host_mode().is_err());
    let host = node.nvml.device_by_index(1).expect("a device");
    assert_eq!(host.virtualization_mode().expect("mode"), GpuVirtualizationMode::HostVgpu);
    assert_eq!(host.vgpu_host_mode().expect("mode"), HostVgpuMode::Sriov);
    assert_eq!(host.memory_info().expect("memory").used, 12 << 30);
    let vgpus = host.active_vgpus().expect("vGPUs");
    let read: Vec<_> = vgpus
        .iter()
        .map(|v| {
            let kind = v.instance_type().expect("a type");
            let license = v.license_info_v2().expect("a licence");
            (
                v.uuid().expect("a UUID"),
                v.fb_usage().expect("memory"),
                kind.name().expect("a name"),
                kind.class_name().expect("a class"),
                kind.framebuffer_size().expect("a size"),
                license.is_licensed,
            )
        })
        .collect();
    let (name, class) = ("NVIDIA L4-6Q".to_string(), "Quadro".to_string());
    let expected = [("a", 2, true), ("b", 1, false)];
    let expected = expected.map(|(uuid, gib, licensed)| {
        (uuid.into(), gib << 30, name.clone(), class.clone(), 6 << 30, licensed)
    });
    assert_eq!(read, expected);
    assert!(matches!(vgpus[1].vm_id(), Ok(VmId::Uuid(id)) if id == "vm-2"));
    assert_eq!(vgpus[0].driver_version().said(), Ok("580.159.04".into()));
    let call = node.nvml.lib().nvmlDeviceGetVgpuUtilization.as_ref().expect("exported");
    // SAFETY: the handle is the device's and the count that of the buffer; zeros are a valid sample.
    let samples = unsafe {
        let mut samples: [sys::nvmlVgpuInstanceUtilizationSample_t; 2] = std::mem::zeroed();
        let (mut kind, mut count) = (0, 0);
        let sized = call(host.handle(), 0, &mut kind, &mut count, std::ptr::null_mut());
        assert_eq!((sized, count), (sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, 2));
        assert_eq!(call(host.handle(), 0, &mut kind, &mut count, samples.as_mut_ptr()), 0);
        samples.map(|s| (s.vgpuInstance, s.smUtil.uiVal))
    };
    assert_eq!(samples.map(|(_, sm)| sm), [40, 0]);
}

#[test]
fn gpm_tells_what_happened_between_two_samples() {
    let node = node("node-8xh200.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let mut results = Vec::new();
    // A checkpoint dip may lie in the window: what must hold is that it is a percentage above 0.
    let first = gpu.gpm_sample().expect("a sample");
    let second = gpu.gpm_sample().expect("a sample");
    let ids = [GpmMetricId::SmUtil, GpmMetricId::PcieTxPerSec];
    results.extend(nvml_wrapper::gpm::gpm_metrics_get(&node.nvml, &first, &second, &ids).expect("metrics"));
    let values: Vec<f64> = results.into_iter().map(|r| r.expect("a metric").value).collect();
    assert!(values[0] > 0.0 && values[0] <= 100.0 && values[1] > 0.0, "{values:?}");
    let shared = node.nvml.device_by_index(7).expect("a device");
    let instance = shared.gpm_mig_sample(1).expect("a sample of an instance");
    assert!(shared.gpm_mig_sample(99).is_err());
    drop(instance);
}

#[test]
fn every_scenario_of_the_project_reads() {
    let mut n = 0;
    for entry in std::fs::read_dir(scenario("")).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "toml") {
            if let Err(e) = simgpu::Scenario::load(&path) {
                panic!("{e}");
            }
            n += 1;
        }
    }
    assert!(n >= 14);
}
