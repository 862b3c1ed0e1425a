//! PCI addresses, which have different forms in NVML, in the kernel and in the kernel log.

/// Converts the NVML form of a PCI address (`00000000:06:00.0`) to the kernel form (`0000:06:00.0`).
pub fn kernel_address(bus_id: &str) -> String {
    let lower = bus_id.to_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

/// Returns the bytes per second of a PCIe link in one direction, after line coding. Generations 1 and 2 transfer 8
/// bits of data in 10 bits, generations 3 to 5 transfer 128 in 130, and generation 6 and later transfer 242 bytes of
/// data in 256 (PCI Express Base Specification, physical layer).
pub fn link_rate(generation: f64, lanes: f64) -> Option<f64> {
    let (transfers, code) = match generation as u32 {
        1 => (2.5e9, 0.8),
        2 => (5e9, 0.8),
        3 => (8e9, 128.0 / 130.0),
        4 => (16e9, 128.0 / 130.0),
        5 => (32e9, 128.0 / 130.0),
        6 => (64e9, 242.0 / 256.0),
        _ => return None,
    };
    (lanes >= 1.0).then(|| transfers * code * lanes / 8.0)
}

/// Returns a PCI address without its function, such as `0000:06:00`. The ledger compares addresses in this form,
/// because addresses of NVML have a function and a domain of up to eight digits, and addresses of the kernel log may
/// have no function. Old drivers only log the bus and the device.
pub fn pci_address(text: &str) -> Option<String> {
    let (address, function) = text.split_once('.').map_or((text, None), |(a, f)| (a, Some(f)));
    if function.is_some_and(|f| f.len() != 1 || !f.bytes().all(|b| b.is_ascii_hexdigit())) {
        return None;
    }
    let mut numbers = Vec::with_capacity(3);
    for part in address.split(':') {
        let digits = (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        numbers.push(u32::from_str_radix(part, 16).ok().filter(|_| digits)?);
    }
    let (domain, bus, device) = match numbers.as_slice() {
        [domain, bus, device] => (*domain, *bus, *device),
        [bus, device] => (0, *bus, *device),
        _ => return None,
    };
    (bus <= 0xff && device <= 0x1f).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_spelled_as_the_kernel_does() {
        assert_eq!(kernel_address("00000000:0A:00.0"), "0000:0a:00.0");
        assert_eq!(kernel_address("00010000:0A:00.0"), "00010000:0a:00.0");
        assert_eq!(kernel_address("0000:06:00.0"), "0000:06:00.0");
    }

    #[test]
    fn pci_addresses_of_all_sources_compare() {
        for same in ["0000:C9:00.0", "00000000:c9:00.0", "0000:c9:00", "00c9:00", "c9:00"] {
            assert_eq!(pci_address(same).as_deref(), Some("0000:c9:00"), "{same}");
        }
        assert_eq!(pci_address("10000:01:00.0").as_deref(), Some("10000:01:00"));
        for none in
            ["", "06", "0000:06:00:1", "0000:1ff:00", "0000:06:20", "+1:06:00", "0000:06:00.", "x:06:00"]
        {
            assert_eq!(pci_address(none), None, "{none}");
        }
    }

    #[test]
    fn links_have_their_rates() {
        assert_eq!(link_rate(5.0, 16.0).map(|rate| (rate / 1e9).round()), Some(63.0));
        assert_eq!(link_rate(1.0, 16.0), Some(4e9));
        assert_eq!(link_rate(0.0, 16.0), None);
    }
}
