//! What goes wrong on a node: the steps of a scenario.

use std::path::Path;
use std::thread;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, PerformancePolicy};
use simgpu::State;

use crate::node::*;

#[test]
fn a_call_hangs_until_it_is_released_and_no_other_does() {
    let node = node("hang-gpu3.toml");
    node.state.open_gate("hang").expect("a gate");
    thread::scope(|scope| {
        let stuck = scope.spawn(|| temperature(&node, 3));
        until("the hang", || node.state.calls_held() == 1);
        assert_eq!(temperature(&node, 2), Ok(32));
        assert!(!stuck.is_finished());
        node.state.open_gate("release").expect("a gate");
        assert_eq!(stuck.join().expect("no panic"), Ok(34));
    });
    assert_eq!(temperature(&node, 3), Ok(34));
    assert!(node.state.open_gate("no such gate").is_err());
}

#[test]
fn the_library_wide_lock_holds_every_process() {
    let node = node("hang-lock.toml");
    let uuid = "GPU-00000000-0000-4000-8000-000000000001";
    node.state.open_gate("hang").expect("a gate");
    assert_eq!(temperature(&node, 0), Ok(33), "the lock is still free");
    thread::scope(|scope| {
        let holder = scope.spawn(|| temperature(&node, 3).is_ok());
        until("the lock", || node.state.calls_held() == 1);
        let waiter = scope.spawn(|| node.nvml.device_by_uuid(uuid).is_ok());
        let other = scope.spawn(|| load(&scenario("hang-lock.toml"), &node.state_file).is_ok());
        until("the waiters", || node.state.calls_held() == 3);
        assert!(!holder.is_finished() && !waiter.is_finished() && !other.is_finished());
        node.state.open_gate("release").expect("a gate");
        assert!(holder.join().is_ok_and(|ok| ok));
        assert!(waiter.join().is_ok_and(|ok| ok));
        assert!(other.join().is_ok_and(|ok| ok));
    });
}

#[test]
fn a_lost_gpu_says_so_once_by_event_and_then_in_every_call() {
    let node = node("lost-gpu2.toml");
    let gpu = node.nvml.device_by_index(2).expect("a device");
    let set = node.nvml.create_event_set().expect("a set");
    let set =
        gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|e| e.error).expect("registered");
    assert_eq!(set.wait(0).said().err(), Some("Timeout".into()));
    node.state.open_gate("lost").expect("a gate");
    assert_eq!(xid(&set, 10_000), Ok(79));
    assert_eq!(set.wait(0).said().err(), Some("GpuLost".into()));
    assert_eq!(temperature(&node, 2), no("GpuLost"));
    assert_eq!(temperature(&node, 1), Ok(32));
    assert_eq!(node.nvml.device_count().said(), Ok(4));
}

#[test]
fn a_new_layout_ends_the_old_devices() {
    let text = "[[gpu]]\nmodel = 'H200'\nmig = ['7g.141gb']\n\
                [[step]]\ngate = 'cut'\ngpu = 0\nmig = ['3g.71gb', '3g.71gb']\n";
    let node = node_from(text);
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let old = gpu.mig_device_by_index(0).expect("a MIG device");
    let old_uuid = old.uuid().expect("uuid");
    node.state.open_gate("cut").expect("a gate");
    assert_eq!(old.uuid().said(), no("InvalidArg"));
    let new: Vec<_> = (0..2).map(|i| gpu.mig_device_by_index(i).and_then(|d| d.uuid()).said()).collect();
    assert!(new.iter().all(|uuid| uuid.is_ok() && *uuid != Ok(old_uuid.clone())), "{new:?}");
    node.state.close_gate("cut").expect("a gate");
    assert_eq!(old.uuid().said(), Ok(old_uuid));
}

