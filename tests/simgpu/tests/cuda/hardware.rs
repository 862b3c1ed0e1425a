//! Steps about the hardware: each shows where the kernels and copies look for it, and nowhere else.

use nvml_wrapper::enum_wrappers::device::Clock;

use crate::cuda::{Cuda, Handle, NULL, out};
use crate::kernels::{self, H200, check, fill, median, sm_rate, sm_sdc, tensor};
use canary::abi::*;

fn node(step: &str) -> Cuda {
    Cuda::with_context(&format!("{H200}[[step]]\ngpu = 0\n{step}\n"))
}

#[test]
fn a_slow_multiprocessor_is_slow_alone() {
    let cuda = node("sm = { id = 17, rate = 0.97 }");
    let rate = sm_rate(&cuda, 400);
    let work = rate.work_per_cycle();
    let usual = median(work.clone());
    for (stamp, work) in rate.stamps.iter().zip(work) {
        let expected = if stamp.smid == 17 { 0.97 } else { 1.0 };
        assert!((work / usual - expected).abs() < 1e-3, "{}: {work}", stamp.smid);
    }
    assert_eq!(rate.bad.count, 0);
}

#[test]
fn a_wrong_unit_flips_its_bit_in_sm_sdc() {
    for (number, unit) in
        ["int32", "fp32", "fp64", "tensor", "shared", "shuffle", "atomic"].iter().enumerate()
    {
        let cuda = node(&format!("wrong = {{ sm = 17, unit = '{unit}', lane = 37, bit = 12 }}"));
        let (blocks, smids) = sm_sdc(&cuda, 3);
        let at = number * SDC_THREADS + 37;
        for (block, smid) in blocks.iter().zip(smids) {
            let mut expected = blocks[0].clone();
            expected[at] ^= if smid == 17 { 1 << 12 } else { 0 };
            assert!(*block == expected, "{unit} on {smid}");
        }
    }
}

#[test]
fn a_wrong_unit_shows_in_the_rates_that_use_it() {
    let wrong = |unit: &str, more: &str| {
        let step = format!("wrong = {{ sm = 3, unit = '{unit}', lane = 5, bit = 12 {more} }}");
        let cuda = node(&step);
        (sm_rate(&cuda, 20).bad, tensor(&cuda, 20).bad)
    };
    let (rate, products) = wrong("fp32", "");
    assert_eq!((rate.count, products.count), (1, 0));
    assert_eq!((rate.lanes[0].smid, rate.lanes[0].thread), (3, 5));
    assert_ne!(rate.lanes[0].got, rate.lanes[0].expected);
    let (rate, products) = wrong("tensor", "");
    assert_eq!((rate.count, products.count), (0, 1));
    assert_eq!((products.lanes[0].smid, products.lanes[0].thread), (3, 5));
    let (rate, _) = wrong("fp32", ", zero = true");
    assert_eq!((rate.count, rate.lanes[0].got), (1, 0));
    let (rate, products) = wrong("int32", "");
    assert_eq!((rate.count, products.count), (0, 0));
}

#[test]
fn a_bit_that_flips_in_both_chains_of_sm_rate_shows_whichever_it_is() {
    for bit in 0..32 {
        let bad =
            sm_rate(&node(&format!("wrong = {{ sm = 3, unit = 'fp32', lane = 5, bit = {bit} }}")), 20).bad;
        assert_eq!((bad.count, bad.lanes[0].smid, bad.lanes[0].thread), (1, 3, 5), "bit {bit}");
        let wrong = bad.lanes[0].got ^ bad.lanes[0].expected;
        assert!(wrong >> 32 != 0 && wrong as u32 != 0, "bit {bit}: {wrong:x}");
    }
}

#[test]
fn a_unit_can_be_wrong_now_and_then_and_lose_all_bits() {
    let cuda = node("wrong = { sm = 1, unit = 'fp64', lane = 0, bit = 1, every = 3, zero = true }");
    let wrong = |cuda: &Cuda| {
        let (blocks, _) = sm_sdc(cuda, 3);
        (blocks[1] != blocks[0]).then(|| blocks[1][SDC_THREADS * 2])
    };
    let seen: Vec<Option<u64>> = (0..5).map(|_| wrong(&cuda)).collect();
    assert_eq!(seen, [Some(0), None, None, Some(0), None]);
}

#[test]
fn a_stuck_bit_of_memory_is_found_by_one_of_two_patterns() {
    let cuda = node("memory_wrong = { offset = 4096, bit = 3 }");
    let words = 64 << 10;
    let data = cuda.allocate(words * 8);
    let found = |pattern| {
        fill(&cuda, data, words as u64, pattern, 0x1000, 0);
        check(&cuda, data, words as u64, pattern, 0x1000, 0)
    };
    let (address, complement) = (found(Pattern::Constant), found(Pattern::NotAddress));
    assert_eq!((address.count, address.words[0].offset), (1, 4096));
    assert_eq!((address.words[0].expected, address.words[0].got), (0x1000, 0x1008));
    assert_eq!(complement.count, 0, "there the bit is 1 anyway");
}

