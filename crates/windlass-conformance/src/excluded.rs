/// Cases of the source designs that have no counterpart here, with the reason.
pub const EXCLUDED: &[(&str, &str)] = &[
    ("SA-SP05", "savepoints are calls, not callbacks, so that no error passes through them"),
    ("NA-023", "a future that fails is an error that the caller holds; there are no unhandled rejections"),
];
