//! The stand-ins for NVIDIA's libraries: those that `scripts/build_cuda.py` links, with a library of our own in the place of the
//! real one; and those that `scripts/emulated_gpu.py` runs a program with.

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

/// Adds two vectors as a program on a GPU would.
const ADDITION: &str = "
import ctypes
driver = ctypes.CDLL('libcuda.so.1')
function, size, bytes = ctypes.c_void_p(), 300, 1200
assert driver.cuModuleGetFunction(ctypes.byref(function), None, b'no_such_kernel') != 0
assert driver.cuModuleGetFunction(ctypes.byref(function), None, b'add') == 0
places = [ctypes.c_void_p() for _ in range(2)]
for place, value in zip(places, [1.5, 40.0]):
    assert driver.cuMemAllocAsync(ctypes.byref(place), ctypes.c_size_t(bytes), None) == 0
    values = (ctypes.c_float * size)(*(value + index for index in range(size)))
    assert driver.cuMemcpyHtoDAsync_v2(place, values, ctypes.c_size_t(bytes), None) == 0
given = [*places, ctypes.c_size_t(size)]
arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in given))
assert driver.cuLaunchKernel(function, 2, 1, 1, 256, 1, 1, 0, None, arguments, None) == 0
sums = (ctypes.c_float * size)()
assert driver.cuMemcpyDtoHAsync_v2(sums, places[0], ctypes.c_size_t(bytes), None) == 0
print(all(sum == 41.5 + 2 * index for index, sum in enumerate(sums)))
";

#[test]
fn a_program_for_gpus_runs_on_the_emulated_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/emulated_gpu.py");
    if Command::new("c++").arg("--version").output().is_err() {
        println!("skipped: the emulated GPU needs a C++ compiler");
        return;
    }
    let output = run("python3", &[script, "python3", "-c", ADDITION], folder.path());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "True\n", "{output:?}");
    let output = run("python3", &[script, "no-such-program"], folder.path());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("no program no-such-program"), "{message}");
}
