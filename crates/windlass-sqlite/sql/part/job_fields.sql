value ->> 'status' as status, value ->> 'due_at' as due_at, value ->> 'attempt' as attempt,
value ->> 'version' as version, value ->> 'waits' as waits, value ->> 'closed_at' as closed_at,
unhex(value ->> 'closed_by') as closed_by, value ->> 'ended' as ended, unhex(value ->> 'outside') as outside,
value ->> 'cancel_requested' as cancel_requested, value ->> 'error' as error,
value ->> 'output_codec' as output_codec, value ->> 'output_start' as output_start,
value ->> 'output_length' as output_length
