//! What must hold of the picture whatever is drawn.

use super::*;
use crate::map::{Known, Map};
use model::topology::fixtures::{device, machine};
use model::topology::{DeviceKind, Topology};

#[test]
fn nothing_hostile_gets_out_of_its_text() {
    let hostile = "<script>alert('1')</script>&\"\u{1}\u{ffff}";
    let mut topology = machine(&[("0-3", &["0-3"])]);
    topology.machine = hostile.into();
    topology.packages[0].model = hostile.into();
    topology.notes.push(hostile.into());
    topology.devices = vec![
        device(DeviceKind::Gpu, "0000:06:00.0", Some(0), "0-3", &["<rp>"]),
        device(DeviceKind::Network, "0000:07:00.0", Some(0), "0-3", &["<rp>"]),
    ];
    topology.devices[1].names = vec![hostile.into()];
    let known = Known { model: hostile.into(), pci_address: "06:00.0".into(), ..Known::default() };
    let picture = svg(&Map::new(topology, &[known]));
    assert!(!picture.contains("<script") && !picture.contains("<rp>"), "{picture}");
    assert!(!picture.contains(['\u{1}', '\u{ffff}']), "{picture}");
    assert!(picture.contains("&lt;script&gt;alert(&#39;1&#39;)"), "{picture}");
    assert_eq!(picture.matches("<g").count(), picture.matches("</g>").count());
}

#[test]
fn a_machine_of_which_nothing_is_known_is_drawn() {
    let picture = svg(&Map::new(Topology::default(), &[]));
    assert!(picture.starts_with("<svg") && picture.contains("No GPU was found."), "{picture}");
}
