//! Functions compiled three times: for any machine, for one with AVX2 and for one with AVX-512, chosen at run time.
//!
//! Rust never contracts or reorders floating-point operations, so all versions give the same bits; they work on four,
//! eight or sixteen values at a time. Matrix products choose by themselves (`gemm`).

/// Defines a function whose body is compiled for all.
macro_rules! vectorised {
    ($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) $(-> $result)? {
                    portable($($argument),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
                fn with_avx512($($argument: $type),*) $(-> $result)? {
                    portable($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512vl") {
                    // SAFETY: the function is safe but for its need of AVX-512, which this machine has.
                    return unsafe { with_avx512($($argument),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the function is safe but for its need of AVX2, which this machine has.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            portable($($argument),*)
        }
    };
}

pub(crate) use vectorised;
