//! Opens folders of the file store whose snapshot contains any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = windlass_file::fuzz::snapshot(data);
});
