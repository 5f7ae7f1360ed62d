//! Files that ship beside the binary.

use std::process::Command;

use crate::program::{PATH, ROOT};

/// How exposed a service may be, in tenths of what systemd counts to ten.
const MOST_EXPOSED: &str = "20";

#[test]
fn the_unit_is_one_that_systemd_takes_and_finds_well_shut() {
    let unit = std::fs::read_to_string(format!("{ROOT}/contrib/systemd/tidegate.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate serve --config"), "{unit}");
    let folder = format!("{}/unit-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::create_dir_all(&folder).unwrap();
    let file = format!("{folder}/tidegate.service");
    // It is not installed here.
    std::fs::write(&file, unit.replace("/usr/local/bin/tidegate", PATH)).unwrap();
    let threshold = format!("--threshold={MOST_EXPOSED}");
    for args in [&["verify", &file][..], &["security", "--offline=true", &threshold, &file]] {
        let checked = Command::new("systemd-analyze").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{args:?}: {said}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_image_is_built_with_our_toolchain_and_runs_as_nobody_in_particular() {
    let image = std::fs::read_to_string(format!("{ROOT}/Dockerfile")).unwrap();
    let toolchain = std::fs::read_to_string(format!("{ROOT}/rust-toolchain.toml")).unwrap();
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    assert!(image.contains(&format!("RUSTUP_TOOLCHAIN={channel}\n")), "{image}");
    let (minor, _) = channel.rsplit_once('.').unwrap();
    assert!(image.contains(&format!("FROM rust:{minor}-")), "{image}");
    let (_, last) = image.rsplit_once("\nFROM ").unwrap();
    assert!(last.contains("\nUSER nonroot\n"), "{last}");
}
