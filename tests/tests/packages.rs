//! What `scripts/package.py` makes: each package is taken apart by the tools of those who will get it.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::MURMUR;

/// What a program prints; `None` where there is none of that name.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(Output { status, stdout, stderr }) = Command::new(program).args(arguments).output() else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    assert!(status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&stderr));
    Some(String::from_utf8_lossy(&stdout).into_owned())
}

fn made(folder: &Path, end: &str) -> PathBuf {
    let mut entries = fs::read_dir(folder).expect("there").flatten().map(|entry| entry.path());
    entries.find(|path| path.to_string_lossy().ends_with(end)).unwrap_or_else(|| panic!("no {end}"))
}

/// No git is there, and no environment can be made: the first can be done without, the second ends it with a word.
#[test]
fn what_a_machine_lacks_is_said_or_done_without() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let python = |code: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", &format!("import sys; sys.path.insert(0, sys.argv[1]); import package; {code}")]);
        command.arg(&scripts).env_remove("SOURCE_DATE_EPOCH").env("CARGO_TARGET_DIR", folder.path());
        command.env("PYTHONDONTWRITEBYTECODE", "1").output().ok()
    };
    let nowhere = "import os; os.environ['PATH'] = '';";
    let Some(time) = python(&format!("{nowhere} print(package.commit_time())")) else {
        println!("skipped: python3 is not installed");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&time.stdout), "0\n", "{}", String::from_utf8_lossy(&time.stderr));
    let fails = "def create(*_, **__): raise package.subprocess.CalledProcessError(1, 'ensurepip')";
    for (code, words) in [
        (format!("{nowhere} package.run(['git', 'log'])"), "package.py: cannot start git: "),
        (format!("exec({fails:?}); package.venv.create = create; package.zig_environment()"), "in python3-venv"),
    ] {
        let output = python(&code).expect("it is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn packages_hold_the_binary_with_completions_man_pages_licences_and_a_list_of_parts() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // The real binary is large, and packing it slow: this one only leads to it.
    let binary = folder.path().join("murmur");
    fs::write(&binary, format!("#!/bin/sh\nexec {MURMUR} \"$@\"\n")).expect("written");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).expect("set");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/package.py");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let pack = |output: &Path| {
        let arguments = [text(&script), "--binary".into(), text(&binary), "--output".into(), text(output)];
        printed("python3", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let output = folder.path().join("dist");
    let Some(paths) = pack(&output) else { return };
    assert_eq!(paths.lines().count(), 4, "{paths}");

    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).expect("created");
    printed("tar", &["-xzf", &text(&made(&output, ".tar.gz")), "-C", &text(&unpacked)]).expect("tar is there");
    let root = fs::read_dir(&unpacked).expect("there").flatten().next().expect("one folder").path();
    let version = printed(&text(&root.join("murmur")), &["--version"]).expect("it starts");
    assert!(version.starts_with("murmur ") && version.contains(" (wire "), "{version}");
    for file in ["completions/_murmur", "man/man1/murmur-start.1", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(fs::metadata(root.join(file)).expect(file).len() > 500, "{file}");
    }
    let third_party = fs::read_to_string(root.join("THIRD-PARTY-LICENSES.txt")).expect("there");
    let parts: Value = serde_json::from_slice(&fs::read(root.join("murmur.cdx.json")).expect("there")).expect("JSON");
    assert_eq!((&parts["bomFormat"], &parts["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let names: Vec<&str> =
        parts["components"].as_array().expect("a list").iter().filter_map(|part| part["name"].as_str()).collect();
    for linked in ["candle-core", "libp2p", "tokio", "clap"] {
        assert!(names.contains(&linked), "{linked} is linked");
        assert!(third_party.contains(&format!("\n{linked} ")), "{linked} has a licence");
    }
    for foreign in ["proptest", "criterion", "windows-sys", "core-foundation"] {
        assert!(!names.contains(&foreign), "{foreign} is not in a binary for Linux");
    }

    let deb = text(&made(&output, ".deb"));
    if let Some(about) = printed("dpkg-deb", &["--info", &deb]) {
        assert!(about.contains("Package: murmur") && about.contains("Depends: libc6"), "{about}");
        let content = printed("dpkg-deb", &["--contents", &deb]).expect("it is there");
        assert!(content.contains("root/root") && content.contains(" ./usr/bin/murmur\n"), "{content}");
        assert!(content.contains("./usr/share/man/man1/murmur-start.1.gz"), "{content}");
        let target = folder.path().join("deb");
        printed("dpkg-deb", &["-x", &deb, &text(&target)]).expect("it is there");
        printed(&text(&target.join("usr/bin/murmur")), &["--version"]).expect("it starts");
    }

    // Installed as people do it, without asking the network for anything.
    let environment = folder.path().join("environment");
    if printed("python3", &["-m", "pip", "--version"]).is_some() {
        printed("python3", &["-m", "venv", "--without-pip", &text(&environment)]).expect("python is there");
        let wheel = text(&made(&output, ".whl"));
        let python = text(&environment.join("bin/python"));
        let install = ["-m", "pip", "--python", &python, "install", "--no-index", "--no-deps", "--quiet", &wheel];
        printed("python3", &install).expect("pip is there");
        printed(&text(&environment.join("bin/murmur")), &["--version"]).expect("it starts");
        // The package finds the binary that was installed with it: no other one is on the path.
        let looks = "import murmur, os; os.environ['PATH'] = ''; print(murmur.local()._command[0], murmur.__file__)";
        let found = printed(&python, &["-c", looks]).expect("it is there");
        assert!(found.starts_with(&text(&environment.join("bin/murmur"))), "{found}");
        assert!(found.trim_end().ends_with("site-packages/murmur/__init__.py"), "{found}");
    }

    let container = fs::read_to_string(made(&output, "-linux-gnu").join("Containerfile")).expect("there");
    assert!(container.contains("\nARG BASE=debian:stable-slim\n"), "{container}");

    let sums = fs::read_to_string(output.join("SHA256SUMS")).expect("there");
    assert_eq!(sums.lines().count(), 3, "{sums}");
    let again = folder.path().join("again");
    pack(&again);
    assert_eq!(sums, fs::read_to_string(again.join("SHA256SUMS")).expect("there"), "equal inputs give equal packages");
}
