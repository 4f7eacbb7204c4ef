-- The last number in the order of creation.
select last from {prefix}sequence