#[test]
fn blank_values_arrive_as_the_driver_sends_them() {
    let node = node("blank.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.power_usage().said(), Ok(u32::MAX));
    assert_eq!(gpu.total_energy_consumption().said(), Ok(u64::MAX));
    assert_eq!(gpu.utilization_rates().expect("rates").gpu, 250);
    assert_eq!(gpu.memory_info().expect("memory").used, i64::MAX as u64);
    let fields = raw_fields(&node, 0, &[(186, 0)]);
    // SAFETY: field 186 is an unsigned int.
    assert_eq!(unsafe { fields[0].value.uiVal }, u32::MAX);
    assert_eq!(node.nvml.device_by_index(1).expect("a device").power_usage().said(), Ok(81560));
}

#[test]
fn the_driver_goes_and_comes_back() {
    let node = node("driver-gone.toml");
    let gpu = node.nvml.device_by_index(0).expect("a device");
    node.state.open_gate("gone").expect("a gate");
    assert_eq!(gpu.power_usage().said(), no("DriverNotLoaded"));
    let other = load(&scenario("driver-gone.toml"), &node.state_file);
    assert_eq!(other.said().err(), Some("DriverNotLoaded".into()));
    node.state.close_gate("gone").expect("a gate");
    assert_eq!(gpu.power_usage().said(), Ok(78861));
}

#[test]
fn what_happens_once_happens_once_in_all_processes() {
    let text = "[[gpu]]\nmodel = 'H200'\n[[step]]\ngpu = 0\nxid = 31\n\
                [[step]]\nafter_calls = { function = 'nvmlDeviceGetTemperature', gpu = 0, count = 3 }\n\
                function = 'nvmlDeviceGetTemperature'\nerror = 'NVML_ERROR_TIMEOUT'\n";
    let file = scratch("scenario.toml");
    std::fs::write(&file, text).expect("a scenario can be written");
    let node = node_of(&file);
    let other = Node {
        nvml: load(&file, &node.state_file).expect("a second process"),
        state: State::open(&node.state_file).expect("the state opens"),
        state_file: node.state_file.clone(),
    };
    for (process, expected) in [(&node, Ok(31)), (&other, no("Timeout"))] {
        let gpu = process.nvml.device_by_index(0).expect("a device");
        let set = process.nvml.create_event_set().expect("a set");
        let set = gpu
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|e| e.error)
            .expect("registered");
        assert_eq!(xid(&set, 0), expected);
    }
    assert!(temperature(&node, 0).is_ok() && temperature(&other, 0).is_ok());
    assert_eq!(temperature(&other, 0), no("Timeout"));
    assert_eq!(temperature(&node, 0), no("Timeout"));
    assert_eq!(node.state.calls_of("nvmlDeviceGetTemperature"), 4);
    assert!(node.state.cpu_seconds() > 0.0 && node.state.scenario_seconds() > 0.0);
}

#[test]
fn a_library_can_write_where_it_should_not_once() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let node = node_from(&format!(
        "[[gpu]]\nmodel = 'L4'\n[[step]]\ngpu = 0\nwrite_fd = {{ fd = {}, bytes = '10fF00' }}\n",
        std::os::fd::AsRawFd::as_raw_fd(&writer),
    ));
    assert!(temperature(&node, 0).is_ok() && temperature(&node, 0).is_ok());
    drop(writer);
    let mut written = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut written).expect("the pipe reads");
    assert_eq!(written, [0x10, 0xff, 0]);
}

#[test]
fn a_step_lasts_as_long_as_it_says() {
    let node = node_from(
        "still = true\n[[gpu]]\nmodel = 'H200'\n[[step]]\nfor = '300ms'\nfunction = 'nvmlDeviceGetPowerUsage'\n\
         hang = true\n[[step]]\nat = '300ms'\ngpu = 0\nset = { nvmlDeviceGetPowerUsage = 1 }\n",
    );
    let gpu = node.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.power_usage().said(), Ok(1));
    assert!(node.state.scenario_seconds() >= 0.3);
    // Waiting burns no CPU; generous, for slow machines.
    assert!(node.state.cpu_seconds() < 0.2, "{}", node.state.cpu_seconds());
}

#[test]
fn a_throttled_gpu_slows_down_and_counts_it() {
    let node = node_from(
        "[[gpu]]\nmodel = 'H200'\nload = 'training'\n[[step]]\ngate = 'heat'\ngpu = 0\nthrottle = ['hw_slowdown']\n",
    );
    let gpu = node.nvml.device_by_index(0).expect("a device");
    let policy = PerformancePolicy::Thermal;
    let before = gpu.violation_status(policy).expect("a status").violation_time;
    let clock = gpu.clock_info(Clock::SM).expect("a clock");
    node.state.open_gate("heat").expect("a gate");
    assert!(gpu.clock_info(Clock::SM).expect("a clock") < clock);
    assert!(gpu.current_throttle_reasons().is_ok_and(|r| r.bits() & 0x8 != 0));
    until("held time", || gpu.violation_status(policy).is_ok_and(|v| v.violation_time > before));
}

#[test]
fn a_gpu_says_what_would_make_it_well() {
    let node =
        node_from("[[gpu]]\nmodel = 'H200'\n[[step]]\ngate = 'sick'\nrecovery_action = 'drain_and_reset'\n");
    // SAFETY: field 230 is an unsigned int.
    let wanted = || unsafe { raw_fields(&node, 0, &[(230, 0)])[0].value.uiVal };
    assert_eq!(wanted(), 0);
    node.state.open_gate("sick").expect("a gate");
    assert_eq!(wanted(), 4);
}

#[test]
fn a_broken_scenario_is_no_driver() {
    let file = scratch("scenario.toml");
    std::fs::write(&file, "colour = 'red'").expect("a scenario can be written");
    assert_eq!(load(&file, &scratch("state")).said().err(), Some("Unknown".into()));
    assert_eq!(load(Path::new("/nonexistent"), &scratch("state")).said().err(), Some("Unknown".into()));
}
