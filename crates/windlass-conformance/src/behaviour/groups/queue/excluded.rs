/// Tests from the library that the queue is modeled on, for which there is no counterpart here, with the reason.
pub const QUEUE_EXCLUDED: &[(&str, &str)] = &[
    ("Q02", "there is no logger to give: lines go to `tracing`, and observers are told"),
    ("Q04", "a consumer is stopped once, by its type"),
    ("RE03", "a reaper is stopped once, by its type"),
    ("RE12", "a reaper has no timers"),
    ("MQ07", "every queue has a name"),
    (
        "ST-13",
        "how a store reads many states is its own affair; the round trips are counted (`store.round_trips`)",
    ),
];
