//! Files that ship beside the binary.

use std::process::Command;

use crate::program::{PATH, ROOT};

/// The maximum exposure level of the unit, in tenths of systemd's scale from 0 to 10.
const MAX_EXPOSURE: &str = "20";

#[test]
fn systemd_unit_is_valid_and_within_the_exposure_limit() {
    let unit = std::fs::read_to_string(format!("{ROOT}/contrib/systemd/tidegate.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate serve --config"), "{unit}");
    let folder = format!("{}/unit-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::create_dir_all(&folder).unwrap();
    let file = format!("{folder}/tidegate.service");
    // The binary is not installed at this path here.
    std::fs::write(&file, unit.replace("/usr/local/bin/tidegate", PATH)).unwrap();
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    for args in [&["verify", &file][..], &["security", "--offline=true", &threshold, &file]] {
        let checked = Command::new("systemd-analyze").args(args).output().unwrap();
        let output = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{args:?}: {output}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn paths_in_documentation_are_those_that_the_unit_and_the_image_provide() {
    let unit = std::fs::read_to_string(format!("{ROOT}/contrib/systemd/tidegate.service")).unwrap();
    for line in ["ConfigurationDirectory=tidegate", "StateDirectory=tidegate", "LogsDirectory=tidegate"] {
        assert!(unit.lines().any(|found| found == line), "{unit}");
    }
    let folders = ["README.md", "SECURITY.md", "docs", "contrib/prometheus"];
    let search = Command::new("grep")
        .args(["-rhoE", "/(etc|var/[a-z]+)/tidegate[^ `\"]*|/var/[a-z]+/[^ `\"]*"])
        .args(folders)
        .current_dir(ROOT)
        .output()
        .unwrap();
    let found = String::from_utf8(search.stdout).unwrap();
    assert!(found.lines().count() > 10, "{found}");
    for path in found.lines() {
        let provided = ["/etc/tidegate/", "/var/lib/tidegate", "/var/log/tidegate/"];
        assert!(provided.iter().any(|folder| path.starts_with(folder)), "{path}");
    }
}

#[test]
fn docker_image_uses_the_pinned_toolchain_and_a_non_root_user() {
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
