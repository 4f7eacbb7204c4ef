/// Cases of the source designs that have no counterpart here, with the reason.
pub const EXCLUDED: &[(&str, &str)] = &[
    ("SA-SP05", "savepoints are calls, not callbacks, so no error passes through them"),
    ("NA-023", "a failed future is an error that the caller holds; there are no unhandled rejections"),
];
