//! The stand-ins that `scripts/build_cuda.py` links instead of NVIDIA's libraries: with a library of our own in their place.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;
use std::process::{Command, Output};

/// More arguments than there are registers, of both kinds.
const LIBRARY: &str = "double mixed(int a, double b, long c, float d, int e, int f, int g, double h, int i, int j) {\n\
     return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j; }\n\
     int plain(int a) { return a + 1; }\n";

/// Each function is called twice: the first call opens the library.
const PROGRAM: &str = "#include <stdio.h>\n\
     double mixed(int, double, long, float, int, int, int, double, int, int);\n\
     int plain(int);\n\
     int main(int count, char **arguments) {\n\
     if (count > 1) return 0;\n\
     for (int turn = 0; turn < 2; turn++) printf(\"%g %d\\n\", mixed(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), plain(turn));\n\
     return 0; }\n";

fn run(program: &str, arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("LD_LIBRARY_PATH", folder.join("lib")).output().expect("it starts")
}

fn build(program: &str, arguments: &[&str], folder: &Path) {
    let output = run(program, arguments, folder);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_library_is_opened_by_the_first_call_and_not_missed_before() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let folder = folder.path();
    std::fs::create_dir(folder.join("lib")).expect("writable");
    std::fs::write(folder.join("library.c"), LIBRARY).expect("writable");
    std::fs::write(folder.join("program.c"), PROGRAM).expect("writable");
    build("cc", &["-shared", "-fPIC", "-o", "lib/libprobe.so.1", "library.c"], folder);
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts");
    let make = format!(
        "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {scripts:?}); import build_cuda, pathlib; \
         build_cuda.make_loader(pathlib.Path('.'), 'probe', 'libprobe.so.1', ['mixed', 'plain'])"
    );
    build("python3", &["-c", &make], folder);
    build("cc", &["-o", "program", "program.c", "-L.", "-lprobe", "-ldl"], folder);

    let output = run("./program", &[], folder);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "385 1\n385 2\n", "{output:?}");
    std::fs::remove_file(folder.join("lib/libprobe.so.1")).expect("it is there");
    assert!(run("./program", &["without a call"], folder).status.success());
    let output = run("./program", &[], folder);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("libprobe.so.1"), "{message}");
}
