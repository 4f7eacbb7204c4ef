-- Which of these types are paused.
-- ?1: [type, ...]
select type from {prefix}paused where type in (select value from json_each(?1))
