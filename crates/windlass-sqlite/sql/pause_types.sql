-- ?1: [type, ...]
insert into {prefix}paused (type) select value from json_each(?1) where true on conflict do nothing
