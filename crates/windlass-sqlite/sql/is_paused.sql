-- Whether a type is paused.
-- ?1: type
select 1 from {prefix}paused where type = ?1