#[test]
fn a_bit_changes_on_its_way() {
    let cuda = node("copy_wrong = { direction = 'to_gpu', offset = 64, bit = 1 }");
    let words: Vec<u64> = vec![0; 100];
    let got = cuda.download::<u64>(cuda.upload(&words), 100);
    assert_eq!((got[8], got.iter().filter(|w| **w != 0).count()), (2, 1));
    let back = node("copy_wrong = { direction = 'to_host', offset = 8, bit = 63 }");
    let data = back.upload(&words);
    assert_eq!(back.download::<u64>(data, 2), [0, 1 << 63]);
    assert_eq!(back.download::<u64>(data, 1), [0], "a copy that is too short for it");
}

#[test]
fn a_clock_is_low_whether_it_is_reported_or_not() {
    for (more, clock) in [("", 1980), ("\nreported = true", 1485)] {
        let cuda = node(&format!("sm_clock = 0.75{more}"));
        let rate = sm_rate(&cuda, 400);
        let mhz = median(rate.mhz());
        assert!((mhz / 1485.0 - 1.0).abs() < 3e-3, "{mhz}");
        assert!((median(rate.work_per_cycle()) / (128.0 * 0.989) - 1.0).abs() < 1e-3);
        let gpu = cuda.nvml.device_by_index(0).expect("a device");
        assert_eq!(gpu.clock_info(Clock::SM).expect("a clock"), clock);
        assert!(gpu.current_throttle_reasons().expect("reasons").is_empty());
    }
}

#[test]
fn a_throttled_clock_is_low_and_has_its_reason() {
    let cuda = node("throttle = ['hw_slowdown']");
    let mhz = median(sm_rate(&cuda, 400).mhz());
    assert!((mhz / 990.0 - 1.0).abs() < 5e-3, "{mhz}");
    let gpu = cuda.nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.current_throttle_reasons().expect("reasons").bits(), 0x8);
    assert_eq!(gpu.clock_info(Clock::SM).expect("a clock"), 990);
}

#[test]
fn memory_and_links_have_their_rates() {
    let bytes = 16 << 20;
    let memory = |cuda: &Cuda| {
        let data = cuda.allocate(bytes);
        kernels::read(cuda, c"hbm_read", data, bytes, 33).0
    };
    let usual = memory(&Cuda::with_context(H200));
    let slow = memory(&node("memory_rate = 0.8"));
    assert!((slow / usual - 0.8).abs() < 0.02, "{slow:e}");
    let copy = |cuda: &Cuda| {
        let host: Handle = out(NULL, |out| cuda.cuMemHostAlloc(out, bytes, 0)).expect("pinned memory");
        let device = cuda.allocate(bytes);
        cuda.timed(|| cuda.cuMemcpyHtoDAsync_v2(device, host, bytes, NULL).expect("a copy"))
    };
    let usual = copy(&Cuda::with_context(H200));
    let narrow = node("pcie = { generation = 5, width = 8 }");
    assert!((copy(&narrow) / usual - 2.0).abs() < 0.1);
    let gpu = narrow.nvml.device_by_index(0).expect("a device");
    assert_eq!((gpu.current_pcie_link_gen().ok(), gpu.current_pcie_link_width().ok()), (Some(5), Some(8)));
    assert_eq!(gpu.max_pcie_link_width().ok(), Some(16));
    let weak = node("pcie_rate = 0.7");
    assert!((copy(&weak) / usual - 1.0 / 0.7).abs() < 0.1);
    assert_eq!(weak.nvml.device_by_index(0).and_then(|gpu| gpu.current_pcie_link_width()).ok(), Some(16));
}

#[test]
fn a_mig_device_has_its_share() {
    let text = "still = true\n[[gpu]]\nmodel = 'H200'\nmig = ['3g.71gb', '1g.18gb']\n";
    let cuda = Cuda::with_context(text);
    let rate = sm_rate(&cuda, 200);
    assert_eq!((rate.stamps.len(), rate.stamps[59].smid), (60, 59));
    assert!((median(rate.work_per_cycle()) / (128.0 * 0.989) - 1.0).abs() < 1e-3);
    let bytes = 15 << 20;
    let data = cuda.allocate(bytes);
    let (rate, _) = kernels::read(&cuda, c"hbm_read", data, bytes, 20);
    let peak = 3201e6 * 2.0 * 6016.0 / 8.0;
    assert!((rate / (peak * 0.5 * 0.885) - 1.0).abs() < 0.03, "{rate:e}");
}
