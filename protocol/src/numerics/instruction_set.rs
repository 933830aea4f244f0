//! One source of each loop, compiled for several instruction sets; the widest that the machine has runs.
//!
//! A release runs on any x86-64, so the compiler may use SSE2 only, an eighth of what a recent processor computes in a
//! cycle. Here the same inlined Rust is compiled once more with wider vectors allowed. That changes no result: the
//! loops consist of integer operations and of single f32 additions and multiplications, each rounded on its own (Rust
//! never contracts two into a fused one), and no sum of floats is reordered.

/// A loop over a model, to be compiled for each instruction set.
///
/// `run` and all that it calls in its inner loops must be `#[inline(always)]`: what is not inlined is compiled for the
/// baseline alone.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstructionSet(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What every machine of the target has: SSE2 on x86-64, Neon on AArch64.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl InstructionSet {
    /// The widest one.
    pub(crate) fn best() -> InstructionSet {
        #[cfg(target_arch = "x86_64")]
        if has_avx512() {
            return InstructionSet(Kind::Avx512);
        } else if is_x86_feature_detected!("avx2") {
            return InstructionSet(Kind::Avx2);
        }
        InstructionSet(Kind::Baseline)
    }

    /// All that this machine has, to compare them.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<InstructionSet> {
        let mut available = vec![InstructionSet(Kind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        {
            available.extend(is_x86_feature_detected!("avx2").then_some(InstructionSet(Kind::Avx2)));
            available.extend(has_avx512().then_some(InstructionSet(Kind::Avx512)));
        }
        available
    }

    /// Runs `kernel` as compiled for this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Kind::Baseline => kernel.run(),
            // SAFETY: only `best` and `available` make this value, and only after the machine said that it has AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { run_with_avx2(kernel) },
            // SAFETY: likewise, with the features that `has_avx512` asks for.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { run_with_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_with_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn run_with_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
