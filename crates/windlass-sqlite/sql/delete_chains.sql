-- ?1: [chain, ...]
delete from {prefix}job where chain in (select unhex(value) from json_each(?1))
