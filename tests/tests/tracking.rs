//! What daemons write and send for programs that draw experiments, read back by those programs where they are installed.

mod mlflow;
mod tensorboard;

use std::process::Command;

/// A Python for what needs more than its standard library; `MURMUR_TEST_PYTHON` names another.
fn python() -> String {
    std::env::var("MURMUR_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// Runs a script of `tests/tracking`. `None`, with a line that says why, where Python or the package is not there.
fn script(name: &str, package: &str, arguments: &[&str]) -> Option<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tracking");
    let mut command = Command::new(python());
    command.arg(format!("{path}/{name}")).args(arguments);
    if Command::new(python()).arg("--version").output().is_err() {
        println!("skipped: there is no {} here", python());
        return None;
    }
    let output = murmur_tests::output_of(&mut command);
    if output.status.code() == Some(77) {
        println!("skipped: {} has no {package}", python());
        return None;
    }
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}
