//! What a node says of itself: the kernel log, and events.

use std::path::Path;

use nvml_wrapper_sys::bindings as sys;
use simgpu::State;

use crate::node::*;

/// The records so far: number, microseconds, text.
fn records(node: &Node) -> Vec<(u64, u64, String)> {
    let log = std::fs::read_to_string(kernel_log(&node.state_file)).expect("a kernel log");
    let record = |line: &str| {
        let (head, text) = line.split_once(';').expect("a record");
        let [priority, number, us, flags] = head.split(',').collect::<Vec<_>>().try_into().expect("4 parts");
        assert_eq!((priority, flags), ("4", "-"));
        (number.parse().expect("a number"), us.parse().expect("a number"), text.into())
    };
    log.lines().map(record).collect()
}

fn texts(node: &Node) -> Vec<String> {
    records(node).into_iter().map(|(.., text)| text).collect()
}

/// A second process of a node; the first one's end removes its files.
fn another(node: &Node, scenario: &Path) -> Node {
    let nvml = load(scenario, &node.state_file).expect("a second process");
    let state = State::open(&node.state_file).expect("the state opens");
    Node { nvml, state, state_file: node.state_file.clone() }
}

/// Registers for events of GPU 0.
fn set(node: &Node, mask: u64) -> sys::nvmlEventSet_t {
    let device = node.nvml.device_by_index(0).expect("a device");
    let (lib, mut set) = (node.nvml.lib(), std::ptr::null_mut());
    let create = lib.nvmlEventSetCreate.as_ref().expect("exported");
    let register = lib.nvmlDeviceRegisterEvents.as_ref().expect("exported");
    // SAFETY: the pointer is valid, and the handles are the library's.
    unsafe {
        assert_eq!(create(&mut set), 0);
        assert_eq!(register(device.handle(), mask, set), 0);
    }
    set
}

/// The next event: type, data, GPU instance, compute instance.
fn event(node: &Node, set: sys::nvmlEventSet_t) -> Result<(u64, u64, u32, u32), u32> {
    let wait = node.nvml.lib().nvmlEventSetWait_v2.as_ref().expect("exported");
    // SAFETY: all zeros are a valid event, and the set is the library's.
    let (code, data) = unsafe {
        let mut data: sys::nvmlEventData_t = std::mem::zeroed();
        (wait(set, &mut data, 0), data)
    };
    let event = (data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId);
    if code == 0 { Ok(event) } else { Err(code) }
}

#[test]
fn the_kernel_log_is_one_log_of_all_processes() {
    let text = "[[gpu]]\nmodel = 'H200'\ncount = 2\n\
                [[step]]\ngpu = 1\nxid = 79\n\
                [[step]]\ngate = 'a'\ngpu = 0\n\
                xid = { code = 31, pid = 522, name = 'app', gpu_instance = 1, compute_instance = 0 }\n\
                [[step]]\ngate = 'b'\nkmsg = ['one', 'two']\nrepeat = 2\n\
                [[step]]\ngate = 'b'\nrepeat = 3\nevery = '1ms'\ngpu = 0\n\
                xid = { code = 94, text = 'Contained', sources = ['kmsg'] }\n\
                [[step]]\ngate = 'b'\ngpu = 0\nxid = { code = 48, sources = ['nvml'] }\n";
    let file = scratch("scenario.toml");
    std::fs::write(&file, text).expect("a scenario can be written");
    let node = node_of(&file);
    assert_eq!(
        texts(&node),
        ["NVRM: Xid (PCI:0000:00:07): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."]
    );
    let other = another(&node, &file);
    node.state.open_gate("a").expect("a gate");
    assert!(temperature(&other, 1).is_ok());
    let fault = "NVRM: Xid (PCI:0000:00:06 GPU-I:01 GPU-CI:00): 31, pid=522, name=app, channel 0x0000000a, ";
    assert!(texts(&node)[1].starts_with(fault), "{:?}", texts(&node));
    node.state.open_gate("b").expect("a gate");
    until("nine lines", || {
        assert!(temperature(&node, 0).is_ok() && temperature(&other, 0).is_ok());
        texts(&node).len() == 9
    });
    assert_eq!(texts(&node)[2..6], ["one", "two", "one", "two"]);
    let contained = "NVRM: Xid (PCI:0000:00:06): 94, pid='<unknown>', name=<unknown>, Contained";
    assert_eq!(texts(&node)[6..], [contained; 3]);
    let records = records(&node);
    assert!(records.windows(2).all(|w| w[1].0 == w[0].0 + 1 && w[1].1 >= w[0].1), "{records:?}");
    let set = set(&node, 8);
    let none = u32::MAX;
    assert_eq!(event(&node, set), Ok((8, 31, 1, 0)));
    assert_eq!(event(&node, set), Ok((8, 48, none, none)));
    assert_eq!(event(&node, set), Err(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT));
}

