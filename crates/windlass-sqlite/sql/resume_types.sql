-- ?1: [type, ...]
delete from {prefix}paused where type in (select value from json_each(?1))
