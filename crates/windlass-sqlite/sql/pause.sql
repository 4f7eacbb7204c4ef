-- ?1: type
insert into {prefix}paused (type) values (?1) on conflict do nothing