#[test]
fn the_driver_says_when_it_goes_and_comes() {
    let node = node("driver-gone.toml");
    node.state.open_gate("gone").expect("a gate");
    assert!(temperature(&node, 0).is_err());
    node.state.close_gate("gone").expect("a gate");
    assert!(temperature(&node, 0).is_ok());
    let said = texts(&node);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("nvidia-nvlink: Unregistered Nvlink Core"));
    assert!(said[1].starts_with("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04  "));
}

#[test]
fn only_registered_events_are_delivered() {
    let node = node_from(
        "[[gpu]]\nmodel = 'H200'\n[[step]]\ngpu = 0\nevent = { type = 0x400, data = 7 }\n\
         [[step]]\ngpu = 0\nrepeat = 2\nevent = { type = 0x8000, data = 1, gpu_instance = 2 }\n",
    );
    let recovery = set(&node, 0x8000);
    for _ in 0..2 {
        assert_eq!(event(&node, recovery), Ok((0x8000, 1, 2, u32::MAX)));
    }
    assert_eq!(event(&node, recovery), Err(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT));
    assert_eq!(event(&node, set(&node, 0xff9f)), Ok((0x400, 7, u32::MAX, u32::MAX)));
}

#[test]
fn a_recovery_is_reported_from_its_beginning_to_its_end() {
    let node = node("recovery.toml");
    let set = set(&node, 0x8400);
    let none = u32::MAX;
    node.state.open_gate("sick").expect("a gate");
    assert_eq!(event(&node, set), Ok((0x400, 0, none, none)));
    assert_eq!(event(&node, set), Ok((0x8000, 1, none, none)));
    assert_eq!(event(&node, set), Err(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT));
    // SAFETY: field 230 is an unsigned int.
    let wanted = |gpu| unsafe { raw_fields(&node, gpu, &[(230, 0)])[0].value.uiVal };
    assert_eq!([wanted(0), wanted(1), wanted(2)], [1, 4, 0]);
    node.state.open_gate("reset").expect("a gate");
    assert_eq!(event(&node, set), Ok((0x8000, 0, none, none)));
    assert_eq!([wanted(0), wanted(1)], [0, 4]);
}

#[test]
fn a_burst_of_xids_comes_by_both_sources() {
    let node = node("xid-burst.toml");
    let set = set(&node, 8);
    let mut events = Vec::new();
    until("the last line", || {
        events.extend(event(&node, set));
        texts(&node).iter().any(|text| text.contains("): 199, "))
    });
    events.extend(std::iter::from_fn(|| event(&node, set).ok()));
    let lines = texts(&node);
    assert!(
        lines[..10].iter().all(|l| l.contains("(PCI:0000:00:06): 31, pid=522, name=app, channel")),
        "{lines:?}"
    );
    assert!(lines[10].contains("(PCI:0000:00:07): 79, ") && lines.len() == 12, "{lines:?}");
    assert_eq!(events, [(8, 31, u32::MAX, u32::MAX); 10]);
}
