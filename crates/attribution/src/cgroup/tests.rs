use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    cgroup: String,
    innermost: String,
    pod_uid: Option<String>,
    runtime: Option<String>,
    container: Option<String>,
    job: Option<String>,
    step: Option<String>,
    unit: Option<String>,
    user: Option<u32>,
    path: String,
    #[serde(default)]
    relative: bool,
}

#[test]
fn every_recorded_path_means_what_it_says() {
    let cases: Cases = toml::from_str(include_str!("../../../../tests/data/cgroups/cases.toml")).unwrap();
    for case in cases.case {
        let found = membership(case.cgroup.as_bytes());
        let name = &case.name;
        assert_eq!(format!("{:?}", found.innermost).to_lowercase(), case.innermost, "{name}");
        assert_eq!(found.pod_uid, case.pod_uid, "{name}");
        let container = found.container.as_ref();
        assert_eq!(container.map(|c| c.id.clone()), case.container, "{name}");
        let runtime = container.and_then(|c| c.runtime).map(str::to_owned);
        assert_eq!(runtime, case.runtime, "{name}");
        assert_eq!(found.job.as_ref().map(|job| job.id.clone()), case.job, "{name}");
        assert_eq!(found.job.as_ref().and_then(|job| job.step.clone()), case.step, "{name}");
        assert_eq!((found.unit, found.user), (case.unit, case.user), "{name}");
        assert_eq!((found.path, found.relative), (case.path, case.relative), "{name}");
    }
}

#[test]
fn a_group_whose_name_is_no_text_has_no_path() {
    let found = membership(b"0::/system.slice/caf\xe9.service\n");
    assert_eq!((found.innermost, &*found.path), (Innermost::Unit, ""));
    assert_eq!(membership(b"0::/a/../../etc/x.service\n").path, "");
    assert_eq!(membership(b""), Membership::default());
    assert_eq!(membership(b"no colon\n::\n0::\n"), Membership::default());
}

#[test]
fn what_is_missing_in_front_of_a_relative_path_is_known() {
    let pod = format!("/kubepods-burstable-podx.slice/cri-containerd-{}.scope", "a".repeat(64));
    let whole = format!("/kubepods.slice/kubepods-burstable.slice{pod}");
    assert!(absolute(&pod).contains(&whole));
    assert!(absolute("/burstable/podx/y").contains(&"/kubepods/burstable/podx/y".to_owned()));
    assert!(absolute("/podx/y").contains(&"/kubepods/besteffort/podx/y".to_owned()));
    assert_eq!(absolute("/system.slice/a.service")[0], "/system.slice/a.service");
}

/// Bytes that are made of the words paths are made of.
fn wordy() -> impl Strategy<Value = Vec<u8>> {
    let id = "a".repeat(64);
    let words = vec![
        "0::".to_owned(),
        "5:memory:".to_owned(),
        "/".to_owned(),
        "..".to_owned(),
        "kubepods".to_owned(),
        "burstable".to_owned(),
        "pod".to_owned(),
        "kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice".to_owned(),
        "2c48913c-b29f-11e7-9350-020968147796".to_owned(),
        "docker-".to_owned(),
        id,
        ".scope".to_owned(),
        ".slice".to_owned(),
        ".service".to_owned(),
        "user-1000".to_owned(),
        "slurm".to_owned(),
        "slurmstepd.scope".to_owned(),
        "job_1".to_owned(),
        "step_0".to_owned(),
        "lxc".to_owned(),
        "lxc.payload.".to_owned(),
        ":cri-containerd:".to_owned(),
        "\n".to_owned(),
        "\u{fffd}".to_owned(),
    ];
    prop::collection::vec(prop::sample::select(words), 0..40).prop_map(|words| words.concat().into_bytes())
}

fn holds(bytes: &[u8]) -> Result<(), TestCaseError> {
    let found = membership(bytes);
    let below = found.path.split('/').all(|part| part != ".." && part != ".");
    prop_assert!(below, "{}", found.path);
    prop_assert!(found.path.is_empty() || found.path.starts_with('/'));
    prop_assert!(found.path.len() <= MOST_BYTES);
    match found.innermost {
        Innermost::Pod => prop_assert!(found.pod_uid.is_some()),
        Innermost::Container => prop_assert!(found.container.is_some()),
        Innermost::Job => prop_assert!(found.job.is_some()),
        Innermost::Unit => prop_assert!(found.unit.is_some()),
        Innermost::User => prop_assert!(found.user.is_some()),
        Innermost::Nothing => prop_assert_eq!(found.path, ""),
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        holds(&bytes)?;
    }

    #[test]
    fn any_words_are_read_without_harm(bytes in wordy()) {
        holds(&bytes)?;
    }
}
