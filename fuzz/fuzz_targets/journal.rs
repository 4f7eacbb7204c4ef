//! Opens folders of the file store whose journal contains any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = windlass_file::fuzz::journal(data);
});
