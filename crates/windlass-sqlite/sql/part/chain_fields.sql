unhex(value ->> 'latest') as latest, value ->> 'latest_position' as latest_position,
value ->> 'key_held' as key_held, value ->> 'chain_closed_at' as chain_closed_at,
value ->> 'chain_closed_as' as chain_closed_as, value ->> 'retain_until' as retain_until,
value ->> 'leaves_at' as leaves_at, value ->> 'trim_at' as trim_at, value ->> 'rippling' as rippling
