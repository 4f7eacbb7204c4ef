/// Tests from the library that the queue is modeled on, for which there is no counterpart here, with the reason.
pub const QUEUE_EXCLUDED: &[(&str, &str)] = &[
    ("Q02", "there is no logger to pass: logs go to `tracing`, and observers receive events"),
    ("Q04", "a consumer can be stopped only once, by its type"),
    ("RE03", "a reaper can be stopped only once, by its type"),
    ("RE12", "a reaper has no timers"),
    ("MQ07", "every queue has a name"),
    (
        "ST-13",
        "how a store reads many states is an implementation detail; the round trips are counted (`store.round_trips`)",
    ),
];
