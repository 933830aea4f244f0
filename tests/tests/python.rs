//! The Python package: its own tests against real daemons, its types, and the example of the guide.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use murmur_tests::{murmur, output_of};

use crate::MURMUR;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs Python with the package, and with the program under test on its path. `None`, with a line that says why, where
/// there is no Python or no such module.
fn python(module: &str, arguments: &[&str]) -> Option<Output> {
    let program = std::env::var("MURMUR_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let look =
        format!("import sys, importlib.util as u; sys.exit(sys.version_info < (3, 9) or not u.find_spec({module:?}))");
    let known = Command::new(&program).args(["-c", &look]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no {program} of version 3.9 or later with {module}");
        return None;
    }
    let mut command = murmur(&program);
    command.args(arguments).current_dir(root()).env("PYTHONPATH", "python").env("MURMUR_TEST_BINARY", MURMUR);
    // No compiled files beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(output_of(&mut command))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_package_does_with_real_daemons_what_its_tests_say() {
    let arguments = ["-W", "error::ResourceWarning", "-m", "unittest", "discover", "--verbose", "python/tests"];
    let Some(output) = python("unittest", &arguments) else { return };
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Ran 14 tests"), "{said}");
}

#[test]
fn every_type_of_the_package_is_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let cache = folder.path().to_str().expect("UTF-8");
    let check = |path: &str| python("mypy", &["-m", "mypy", "--strict", "--cache-dir", cache, path]);
    let Some(output) = check("python/murmur") else { return };
    assert!(output.status.success(), "{}", said(&output));
    // Who uses it is checked against its types.
    let user = folder.path().join("user.py");
    std::fs::write(&user, "import murmur\nreveal: str = murmur.Node().status().loss\n").expect("written");
    let output = check(user.to_str().expect("UTF-8")).expect("it was there");
    assert!(said(&output).contains("Incompatible types in assignment"), "{}", said(&output));
}

#[test]
fn the_example_of_the_guide_runs() {
    let _turn = murmur_tests::turn::computes();
    let text = std::fs::read_to_string(root().join("GUIDE.md")).expect("there");
    let example = text.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let link = folder.path().join("murmur");
    std::fs::hard_link(MURMUR, &link).or_else(|_| std::fs::copy(MURMUR, &link).map(drop)).expect("a program");
    let path = std::env::var("PATH").unwrap_or_default();
    let data = folder.path().join("data");
    // It finds `murmur` on the path, and keeps its swarm where nobody else's is.
    let begin = format!(
        "import os; os.environ['PATH'] = {:?} + os.pathsep + {path:?}; os.environ['XDG_DATA_HOME'] = {data:?}\n",
        folder.path()
    );
    let Some(output) = python("json", &["-c", &(begin + example)]) else { return };
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).lines().count() >= 4, "{}", said(&output));
}
